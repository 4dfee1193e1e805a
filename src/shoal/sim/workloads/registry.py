"""Registry of the workloads: names, parameters, and the parser of specifications such as
`pipeline:tasks=20000,degree=10`.

The module of a workload is imported when it is used for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from shoal.core.resources import parse_size
from shoal.core.work import Work
from shoal.errors import InputError

MOST_TASKS = 100_000_000
"""About what fits into the memory of a large machine."""

Value = int | float | None


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a workload, in the range from `least` to `most` inclusive."""

    name: str
    default: Value
    """None: `meaning` describes the default."""
    meaning: str
    least: float = 1
    most: float = MOST_TASKS
    kind: str = "count"
    """`count` is an integer, `number` a float, `size` a number of bytes such as 12M."""

    def read(self, text: str, workload: str) -> Value:
        """Parses a user's value; raises InputError with what is expected."""
        what = f"{self.name} of the workload {workload}"
        if self.kind == "size":
            value: float = parse_size(text, what)
        else:
            try:
                value = _whole(text) if self.kind == "count" else float(text)
            except ValueError:
                wanted = "a whole number" if self.kind == "count" else "a number"
                raise InputError(f"{what} must be {wanted}, not {text!r}") from None
        if not self.least <= value <= self.most:
            raise InputError(f"{what} must be between {self.least:,} and {self.most:,}, not {text}")
        return value


class WorkloadValues:
    """The values of all parameters of a workload, given or default."""

    def __init__(self, seed: int, values: Mapping[str, Value]) -> None:
        self.seed = seed
        self._values = values

    def count(self, name: str) -> int:
        value = self.perhaps(name)
        assert value is not None, name
        return value

    def perhaps(self, name: str) -> int | None:
        """An integer, or None if it was not given and has no default."""
        value = self._values[name]
        assert value is None or isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self._values[name]
        assert value is not None, name
        return float(value)


class WorkloadDescription(msgspec.Struct, frozen=True):
    """Description of a workload, without importing its module."""

    summary: str
    parameters: tuple[Parameter, ...]
    make: Callable[[WorkloadValues], Work]


def make_workload(text: str, seed: int) -> Work:
    """Creates the workload that `text` specifies; a `seed=` in the text has priority over the argument."""
    name, _, rest = (part.strip() for part in text.partition(":"))
    description = WORKLOADS.get(name)
    if description is None:
        raise InputError(f"unknown workload {name!r}", remedy=f"use one of {', '.join(WORKLOADS)}")
    known = {parameter.name: parameter for parameter in (*description.parameters, SEED)}
    values: dict[str, Value] = {}
    for setting in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in known:
            what = f"has no parameter {key!r}" if key else "has an empty parameter"
            raise InputError(f"the workload {name} {what}", remedy=f"its parameters are {_listed(known.values())}")
        if not equals or not value:
            raise InputError(f"{key} of the workload {name} has no value", remedy=f"write {name}:{key}=VALUE")
        if key in values:
            raise InputError(f"{key} of the workload {name} is given twice")
        values[key] = known[key].read(value, name)
    chosen = values.pop(SEED.name, None)
    defaults = {parameter.name: parameter.default for parameter in description.parameters}
    work = description.make(WorkloadValues(seed if chosen is None else int(chosen), {**defaults, **values}))
    return msgspec.structs.replace(work, name=f"{name}:{rest}" if rest else name)


