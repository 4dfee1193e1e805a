"""What a node offers to a cluster: resources, the end of its time, and labels. Pure.

Sources, in this order: the command line; `CORES`, `MEMORY`, `DISK` and `GPUS` in the environment; the allocation of the
batch job; the machine (read by `shoal.cluster.nodes.machine`). Detected amounts never exceed the allocation, the
affinity mask and the control group. Declared amounts are accepted, with a warning if the machine has less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from shoal.core.resources import BYTE_RESOURCES, FRACTION, Resources, parse_amount, parse_size, show_amount
from shoal.errors import InputError

MEGABYTE = 1 << 20
ALL = "all"
KNOWN = ("cores", "memory", "disk", "gpus")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PER_NODE = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


class MachineFacts(msgspec.Struct, frozen=True):
    """The hardware, and the limits of this process."""

    cores: int
    memory: int
    disk: int
    gpus: int = 0
    affinity: int | None = None
    """Number of cores in the affinity mask."""
    group_cores: float | None = None
    """Number of cores' time that the control group may use."""
    group_memory: int | None = None


class Declared(msgspec.Struct, frozen=True):
    """Options of the command line, unparsed."""

    cores: str | None = None
    memory: str | None = None
    disk: str | None = None
    gpus: str | None = None
    resources: tuple[str, ...] = ()
    """Items of the form `NAME=N`."""
    labels: tuple[str, ...] = ()
    """Items of the form `KEY=VALUE`."""


class Offer(msgspec.Struct, frozen=True):
    """The resources, time and labels of a node."""

    resources: Resources
    ends_at: float | None = None
    """When the batch system ends the node, in seconds since 1970."""
    labels: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


class _Allocation(msgspec.Struct):
    """Limits of the batch job; None: no limit."""

    cores: int | None = None
    memory: int | None = None
    gpus: int | None = None
    ends_at: float | None = None


def offer(environment: Mapping[str, str], machine: MachineFacts, declared: Declared) -> Offer:
    """Returns everything that a node offers, with warnings."""
    warnings: list[str] = []
    allocation = _allocation(environment, warnings)
    found = _found(machine, allocation, environment)
    amounts = dict(found)
    beyond = []
    for name in KNOWN:
        said = _said(name, declared, environment)
        if said is not None:
            amounts[name] = said
            if said > found[name]:
                beyond.append(f"{name} {show_amount(name, said)} (there is {show_amount(name, found[name])})")
    if beyond:
        warnings.append(f"this node declares more than it has: {', '.join(beyond)}")
    for text in declared.resources:
        name, number = _pair(text, "--resource", "NAME=N")
        if name in KNOWN:
            raise InputError(f"--resource {text}: {name} has an option of its own", remedy=f"write --{name}")
        amounts[name] = parse_amount(number, f"--resource {name}")
    labels = dict(_pair(text, "--label", "KEY=VALUE") for text in declared.labels)
    return Offer(Resources.of(amounts), allocation.ends_at, tuple(sorted(labels.items())), tuple(warnings))


def _said(name: str, declared: Declared, environment: Mapping[str, str]) -> int | None:
    """Returns what the user declares of a resource; None if it is to be detected."""
    text: str | None = getattr(declared, name)
    what = f"--{name}"
    if text is None:
        text, what = environment.get(name.upper()), name.upper()
    if text is None or not text.strip() or text.strip().lower() == ALL:
        return None
    text = text.strip()
    if name in BYTE_RESOURCES:
        # A plain number means megabytes here, as in the environment of Makeflow's tasks and in Slurm's.
        plain = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)
        return parse_size(f"{text}M" if plain else text, what)
    amount = parse_amount(text, what)
    if name == "cores" and amount == 0:
        raise InputError(f"{what} is 0: a node without cores runs nothing", remedy="give a number above 0, or 'all'")
    return amount


def _found(machine: MachineFacts, allocation: _Allocation, environment: Mapping[str, str]) -> dict[str, int]:
    """Returns the available amounts in smallest units: the minimum of machine, mask, control group and allocation."""
    cores = [float(machine.cores)]
    cores += [float(limit) for limit in (machine.affinity, machine.group_cores, allocation.cores) if limit is not None]
    memory = [limit for limit in (machine.memory, machine.group_memory, allocation.memory) if limit is not None]
    gpus = machine.gpus if allocation.gpus is None else allocation.gpus
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = _visible_devices(visible)
    # A quota of half a core still runs one task at a time.
    whole = max(1, math.floor(min(cores)))
    return {"cores": whole * FRACTION, "memory": min(memory), "disk": machine.disk, "gpus": gpus * FRACTION}


def _allocation(environment: Mapping[str, str], warnings: list[str]) -> _Allocation:
    """Returns the limits of the Slurm job around this process, if there is one."""
    found = _Allocation()
    if not (environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")):
        return found
    number = _Numbers(environment, warnings)
    found.cores = number.whole("SLURM_CPUS_ON_NODE") or _cpus_per_node(environment, warnings)
    per_node, per_core = number.whole("SLURM_MEM_PER_NODE"), number.whole("SLURM_MEM_PER_CPU")
    # Zero means all memory of the node.
    if per_node:
        found.memory = per_node * MEGABYTE
    elif per_core and found.cores:
        found.memory = per_core * found.cores * MEGABYTE
    # A job that requested no GPU has none, even if the machine shows them.
    found.gpus = number.whole("SLURM_GPUS_ON_NODE") or 0
    end = number.whole("SLURM_JOB_END_TIME")
    found.ends_at = float(end) if end else None
    return found


class _Numbers:
    """Reads integers from the environment; an invalid one is ignored with a warning."""

    def __init__(self, environment: Mapping[str, str], warnings: list[str]) -> None:
        self.environment, self.warnings = environment, warnings

    def whole(self, name: str) -> int | None:
        text = self.environment.get(name, "").strip()
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,15}", text):
            self.warnings.append(f"{name}={text} in the environment is not a number and is ignored")
            return None
        return int(text)


def _cpus_per_node(environment: Mapping[str, str], warnings: list[str]) -> int | None:
    """Parses `4(x2),2`: four cores on the first two nodes and two on the third; SLURM_NODEID is the index of this
    node."""
    text = environment.get("SLURM_JOB_CPUS_PER_NODE", "").strip()
    if not text:
        return None
    left = _Numbers(environment, warnings).whole("SLURM_NODEID") or 0
    for part in text.split(","):
        match = _PER_NODE.fullmatch(part.strip())
        if match is None:
            break
        repeated = int(match[2] or 1)
        if left < repeated:
            return int(match[1])
        left -= repeated
    warnings.append(f"SLURM_JOB_CPUS_PER_NODE={text} in the environment does not contain this node's cores")
    return None


def _visible_devices(text: str) -> int:
    """Returns how many GPUs CUDA would show: it stops at the first entry that is not a device."""
    count = 0
    for entry in text.split(","):
        if not re.fullmatch(r"\s*(?:[0-9]+|(?:GPU|MIG)-\S+)\s*", entry):
            break
        count += 1
    return count


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not _NAME.fullmatch(name):
        raise InputError(f"{option} {text!r} is not of the form {form}")
    return name, value
