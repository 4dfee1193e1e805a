"""Demand for nodes: which ready tasks the nodes of a group could run, and which group counts them. Pure.

Demand is counted by category (`CategoryDemand`) and compared with what a node of a group offers (`Ability`): as seen on
its nodes, or before that as configured. An unknown resource does not exclude a task: the first node shows what it
offers. A task that fits several groups counts for the first one that will really take it (`UncountedTasks`), so two
factories never start nodes for the same tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.cluster.nodes.factory import QueueLength
from shoal.core.resources import FRACTION, Resources, parse_amount, parse_label, parse_size

GROUP = "group"
"""The label that names the group of a node."""
_FOUND_OUT = ("cores", "memory", "disk", "gpus")
"""Resources that an agent detects by itself; others must be declared."""
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?")
_CORES = re.compile(r"(?:--cpus-per-task[= ]|-c ?)([0-9]+)")
_GPUS = re.compile(r"--gpus|--gres|-G|--exclusive")


class CategoryDemand(msgspec.Struct, frozen=True):
    """Ready tasks of one category."""

    resources: Resources
    """Resources of one task; a required label is a resource `KEY=VALUE`."""
    ready: int
    """Number of tasks that are queued or running."""
    seconds: float | None = None
    """Expected duration of one task; None: unknown."""


class Ability(msgspec.Struct, frozen=True):
    """Resources and labels of a node."""

    amounts: Mapping[str, int]
    labels: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    """Resources and labels whose values are unknown."""

    def fits(self, resources: Resources) -> bool:
        """Whether such a node could run such a task, as far as is known."""
        return all(self._has(name, amount) for name, amount in resources.amounts)

    def _has(self, name: str, amount: int) -> bool:
        key, is_label, value = name.partition("=")
        if key in self.unknown:
            return True
        return self.labels.get(key) == value if is_label else self.amounts.get(name, 0) >= amount

    def at_once(self, resources: Resources) -> float:
        """Returns how many such tasks a node runs at the same time, at least one."""
        cores = self.amounts.get("cores", FRACTION)
        rooms = [self.amounts[name] // amount for name, amount in resources.amounts if amount and name in self.amounts]
        return float(max(1, min(rooms) if rooms else cores // FRACTION))


def ability_of_node(resources: Resources, labels: Mapping[str, str]) -> Ability:
    """Returns the ability of an existing node."""
    return Ability(dict(resources.amounts), labels)


def expected_ability(
    kind: str, group: str, agent: Sequence[str], options: Sequence[str], labels: Sequence[str], seen: Resources | None
) -> Ability:
    """Returns the ability of the group's next node: like existing ones, else from the arguments with which it will be
    started."""
    said = _declared(agent)
    known = dict(pair for pair in map(label_of, [*said.pop("label", []), *labels]))
    known[GROUP] = group
    if seen is not None:
        return Ability(dict(seen.amounts), known, ("host",))
    amounts: dict[str, int] = {}
    for name in _FOUND_OUT:
        for text in said.get(name, [])[-1:]:
            if text.strip().lower() != "all":
                amounts[name] = _amount(name, text)
    for text in said.get("resource", []):
        name, _, number = text.partition("=")
        amounts[name] = parse_amount(number, f"--resource {name}")
    if kind == "slurm":
        cores = next((match[1] for match in map(_CORES.fullmatch, options) if match), None)
        if cores is not None:
            amounts.setdefault("cores", int(cores) * FRACTION)
        if not any(_GPUS.match(option) for option in options):
            amounts.setdefault("gpus", 0)  # a job that requests none has none
    return Ability(amounts, known, (*(name for name in _FOUND_OUT if name not in amounts), "host"))


def label_of(text: str) -> tuple[str, str]:
    """Returns key and value of a label."""
    key, _, value = parse_label(text, "--label").partition("=")
    return key, value


def _declared(words: Sequence[str]) -> dict[str, list[str]]:
    """Returns values by option, for `--cores=4` as well as `--cores` and `4`."""
    said: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            if equals:
                said.setdefault(option, []).append(value)
        else:
            said.setdefault(option, []).append(word)
    return said


def _amount(name: str, text: str) -> int:
    if name not in ("memory", "disk"):
        return parse_amount(text, f"--{name}")
    return parse_size(f"{text}M" if _PLAIN.fullmatch(text) else text, f"--{name}")


class DemandShare(msgspec.Struct, frozen=True):
    """The tasks that a group counts, and how many of them one of its nodes runs at the same time."""

    queue: QueueLength
    at_once: float


class UncountedTasks:
    """The queued tasks, distributed to groups one after the other."""

    def __init__(
        self, demands: Sequence[CategoryDemand], running: Iterable[tuple[Ability, int]], abilities: Sequence[Ability]
    ) -> None:
        """`running`: by existing node, its ability and number of running tasks; `abilities`: of all groups."""
        self._demands = list(demands)
        self._abilities = list(abilities)
        self._waiting = [float(demand.ready) for demand in demands]
        for ability, count in running:
            self._set_off(ability, count)

    def _set_off(self, ability: Ability, count: int) -> None:
        """Subtracts the running tasks of a node from the ready ones. Which tasks they are is unknown, so it subtracts
        proportionally from all categories that the node could run."""
        fitting = self._fitting(ability)
        total = sum(self._waiting[at] for at in fitting)
        part = min(1.0, count / total) if total else 0.0
        for at in fitting:
            self._waiting[at] *= 1.0 - part

    def _fitting(self, ability: Ability) -> list[int]:
        return [at for at, demand in enumerate(self._demands) if ability.fits(demand.resources)]

    def share(self, ability: Ability, running: int) -> DemandShare:
        """Returns which of the remaining tasks a group with such nodes could run; `running`: tasks that its nodes
        run."""
        fitting = [at for at in self._fitting(ability) if self._waiting[at] > 0]
        waiting = round(sum(self._waiting[at] for at in fitting))
        nodes = sum(self._waiting[at] / ability.at_once(self._demands[at].resources) for at in fitting)
        each = waiting / nodes if waiting and nodes else ability.at_once(Resources())
        return DemandShare(QueueLength(waiting, running, self._seconds(fitting, waiting, running)), each)

    def _seconds(self, fitting: Sequence[int], waiting: int, running: int) -> float | None:
        """Expected seconds of all these tasks together; running tasks are counted like queued ones."""
        total = 0.0
        for at in fitting:
            seconds = self._demands[at].seconds
            if seconds is None:
                return None
            total += self._waiting[at] * seconds
        return total * (1 + running / waiting) if waiting else None

    def take(self, ability: Ability, count: float) -> None:
        """Assigns tasks to a group, first those that fit the fewest groups."""
        fitting = self._fitting(ability)
        fitting.sort(key=lambda at: sum(other.fits(self._demands[at].resources) for other in self._abilities))
        for at in fitting:
            some = min(count, self._waiting[at])
            self._waiting[at] -= some
            count -= some


def most_of(offers: Sequence[Resources]) -> Resources:
    """Returns the maximum of each resource over several nodes."""
    best: dict[str, int] = {}
    for each in offers:
        for name, amount in each.amounts:
            best[name] = max(best.get(name, 0), amount)
    return Resources.of(best)
