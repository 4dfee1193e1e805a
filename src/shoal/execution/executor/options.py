"""Options of calls (cores, memory, retries, ...) and the resources of an executor's node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from shoal.core.resources import (
    FRACTION,
    Resources,
    is_label,
    parse_amount,
    parse_labels,
    required_labels,
    requiring,
    show_amount,
    without_labels,
)
from shoal.core.task import ONE_CORE
from shoal.errors import InputError
from shoal.execution.process_limits import available_cores, available_memory

_LEAST_CORES = Resources((("cores", 100),))
"""A call that requests no resources still takes a hundredth of a core, so that not all of them start at once."""


class CallOptionValues(TypedDict, total=False):
    """The keywords of `with_options` and `shoal.function`; missing ones stay unchanged."""

    cores: float
    memory: str | float
    gpus: float
    resources: Mapping[str, str | float]
    requires: str | Sequence[str]
    retries: int
    timeout: float
    category: str


class CallOptions(msgspec.Struct, frozen=True, cache_hash=True):
    """The options of a call; calls with equal options share a lane."""

    resources: Resources = ONE_CORE
    retries: int = 0
    timeout: float | None = None
    category: str = ""
    """Key under which the duration of calls is learned; if empty, the function's name."""

    def changed(self, overrides: CallOptionValues) -> CallOptions:
        """Returns these options with some of them replaced; raises `InputError` for invalid values."""
        known = CallOptionValues.__annotations__
        for name in overrides:
            if name not in known:
                raise TypeError(f"unknown option {name!r}; known are {', '.join(known)}")
        return CallOptions(
            self._changed_resources(overrides),
            _retries(overrides.get("retries", self.retries)),
            _timeout(overrides.get("timeout", self.timeout)),
            _category(overrides.get("category", self.category)),
        )

    def _changed_resources(self, overrides: CallOptionValues) -> Resources:
        declared = _declared(
            overrides.get("cores"), overrides.get("memory"), overrides.get("gpus"), overrides.get("resources")
        )
        labels = parse_labels(overrides.get("requires", required_labels(self.resources)), "requires")
        if not declared and "requires" not in overrides:
            return self.resources
        amounts = dict(without_labels(self.resources).amounts)
        for name in declared:
            amounts.pop(name, None)  # amounts of zero are missing in the parsed amounts
        amounts.update(Resources.parse(declared).amounts)
        if labels:
            return requiring(Resources.of(amounts) if any(amounts.values()) else _LEAST_CORES, labels)
        return Resources.of(amounts) if any(amounts.values()) else _LEAST_CORES

    def check_fits(self, node: Resources, cluster: str = "") -> None:
        """Raises `InputError` unless a call with these options fits the node, which is the largest one of a cluster."""
        for name in self.resources.lacking_in(node):
            if is_label(name):
                whose = f"no agent of the cluster {cluster!r} has it" if cluster else "this machine does not have it"
                raise InputError(f"a call requires the label {name}, and {whose}", remedy="add a node with that label")
            asked, there = (show_amount(name, resources.get(name)) for resources in (self.resources, node))
            if cluster:
                raise InputError(
                    f"a call asks for {asked} {name}, but no agent of the cluster {cluster!r} has more than {there}",
                    remedy="ask for less, or add an agent that has it",
                )
            raise InputError(
                f"a call asks for {asked} {name}, but the executor has {there}",
                remedy=f"ask for less, or create it with shoal.Executor({_how_to_declare(name)})",
            )


def node_of(
    max_workers: int | None,
    cores: float | None,
    memory: str | float | None,
    gpus: float | None,
    resources: Mapping[str, str | float] | None,
) -> Resources:
    """Returns the node of an executor: this machine, with declared amounts in place of detected ones."""
    if max_workers is not None:
        if cores is not None:
            raise InputError("max_workers and cores mean the same", remedy="give only one of them")
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        cores = max_workers
    found = {"cores": available_cores() * FRACTION, "memory": available_memory()}
    found.update(dict(Resources.parse(_declared(cores, memory, gpus, resources)).amounts))
    if cores is not None and not parse_amount(cores, "cores"):
        raise InputError("an executor needs cores to run anything", remedy="leave cores out to use all there are")
    return Resources.of(found)


def _declared(
    cores: float | None, memory: str | float | None, gpus: float | None, others: Mapping[str, str | float] | None
) -> dict[str, Any]:
    declared = {**(others or {}), "cores": cores, "memory": memory, "gpus": gpus}
    return {name: value for name, value in declared.items() if value is not None}


def _how_to_declare(name: str) -> str:
    return f"{name}=…" if name in ("cores", "memory", "gpus") else f"resources={{{name!r}: …}}"


def _retries(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"retries must be a non-negative integer, not {value!r}")
    return value


def _timeout(value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"timeout must be a number of seconds greater than 0, not {value!r}")
    return float(value)


def _category(value: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"category must be a string, not {value!r}")
    return value
