"""Which tasks the nodes of a group could do, and which group is to count them; pure.

What is asked for comes by category (`CategoryDemand`), what a node of a group has as far as it is known (`Ability`):
from nodes that have been seen, or before that from how they are started. What is not known is no reason against a task:
the first node tells. A task that several groups could do counts for the first of them that will really take it (`Pot`),
so that two factories do not bring nodes for the same tasks.
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
"""Resources that an agent finds out for itself; of others it has what is declared."""
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?")
_CORES = re.compile(r"(?:--cpus-per-task[= ]|-c ?)([0-9]+)")
_GPUS = re.compile(r"--gpus|--gres|-G|--exclusive")


class CategoryDemand(msgspec.Struct, frozen=True):
    """Tasks of one category that are ready."""

    resources: Resources
    """What each asks for; a required label is a resource `KEY=VALUE`."""
    ready: int
    """Those that wait and those that run."""
    seconds: float | None = None
    """How long one takes; None: nobody knows yet."""


class Ability(msgspec.Struct, frozen=True):
    """What a node has."""

    amounts: Mapping[str, int]
    labels: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    """Resources and labels of which nothing is known."""

    def fits(self, resources: Resources) -> bool:
        """Whether such a node could run such a task, as far as is known."""
        return all(self._has(name, amount) for name, amount in resources.amounts)

    def _has(self, name: str, amount: int) -> bool:
        key, is_label, value = name.partition("=")
        if key in self.unknown:
            return True
        return self.labels.get(key) == value if is_label else self.amounts.get(name, 0) >= amount

    def at_once(self, resources: Resources) -> float:
        """How many such tasks a node runs together, at least one."""
        cores = self.amounts.get("cores", FRACTION)
        rooms = [self.amounts[name] // amount for name, amount in resources.amounts if amount and name in self.amounts]
        return float(max(1, min(rooms) if rooms else cores // FRACTION))


def ability_of_node(resources: Resources, labels: Mapping[str, str]) -> Ability:
    """That of a node which is there."""
    return Ability(dict(resources.amounts), labels)


def expected_ability(
    kind: str, group: str, agent: Sequence[str], options: Sequence[str], labels: Sequence[str], seen: Resources | None
) -> Ability:
    """That of the next node of a group: like those that were seen, or by the words with which it will be started."""
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
            amounts.setdefault("gpus", 0)  # a job that asks for none has none
    return Ability(amounts, known, (*(name for name in _FOUND_OUT if name not in amounts), "host"))


def label_of(text: str) -> tuple[str, str]:
    """Key and value of a label as the user writes it."""
    key, _, value = parse_label(text, "--label").partition("=")
    return key, value


def _declared(words: Sequence[str]) -> dict[str, list[str]]:
    """Values by option: `--cores=4` as well as `--cores` and `4`."""
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
    """What a group is to count, and how many of these tasks one of its nodes runs together."""

    queue: QueueLength
    at_once: float


class Pot:
    """The tasks that wait, handed out to groups one after the other."""

    def __init__(
        self, demands: Sequence[CategoryDemand], running: Iterable[tuple[Ability, int]], abilities: Sequence[Ability]
    ) -> None:
        """`running`: of each node there is, what it has and how many tasks it runs; `abilities`: of all groups."""
        self._demands = list(demands)
        self._abilities = list(abilities)
        self._waiting = [float(demand.ready) for demand in demands]
        for ability, count in running:
            self._set_off(ability, count)

    def _set_off(self, ability: Ability, count: int) -> None:
        """A node runs so many of the ready tasks; nobody tells which, so it is some of each that it could run."""
        fitting = self._fitting(ability)
        total = sum(self._waiting[at] for at in fitting)
        part = min(1.0, count / total) if total else 0.0
        for at in fitting:
            self._waiting[at] *= 1.0 - part

    def _fitting(self, ability: Ability) -> list[int]:
        return [at for at, demand in enumerate(self._demands) if ability.fits(demand.resources)]

    def share(self, ability: Ability, running: int) -> DemandShare:
        """What a group with such nodes, which run so many tasks, could do of what is left."""
        fitting = [at for at in self._fitting(ability) if self._waiting[at] > 0]
        waiting = round(sum(self._waiting[at] for at in fitting))
        nodes = sum(self._waiting[at] / ability.at_once(self._demands[at].resources) for at in fitting)
        each = waiting / nodes if waiting and nodes else ability.at_once(Resources())
        return DemandShare(QueueLength(waiting, running, self._seconds(fitting, waiting, running)), each)

    def _seconds(self, fitting: Sequence[int], waiting: int, running: int) -> float | None:
        """Of all these tasks together; what runs takes as long as what waits."""
        total = 0.0
        for at in fitting:
            seconds = self._demands[at].seconds
            if seconds is None:
                return None
            total += self._waiting[at] * seconds
        return total * (1 + running / waiting) if waiting else None

    def take(self, ability: Ability, count: float) -> None:
        """A group takes so many: first those that the fewest groups could do."""
        fitting = self._fitting(ability)
        fitting.sort(key=lambda at: sum(other.fits(self._demands[at].resources) for other in self._abilities))
        for at in fitting:
            some = min(count, self._waiting[at])
            self._waiting[at] -= some
            count -= some


def most_of(offers: Sequence[Resources]) -> Resources:
    """Of each resource as much as the best of several nodes has."""
    best: dict[str, int] = {}
    for each in offers:
        for name, amount in each.amounts:
            best[name] = max(best.get(name, 0), amount)
    return Resources.of(best)
