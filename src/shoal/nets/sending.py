"""From a task of a net to a call of an executor: which function, what it asks for, which of several implementations.

Implementations of a task are named after what they need: `cpu` is a core, `gpu` a GPU, any other name a label of a
node. Which is chosen is learned from how long each took; see `shoal.policy.performance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from shoal.errors import InputError
from shoal.flow.net import Net
from shoal.flow.net import records as r
from shoal.flow.net.options import meant
from shoal.flow.net.transition import Transition
from shoal.futures.client import Client
from shoal.futures.options import Options, Wishes
from shoal.model.labels import requiring
from shoal.model.resources import FRACTION, Resources, is_label
from shoal.nets.work import Timed, run_command, timed
from shoal.policy.performance import Performance
from shoal.runner.call_messages import CallResult

CORE_NAMES = ("cpu", "core", "cores")
GPU_NAMES = ("gpu", "gpus")


class Way(msgspec.Struct, frozen=True):
    """One way to run the tasks of a transition."""

    name: str
    function: Callable[..., Timed]
    options: Options


class Sender:
    """Sends the tasks of one net to one executor."""

    def __init__(self, net: Net, client: Client, directory: str | None = None, wishes: Wishes | None = None) -> None:
        """`wishes` are what tasks ask for that do not say so themselves."""
        self.client = client
        self._wishes: Wishes = wishes or {}
        self.directory = directory or os.getcwd()
        self.performance = Performance()
        self._ways: dict[str, list[Way]] = {}
        self._chosen: dict[int, str] = {}
        for spec in net.transitions.values():
            if spec.is_task:
                self._ways[spec.name] = self._ways_of(spec)

    def _ways_of(self, spec: Transition) -> list[Way]:
        """Those that can run at all; refuses at once what no machine here can ever run."""
        profile = spec.profile
        base = options_of(spec, self._wishes)
        place = os.path.join(self.directory, profile.directory) if profile.directory else None
        wrapped = partial(timed, environment=dict(profile.environment), directory=place)
        if spec.implementations:
            ways = [
                Way(name, wrapped(function), msgspec.structs.replace(base, resources=needs(name, base.resources)))
                for name, function in spec.implementations
            ]
        else:
            ways = [Way("", wrapped(spec.function) if spec.function is not None else run_command, base)]
        found, problem = [], None
        for way in ways:
            try:
                way.options.check_fits(self.client.node, self.client.far)
                found.append(way)
            except InputError as error:
                problem = error
        if not found:
            assert problem is not None, "a task has at least one way"
            lacking = ways[-1].options.resources.lacking_in(self.client.node)
            remedy = meant(name for name in lacking if not is_label(name)) or problem.remedy
            message = f"net {spec.net!r}: the task {spec.name!r} can never run: {problem.message}"
            raise InputError(message, remedy=remedy)
        return found

    def send(self, task: r.Task, heard: Callable[[CallResult], None] | None = None) -> Future[Any]:
        """Begins a task; what comes of it is `Timed`, or what the user's function raised. `heard` is told of each of
        its attempts, by another thread."""
        spec = task.transition
        way = self._choose(task)
        if spec.command is not None:
            place = os.path.join(self.directory, spec.profile.directory or "")
            arguments = (task.command_line(), dict(spec.profile.environment), place, spec.profile.shell)
            return self.client.submit(way.function, arguments, {}, way.options, heard)
        if spec.by_keyword:
            return self.client.submit(way.function, (), task.arguments, way.options, heard)
        return self.client.submit(way.function, tuple(task.arguments.values()), {}, way.options, heard)

    def _choose(self, task: r.Task) -> Way:
        ways = self._ways[task.transition.name]
        if len(ways) == 1:
            return ways[0]
        node = self.client.node
        slots = {way.name: _slots(way.options.resources, node) for way in ways}
        name = self.performance.choose(task.transition.name, slots)
        self._chosen[task.id] = name
        return next(way for way in ways if way.name == name)

    def learn(self, task: r.Task, seconds: float) -> None:
        """A task took so long."""
        name = self._chosen.pop(task.id, None)
        if name is not None:
            self.performance.ended(task.transition.name, name, seconds)

    def lost(self, task: r.Task) -> None:
        """A task was not finished."""
        name = self._chosen.pop(task.id, None)
        if name is not None:
            self.performance.lost(task.transition.name, name)


def options_of(spec: Transition, wishes: Wishes) -> Options:
    """What the calls of a task ask for; where it says nothing, that is what is wished of all of them."""
    profile = spec.profile
    base = Options(profile.resources, profile.retries, profile.timeout, profile.category)
    if not wishes:
        return base
    wished = Options().changed(wishes)
    said = {name: amount for name, amount in profile.resources.amounts if name != "cores" or profile.cores_declared}
    return Options(
        Resources.of(dict(wished.resources.amounts) | said),
        profile.retries or wished.retries,
        profile.timeout or wished.timeout,
        wished.category if wished.category and profile.category == spec.name else profile.category,
    )


def needs(name: str, resources: Resources) -> Resources:
    """What an implementation of this name asks for, beside what its task declares."""
    amounts = dict(resources.amounts)
    if name in CORE_NAMES:
        return resources
    if name in GPU_NAMES:
        return Resources.of({"gpus": FRACTION} | amounts)
    return requiring(resources, [name])


def _slots(asked: Resources, node: Resources) -> int:
    """How many such tasks a node holds at once."""
    counts = [node.get(name) // amount for name, amount in asked.amounts if amount > 0 and name in ("cores", "gpus")]
    return max(1, min(counts, default=1))
