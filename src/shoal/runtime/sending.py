"""From a granted task to calls on its nodes: one for each rank, at the agent of the machine that was granted.

Every agent carries the label `node=NAME`, and calls require that of theirs, so grants are obeyed. What a call asks of
its agent is what was granted, as far as the agent offers it: other users of the same agents count as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from shoal.errors import InputError
from shoal.flow.net.records import Task
from shoal.futures.executor import ConfiguredExecutor, Executor
from shoal.futures.options import Wishes
from shoal.model.resources import FRACTION
from shoal.model.task import Call
from shoal.nets.work import Timed, run_command
from shoal.runner.seats import environment_of
from shoal.runtime.desk import CallDesk
from shoal.runtime.system import RuntimeSystem
from shoal.runtime.work import Seat, granted
from shoal.schedulers.events import Submit
from shoal.steward.parts import CORE, GPU
from shoal.steward.ranks import Rank, ranks_of

ALONE_SECONDS = 2_000_000.0
"""A call with a time limit travels alone; those of one task must run at once and not one after the other."""

Invocation = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class Sender:
    """Sends tasks to the agents of one run-time system."""

    def __init__(self, runtime: RuntimeSystem, desk: CallDesk, directory: str) -> None:
        self._runtime, self._desk, self._directory = runtime, desk, directory
        self._executors: list[Executor] = []
        """The last one knows all agents; earlier ones have calls under way perhaps."""
        self._views: dict[tuple[object, ...], ConfiguredExecutor] = {}
        self._wrapped: dict[Callable[..., Any], Callable[..., Timed]] = {}

    def send(self, submit: Submit, key: str) -> list[Future[Any]]:
        """Begins all ranks of a task; if that cannot be done for one of them, none is begun."""
        profile = submit.task.transition.profile
        function, arguments, keywords = invocation(submit.task, submit.way, self._directory)
        is_command = function is run_command  # which is told its directory
        place = os.path.join(self._directory, profile.directory) if profile.directory and not is_command else None
        ranks = ranks_of(submit.grant)
        addresses = [self._runtime.address_of(node) for node in submit.grant.nodes()]
        views = [self._view(rank, submit.task) for rank in ranks]
        wrapped = self._wrapped.get(function)
        if wrapped is None:
            wrapped = self._wrapped[function] = granted(function)
        futures: list[Future[Any]] = []
        for rank, view in zip(ranks, views, strict=True):
            variables = dict(environment_of(rank.places, gpus=self._knows_devices(rank)))
            variables |= dict(rank.environment) | {"SHOAL_ADDRESSES": ",".join(addresses)} | dict(profile.environment)
            cpus = sorted({cpu for each in rank.places for cpu in each.cpus})
            seat = Seat(variables, tuple(cpus), self._desk.driver_for(key), place)
            futures.append(view.submit(wrapped, seat, arguments, keywords))
        return futures

    def _knows_devices(self, rank: Rank) -> bool:
        """Whether the GPUs of this rank have names, or those which are to be hidden from it."""
        forest = self._runtime.steward.forest
        held = [unit for place in rank.places for path in place.units if (unit := forest.find(path)) is not None]
        if any(unit.kind == GPU or unit.total.get(GPU) for unit in held):
            units = [each for unit in held for each in unit.walk()]
        else:
            machine = forest.find(rank.node)
            units = list(machine.walk()) if machine is not None and machine.total.get(GPU) else []
        devices = [unit.device for unit in units if unit.kind == GPU]
        return bool(devices) and None not in devices

    def _view(self, rank: Rank, task: Task) -> ConfiguredExecutor:
        """An executor whose calls run on the agent of this rank, with what it was granted there."""
        node, info = self._runtime.node_of(rank.node)
        forest = self._runtime.steward.forest
        units = [forest.find(path) for place in rank.places for path in place.units]
        counts = {
            kind: sum(unit.total.get(kind, 0) + (unit.kind == kind) for unit in units if unit is not None)
            for kind in (CORE, GPU)
        }
        offered = info.resources
        wishes: Wishes = {
            "cores": min(counts[CORE], offered.get("cores") / FRACTION),
            "gpus": min(counts[GPU], offered.get("gpus") / FRACTION),
            "memory": min(sum(place.memory for place in rank.places), offered.get("memory")),
            "requires": f"node={node}",
            "timeout": task.transition.profile.timeout or ALONE_SECONDS,
        }
        key = tuple(wishes.values())
        if key not in self._views:
            self._views[key] = self._fitting(wishes)
        return self._views[key]

    def _fitting(self, wishes: Wishes) -> ConfiguredExecutor:
        if self._executors:
            try:
                return self._executors[-1].with_options(**wishes)
            except InputError:
                pass  # it was made before this agent was there
        self._executors.append(Executor(cluster=self._runtime.home.access))
        return self._executors[-1].with_options(**wishes)

    def close(self, *, at_once: bool = False) -> None:
        """Waits for what runs, or ends it if that is to be `at_once`."""
        for executor in self._executors:
            if at_once:
                executor.__exit__(KeyboardInterrupt, None, None)  # left like that, it waits for nothing
            else:
                executor.shutdown(cancel_futures=True)


def invocation(task: Task, way: str, directory: str) -> Invocation:
    """What is to be called for a task: a function of a net, one of its implementations, a command, or a graph's."""
    spec = task.transition
    place = os.path.join(directory, spec.profile.directory or "")
    if spec.command is not None:
        return run_command, (task.command_line(), {}, place, spec.profile.shell), {}
    if isinstance(spec.action, str):
        return run_command, (spec.action, {}, place, spec.profile.shell), {}
    if isinstance(spec.action, Call):
        if spec.action.wants_task:
            raise InputError(f"{spec.name!r} is a rule's function, which job servers do not run")
        return spec.action.function, spec.action.arguments, dict(spec.action.keywords)
    function = dict(spec.implementations)[way] if spec.implementations else spec.function
    assert function is not None, f"{spec.name} runs nothing"
    if spec.by_keyword:
        return function, (), task.arguments
    return function, tuple(task.arguments.values()), {}
