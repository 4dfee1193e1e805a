"""Sizes that are learned: an adviser per category that declares no memory, and what is kept of them between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from shoal.broker.broker import Adviser
from shoal.engine.workspace import Workspace
from shoal.model.graph import Graph
from shoal.model.resources import Resources
from shoal.model.task import Call
from shoal.policy.sizing.sizer import Description, Sizer
from shoal.policy.sizing.sketch import Learned
from shoal.policy.sizing.workqueue import Category, Summary

UNIT = 1 << 20
MODES = ("max-throughput", "min-waste", "max", "work-queue", "fixed")
DEFAULT_MODE = "max-throughput"


class Kept(msgspec.Struct):
    """What a workflow's runs have learned, by category."""

    memory: dict[str, Learned] = {}


class LikeWorkQueue:
    """Work Queue's own arithmetic in place of ours: megabytes, labels from the first steady state on."""

    def __init__(self, node_size: int) -> None:
        self.node_size = node_size
        self._worker = {"memory": node_size / UNIT}
        self._category = Category("max-throughput", automatic=("memory",))

    def ask(self, tried: Sequence[float] = ()) -> float:
        size = self._category.ask(first_attempt=not tried).get("memory")
        if size is None or (tried and (len(tried) > 1 or size * UNIT <= tried[-1])):
            return self.node_size
        return min(self.node_size, size * UNIT)

    def hopeless(self, tried: Sequence[float]) -> bool:
        return bool(tried) and max(tried) >= self.node_size

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        measured = {"memory": -(-peak // UNIT)}
        self._category.accumulate(Summary(measured, duration, normal=exhausted_at is None), self._worker)


class Sizes:
    """The advisers of one run, by category."""

    def __init__(self, graph: Graph, node: Resources, mode: str, kept: Kept) -> None:
        self.advisers: dict[str, Adviser] = {}
        self.kept = kept
        self.of_profile: list[Adviser | None] = [None] * len(graph.profiles)
        memory = node.get("memory")
        if mode == "fixed" or not memory:
            return
        calls = {graph.profile[task] for task, action in enumerate(graph.actions) if isinstance(action, Call)}
        for number, profile in enumerate(graph.profiles):
            if profile.resources.get("memory") or number in calls:
                continue  # it said so itself, or runs in a worker together with others
            adviser = self.advisers.get(profile.category)
            if adviser is None:
                places = node.get("cores") // max(1, profile.resources.get("cores"))
                adviser = self._adviser(memory, mode, max(1, places), kept.memory.get(profile.category))
                self.advisers[profile.category] = adviser
            self.of_profile[number] = adviser

    @staticmethod
    def _adviser(memory: int, mode: str, places: int, learned: Learned | None) -> Adviser:
        if mode == "work-queue":
            return LikeWorkQueue(memory)
        return Sizer(memory, mode, unit=UNIT, places=places, learned=learned)

    def learned(self) -> Kept:
        """What to keep: this run's categories, and those of earlier runs that this one did not have."""
        found = {name: adviser.learned() for name, adviser in self.advisers.items() if isinstance(adviser, Sizer)}
        return Kept({**self.kept.memory, **{name: learned for name, learned in found.items() if learned.tasks}})

    def describe(self) -> Mapping[str, Description]:
        return {name: adviser.describe() for name, adviser in self.advisers.items() if isinstance(adviser, Sizer)}


def read_kept(workspace: Workspace) -> Kept:
    """What earlier runs learned; nothing if there is nothing, or it cannot be read: it is only a beginning."""
    try:
        with open(workspace.sizes, "rb") as file:
            return msgspec.msgpack.decode(file.read(), type=Kept)
    except (OSError, msgspec.MsgspecError):
        return Kept()


def write_kept(workspace: Workspace, kept: Kept) -> None:
    """Keeps it for the next run; a run does not fail because this does."""
    fresh = workspace.sizes + ".new"
    try:
        with open(fresh, "wb") as file:
            file.write(msgspec.msgpack.encode(kept))
        os.replace(fresh, workspace.sizes)
    except OSError:
        pass
