"""Traces of peaks and times: read from the lines of a CSV file, or drawn from families of synthetic workloads.

Peaks of the families are in MB, times in seconds; they are meant for nodes of 8192 MB.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from random import Random

from shoal.errors import InputError
from shoal.sim.sizing import Trace

FAMILY_NODE = 8192.0
_SMALLEST, _LARGEST = 20.0, 8000.0
_COLUMNS = ("peak", "time", "category", "resource")


def read_trace(lines: Iterable[str], file: str) -> dict[str, Trace]:
    """Traces by resource, in the order in which resources appear; without that column there is one, named ''."""
    rows = csv.reader(lines)
    header = next(rows, None)
    if header is None:
        raise InputError("the trace is empty", file=file, remedy="its first line names the columns peak and time")
    names = [name.strip().lower() for name in header]
    for name in ("peak", "time"):
        if name not in names:
            raise InputError(f"the trace has no column {name!r}", file=file, line=1, remedy="name columns in line 1")
    places = {name: names.index(name) for name in _COLUMNS if name in names}
    traces: dict[str, Trace] = {}
    for row in rows:
        if not row:
            continue
        if len(row) < len(names):
            raise InputError(f"the row has {len(row)} values for {len(names)} columns", file=file, line=rows.line_num)
        peak = _number(row[places["peak"]], "peak", file, rows.line_num)
        seconds = _number(row[places["time"]], "time", file, rows.line_num)
        resource = row[places["resource"]].strip() if "resource" in places else ""
        trace = traces.setdefault(resource, Trace([], []))
        trace.peaks.append(peak)
        trace.times.append(seconds)
        if "category" in places:
            trace.categories.append(row[places["category"]].strip())
    if not traces:
        raise InputError("the trace has no tasks", file=file)
    return traces


def _number(text: str, what: str, file: str, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{what} must be a number, not {text.strip()!r}", file=file, line=line) from None
    if not 0 <= number < 1e18:
        raise InputError(f"{what} must be a positive number, not {text.strip()!r}", file=file, line=line)
    return number


def generate(family: str, tasks: int, seed: int) -> Trace:
    """A trace of a family; the same seed gives the same trace."""
    random = Random(f"{family} {seed}")
    draw = FAMILIES[family]
    peaks = [min(max(draw(random, task / tasks), _SMALLEST), _LARGEST) for task in range(tasks)]
    return Trace(peaks, [random.lognormvariate(4.0, 0.4) for _ in range(tasks)])


def as_csv(trace: Trace) -> list[str]:
    """The lines of a file that `read_trace` reads."""
    rows = zip(trace.peaks, trace.times, strict=True)
    return ["peak,time", *(f"{peak:.1f},{seconds:.2f}" for peak, seconds in rows)]


def _normal(random: Random, done: float) -> float:
    return random.gauss(1000, 150)


def _bimodal(random: Random, done: float) -> float:
    return random.gauss(500, 50) if random.random() < 0.75 else random.gauss(2000, 150)


def _exponential(random: Random, done: float) -> float:
    return 100 + random.expovariate(1 / 500)


def _heavy_tail(random: Random, done: float) -> float:
    return 200 * random.paretovariate(1.5)


def _trending(random: Random, done: float) -> float:
    return (400 + 1600 * done) * random.lognormvariate(0, 0.08)


def _phase_change(random: Random, done: float) -> float:
    phases: Sequence[float] = (600, 1800, 300)
    return random.gauss(phases[int(done * len(phases))], 60)


def _cms(random: Random, done: float) -> float:
    """Like peak memory in an analysis of the CMS experiment: most tasks in a narrow hump, few in a long tail."""
    return random.gauss(900, 120) if random.random() < 0.9 else 1000 + random.expovariate(1 / 700)


FAMILIES: dict[str, Callable[[Random, float], float]] = {
    "normal": _normal,
    "bimodal": _bimodal,
    "exponential": _exponential,
    "heavy-tail": _heavy_tail,
    "trending": _trending,
    "phase-change": _phase_change,
    "cms": _cms,
}
