"""Live comparison of throttles on this machine: what adapts beside every fixed number of slots, with real processes.

    python bench/throttle.py [--only cpu,latency,...] [--throttles adaptive,weasel] [--quick] [--json FILE]

Workloads: `cpu` (0.1 s of a processor), `latency` (0.2 s of waiting), `server` (calls to a server of limited capacity,
see tests/support/slow_server.py), `disk` (writes that reach the disk), `mixed` (processor and server), `memory` (48 MiB
each, undeclared, more than fit together), and `shared` and `late`: two runs that share the server, begun together or a
minute apart. Throttles that learn get 15 control periods to settle before they are watched, fixed numbers three
seconds. The whole takes about 40 minutes.

Promises: `adaptive` has 0.95 of the best fixed number's rate; where tasks only wait 1.5 times that of as many slots as
cores; of a shared server each run has 40 to 60 per cent, and its requests take at most twice as long as unhindered
ones; no run passes the memory it was given. Exit status 1 if one is broken, except with `--quick`, which is over too
soon to judge. Rates depend on what else the machine does: compare within one table, and only if the last column, the
processors that others used, is small and even. More tasks at once get more of a machine that others use as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from throttle_runs import (
    CAPACITY,
    KNEE,
    NODE_MIB,
    SERVER,
    WORKLOADS,
    LiveRun,
    Steady,
    Tools,
    build,
    has_throttle,
    run_once,
    words_for,
    write_workflow,
)

from shoal.core.policies.throttle.readings import PERIOD_SECONDS
from support.slow_server import Running, read_log, serving

FIXED = tuple(f"slots={count}" for count in (1, 2, 4, 8, 16, 32))
LEARNING = ("adaptive", "weasel")
OTHERS = ("contract",)
PERIODS = 15
SETTLE, WATCH = 3.0, 10.0
"""Of a throttle that learns nothing."""
LEARNED_WATCH = 30.0
SHARED_WATCH = 60.0
LATE = 60.0
BAR = 0.95
WAITING_BAR = 1.5
FAIR = (0.4, 0.6)
SLOWER = 2.0
MIB = 1 << 20


class Judge:
    """Says what was promised and collects what was not kept."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def expect(self, kept: bool, what: str) -> None:
        print(f"- {'kept' if kept else '**broken**'}: {what}")
        if not kept:
            self.broken.append(what)


def compare(tools: Tools, workload: str, throttles: Sequence[str], known: bool, quick: bool) -> dict[str, Steady]:
    """A table of one workload under all throttles."""
    kinds = WORKLOADS[workload]
    names = [kind.category for kind in kinds]
    print(f"\n## {workload}\n")
    heads = [f"{name}/s | together" for name in names]
    print("| throttle | tasks/s | " + " | ".join(heads) + " | most at once | MiB at most | failed | cores | others' |")
    print("|---" * (7 + 2 * len(kinds)) + "|")
    found = {}
    for throttle in throttles:
        learns = throttle in LEARNING
        settle = PERIODS * PERIOD_SECONDS if learns else SETTLE
        watch = LEARNED_WATCH if learns else WATCH
        if quick:
            settle, watch = settle / 5, watch / 5
        steady = found[throttle] = run_once(tools, kinds, words_for(throttle, known), settle, watch)
        cells = [f"{steady.rates[name]:.1f} | {steady.together[name]:.1f}" for name in names]
        rest = f"{steady.most} | {steady.memory / MIB:.0f} | {steady.failed} | {steady.cores:.2f} | {steady.others:.2f}"
        print(f"| {throttle} | {steady.rate:.1f} | " + " | ".join(cells) + f" | {rest} |", flush=True)
    return found


def judge(workload: str, found: dict[str, Steady], judged: Judge) -> None:
    """What was promised of one workload."""
    print()
    for throttle, steady in found.items():
        if throttle in (*LEARNING, *OTHERS) or workload == "memory":
            within = steady.memory <= NODE_MIB * MIB
            judged.expect(within, f"{workload}, {throttle}: {steady.memory / MIB:.0f} of {NODE_MIB} MiB at most")
        if steady.failed:
            judged.expect(False, f"{workload}, {throttle}: {steady.failed} tasks failed")
    fixed = [name for name in found if name in FIXED]
    if not fixed:
        return
    best = max(fixed, key=lambda name: found[name].rate)
    for throttle in LEARNING:
        if throttle in found:
            ratio = found[throttle].rate / max(1e-9, found[best].rate)
            what = f"{workload}, {throttle}: {ratio:.2f} of {best}"
            if throttle == "adaptive":
                judged.expect(ratio >= BAR, f"{what} (bar: {BAR})")
            else:
                print(f"- {what}")
            if len(WORKLOADS[workload]) > 1:
                print(f"  - of each category: {part_by_part(found[throttle], found[best])}")
    cores = f"slots={len(os.sched_getaffinity(0))}"
    if workload == "latency" and cores in found and "adaptive" in found:
        ratio = found["adaptive"].rate / max(1e-9, found[cores].rate)
        judged.expect(ratio >= WAITING_BAR, f"latency, adaptive: {ratio:.2f} of {cores} (bar: {WAITING_BAR})")