def _whole(text: str) -> int:
    """Parses an integer; accepts forms such as 1e6, too."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _listed(parameters: Iterable[Parameter]) -> str:
    return ", ".join(each.name if each.default is None else f"{each.name}={each.default}" for each in parameters)


def _bag(given: WorkloadValues) -> Work:
    from shoal.sim.workloads import matrix

    return matrix.bag(given.seed, _tasks(given), given.number("seconds"))


def _fan_out(given: WorkloadValues) -> Work:
    from shoal.sim.workloads import matrix

    return matrix.fan_out(given.seed, _tasks(given), *_shape(given))


def _fan_in(given: WorkloadValues) -> Work:
    from shoal.sim.workloads import matrix

    return matrix.fan_in(given.seed, _tasks(given), *_shape(given))


def _pipeline(given: WorkloadValues) -> Work:
    from shoal.sim.workloads import matrix

    return matrix.pipeline(given.seed, _tasks(given), *_shape(given))


def _tasks(given: WorkloadValues) -> int:
    return given.perhaps("tasks") or TASKS_PER_CORE * given.count("cores")


def _shape(given: WorkloadValues) -> tuple[int, float, int]:
    return given.count("degree"), given.number("seconds"), given.count("output")


def _stacking(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import stacking

    tasks, nodes = given.perhaps("tasks"), given.perhaps("nodes")
    return stacking(given.seed, given.number("locality"), tasks, nodes, bool(given.count("aggregate")))


def _all_pairs(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import all_pairs

    return all_pairs(given.count("side"), given.number("seconds"), given.count("file"), given.perhaps("nodes"))


def _copyfile(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import copyfile

    return copyfile(given.seed, given.count("files"), given.count("file"))


def _montage(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import montage

    return montage(given.seed, given.number("scale"))


def _fmri(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import fmri

    return fmri(given.seed, given.count("volumes"))


def _moldyn(given: WorkloadValues) -> Work:
    from shoal.sim.workloads.published import moldyn

    return moldyn(given.seed, given.count("molecules"))


TASKS_PER_CORE = 1000
"""Tasks per core of the MATRIX graphs (weak scaling)."""
_LONG = 10 * 365 * 86400
_LARGE = 2**50

SEED = Parameter("seed", None, "random seed; default: that of the command", least=0, most=2**64 - 1)
_TASKS = Parameter("tasks", None, f"number of tasks; default: {TASKS_PER_CORE} per core")
_CORES = Parameter("cores", 2, "cores; determines the default of tasks", most=MOST_TASKS // TASKS_PER_CORE)
_LONGEST = Parameter("seconds", 0.1, "maximum task duration; durations are uniform", 0, _LONG, "number")
_OUTPUT = Parameter("output", 10_000_000, "maximum output size; sizes are uniform", 0, _LARGE, "size")
_NODES = Parameter("nodes", None, "number of nodes that have the files; default: all", most=10_000_000)


def _degree(least: int, meaning: str) -> Parameter:
    return Parameter("degree", 10, meaning, least)


WORKLOADS: dict[str, WorkloadDescription] = {
    "bag": WorkloadDescription("independent tasks without files", (_TASKS, _CORES, _LONGEST), _bag),
    "fan-out": WorkloadDescription(
        "a tree from one task to many",
        (_TASKS, _CORES, _degree(2, "number of tasks that read each output"), _LONGEST, _OUTPUT),
        _fan_out,
    ),
    "fan-in": WorkloadDescription(
        "a tree from many tasks to one",
        (_TASKS, _CORES, _degree(2, "number of outputs that each task reads"), _LONGEST, _OUTPUT),
        _fan_in,
    ),
    "pipeline": WorkloadDescription(
        "parallel chains",
        (_TASKS, _CORES, _degree(1, "number of tasks in a chain"), _LONGEST, _OUTPUT),
        _pipeline,
    ),
    "stacking": WorkloadDescription(
        "image stacking: each task reads one image from the nodes' disks",
        (
            Parameter("locality", 30, "tasks per image: 1, 1.38, 2, 3, 4, 5, 10, 20 or 30", most=30, kind="number"),
            Parameter("tasks", None, "number of tasks; default: that of the paper", most=10_000_000),
            _NODES,
            Parameter("aggregate", 0, "1: a final task reads all outputs", least=0, most=1),
        ),
        _stacking,
    ),
    "all-pairs": WorkloadDescription(
        "compares each file of one set with each of another",
        (
            Parameter("side", 500, "number of files in each set", most=10_000),
            Parameter("seconds", 0.1, "duration of each task", 0, _LONG, "number"),
            Parameter("file", 12_000_000, "size of each file", 0, _LARGE, "size"),
            _NODES,
        ),
        _all_pairs,
    ),
    "copyfile": WorkloadDescription(
        "copies files, and then the copies; input and output only",
        (
            Parameter("files", 100, "number of files", most=1_000_000),
            Parameter("file", 3 * 2**30, "size of each file", 0, _LARGE, "size"),
        ),
        _copyfile,
    ),
    "montage-pwrake": WorkloadDescription(
        "a mosaic of 421 images in 2,707 tasks",
        (Parameter("scale", 1, "factor for the height of the mosaic", 0.01, 1000, "number"),),
        _montage,
    ),
    "fmri": WorkloadDescription(
        "brain volumes in four stages, aligned with the first volume",
        (Parameter("volumes", 120, "number of volumes", most=1_000_000),),
        _fmri,
    ),
    "moldyn": WorkloadDescription(
        "molecular dynamics: a fan of 84 tasks for each molecule",
        (Parameter("molecules", 50, "number of molecules", most=100_000),),
        _moldyn,
    ),
}
"""By name in the specification."""
