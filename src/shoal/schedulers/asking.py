"""What a task asks the steward for: its profile as requirements, on one machine or on several at once.

A profile's `cores` and `gpus` are the classes `core` and `gpu`, `nodes` is the number of machines, and any other name
is a class of that name: `socket=1`, `licence=2`. Labels say which machines will do. Which of several implementations,
which location and which machines first is left to `shoal.schedulers.choosing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from shoal.errors import InputError
from shoal.flow.net.records import Task
from shoal.model.resources import FRACTION, is_label
from shoal.model.task import Profile
from shoal.steward.asking import Request, Requirement, require
from shoal.steward.parts import CORE, GPU, NODE, NUMA, SOCKET, THREAD

_CLASSES = {"cores": CORE, "gpus": GPU}
_WITH_PROCESSORS = (NODE, SOCKET, NUMA, THREAD)
"""Who asks for these and says nothing of cores does not want one beside them."""
CORE_NAMES = ("", "cpu", "core", "cores")
GPU_NAMES = ("gpu", "gpus")


class Wish(msgspec.Struct, frozen=True):
    """What is asked for a task, and where."""

    request: Request
    ways: tuple[str, ...] = ("",)
    """The implementation that belongs to each choice of the first requirement."""
    locations: tuple[str, ...] = ()
    """Those whose stewards are asked, in this order; none: the first there is."""


class Asking(Protocol):
    """Says what tasks ask for, and is told what became of them."""

    def wish(self, task: Task) -> Wish:
        """What this task needs now; `InputError` if that cannot be said."""

    def ended(self, task: Task, way: str, seconds: float) -> None:
        """It ran so long, by this implementation."""

    def lost(self, task: Task, way: str) -> None:
        """It came to nothing."""


class Needs(msgspec.Struct, frozen=True):
    """A profile in the steward's words."""

    classes: dict[str, int]
    memory: int
    nodes: int
    only: tuple[str, ...]

    @classmethod
    def of(cls, profile: Profile) -> Needs:
        classes: dict[str, int] = {}
        memory, nodes = 0, 1
        for name, amount in profile.resources.amounts:
            count = -(-amount // FRACTION)
            if is_label(name) or name == "disk" or not amount:
                continue  # the forest knows no disks; agents count them
            if name == "memory":
                memory = amount
            elif name == "nodes":
                nodes = count
            else:
                classes[_CLASSES.get(name, name)] = count
        if not profile.cores_declared and any(name in classes for name in _WITH_PROCESSORS):
            classes.pop(CORE, None)
        only = tuple(name for name in profile.resources.names() if is_label(name))
        return cls(classes or {CORE: 1}, memory, nodes, only)

    def with_way(self, way: str) -> dict[str, int]:
        """What an implementation of this name needs: a GPU, or one of the class that it is called after."""
        if way in CORE_NAMES:
            return self.classes
        kind = GPU if way in GPU_NAMES else way
        return {kind: 1} | self.classes


class ByProfile:
    """One machine. Of several implementations the first whose class is free, in the order of their declaration."""

    def wish(self, task: Task) -> Wish:
        needs = Needs.of(task.transition.profile)
        if needs.nodes != 1:
            raise InputError(
                f"{task.transition.name!r} asks for {needs.nodes} nodes at once, which this scheduler does not grant",
                remedy="use the co-allocation scheduler",
            )
        return self._on(task, needs)

    def _on(self, task: Task, needs: Needs) -> Wish:
        ways = tuple(name for name, _ in task.transition.implementations) or ("",)
        wanted = require(
            *(needs.with_way(way) for way in ways),
            memory=needs.memory,
            nodes=needs.nodes,
            only=needs.only,
            prefer=task.transition.profile.prefers,
        )
        return Wish((wanted,), ways)

    def ended(self, task: Task, way: str, seconds: float) -> None:
        """Nothing is learned."""

    def lost(self, task: Task, way: str) -> None:
        """Nothing is learned."""


class CoAllocation(ByProfile):
    """Several machines, and several requirements in different classes: all of them or none."""

    def __init__(self, beside: Callable[[Task], Sequence[Requirement]] | None = None) -> None:
        """`beside` gives what a task needs beside what its profile says, such as an I/O server somewhere else."""
        self._beside = beside

    def wish(self, task: Task) -> Wish:
        wish = self._on(task, Needs.of(task.transition.profile))
        if self._beside is None:
            return wish
        return msgspec.structs.replace(wish, request=(*wish.request, *self._beside(task)))