def part_by_part(steady: Steady, best: Steady) -> str:
    """The ratio of each category's rate: a large one may hide a small one in the sum."""
    return ", ".join(f"{name} {rate / max(1e-9, best.rates[name]):.2f}" for name, rate in steady.rates.items())


def share_server(
    tools: Tools, throttle: str, known: bool, late: float, quick: bool, judged: Judge
) -> dict[str, object]:
    """Two runs that call the same server; the second begins so much later."""
    settle, watch = PERIODS * PERIOD_SECONDS, SHARED_WATCH
    if quick:
        settle, watch, late = settle / 5, watch / 5, late / 5
    title = f"two runs with {throttle}" + (f", one {late:.0f} s later" if late else "")
    print(f"\n## shared server: {title}\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-")))
        server = stack.enter_context(serving(folder, CAPACITY, KNEE))
        runs: list[LiveRun] = []
        for tag in ("a", "b"):
            (folder / tag).mkdir()
            write_workflow(folder / tag / "Makeflow", [SERVER], tools, late + settle + watch, server, tag)
        for tag in ("a", "b"):
            runs.append(LiveRun(folder / tag, [SERVER], words_for(throttle, known)))
            stack.callback(runs[-1].end)
            if late and tag == "a":
                runs[0].wait_until(runs[0].began + late)
        begin = runs[1].began + settle
        for run in runs:
            run.wait_until(begin + watch)
        for run in runs:
            run.end()
        memory = sum(run.steady((begin, begin + watch)).memory for run in runs)
        return report_shared(server, begin, watch, memory, title, judged)


def report_shared(
    server: Running, begin: float, watch: float, memory: int, title: str, judged: Judge
) -> dict[str, object]:
    answers = read_log(server.log, begin, begin + watch)
    counts = {tag: sum(answer.tag == tag for answer in answers) for tag in ("a", "b")}
    seconds = sorted(answer.seconds for answer in answers) or [0.0]
    mean, late = statistics.fmean(seconds), seconds[int(0.95 * (len(seconds) - 1))]
    beside = statistics.fmean(answer.beside + 1 for answer in answers) if answers else 0.0
    used = len(answers) / watch / server.capacity
    print(f"Capacity {server.capacity:g} requests/s, knee {server.knee}, {server.unloaded:.3f} s each up to there.\n")
    print("| run | requests/s | share |\n|---|---|---|")
    for tag, count in counts.items():
        print(f"| {tag} | {count / watch:.1f} | {count / max(1, len(answers)):.0%} |")
    print(f"\nUsed {used:.0%}; {beside:.1f} requests at once; mean {mean:.3f} s, 95 of 100 within {late:.3f} s.\n")
    for tag, count in counts.items():
        part = count / watch / server.capacity
        judged.expect(FAIR[0] <= part <= FAIR[1], f"{title}: run {tag} has {part:.0%} of the capacity (bar: 40-60 %)")
    slower = mean / server.unloaded
    judged.expect(0 < slower <= SLOWER, f"{title}: requests take {slower:.2f} of unhindered ones (bar: {SLOWER:g})")
    judged.expect(memory <= 2 * NODE_MIB * MIB, f"{title}: {memory / MIB:.0f} of {2 * NODE_MIB} MiB at most")
    return {"requests": counts, "seconds": mean, "late_seconds": late, "used": used, "at_once": beside}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    everything = (*WORKLOADS, "shared", "late")
    parser.add_argument("--only", default=",".join(everything), help="workloads, separated by commas")
    parser.add_argument("--throttles", default=",".join((*FIXED, *LEARNING, *OTHERS)), help="the same of throttles")
    parser.add_argument("--sharing", default="adaptive", help="the throttle of the runs that share a server")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time; does it run at all?")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.throttles = options.throttles.split(",")
    unknown = [name for name in options.only if name not in everything]
    if unknown:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(everything)}")
    return options


def main() -> int:
    options = parse_arguments()
    known = has_throttle()
    if not known:
        options.throttles = [name for name in options.throttles if name in FIXED]
        options.sharing = "slots=8"
        print("This version has no --throttle: fixed numbers only, as cores.")
    judged = Judge()
    figures: dict[str, object] = {"load_at_start": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="throttle-") as made:
        tools = build(Path(made))
        for workload in options.only:
            if workload in WORKLOADS:
                found = compare(tools, workload, options.throttles, known, options.quick)
                if known:
                    judge(workload, found, judged)
                figures[workload] = {name: steady._asdict() for name, steady in found.items()}
            else:
                late = LATE if workload == "late" else 0.0
                figures[workload] = share_server(tools, options.sharing, known, late, options.quick, judged)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if judged.broken and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
