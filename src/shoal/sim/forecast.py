"""Forecasts of a run's time on one node, on clusters (with error bars) and under different throttles.

A forecast is one simulated run with the expected durations. Its error bars are the minimum and maximum of a few more
runs with random durations from measurements: a task without a measurement of its own has the duration of a random task
of its category, and each category is scaled by its ratio in a random earlier run. Without such measurements there are
no error bars.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from random import Random

import msgspec

from shoal.core.graph import Graph, ancestors, upward_lengths
from shoal.core.policies.order import DEFAULT_ORDER
from shoal.core.policies.throttle.readings import CPU
from shoal.core.policies.throttle.registry import Regime
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.resources import FRACTION, Resources
from shoal.core.work import Work, from_graph
from shoal.core.work import upward_lengths as work_lengths
from shoal.errors import InputError
from shoal.execution.learned_sizes import KeptSizes, read_kept
from shoal.execution.session import load
from shoal.ledger.records import RunStarted, decodable
from shoal.ledger.status import RunStatus
from shoal.ledger.workspace import Workspace
from shoal.sim.cluster.result import SimulationResult
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec
from shoal.sim.expected_times import Expectation, MeasuredTimes, TaskTimes, expectation_of, known_of, read_measured
from shoal.sim.predictions import CategoryForecast, Forecast, predict
from shoal.sim.throttled_workflow import TaskDemand, ThrottledRun, ThrottledSimulation

SAMPLES = 5
MOST_SAMPLED = 400_000
"""Maximum number of simulated tasks for error bars. Larger workflows use fewer samples or none."""
NEAR = 1.1
"""A makespan within this factor of the best counts as equally fast."""
PATIENT = 2.0
"""Maximum slowdown, relative to the fastest, that a user accepts for a cheaper run."""
_LITTLE = Resources((("cores", FRACTION // 100),))
"""The allocation of a task that requests nothing, as in a live run."""


class Subject(msgspec.Struct):
    """The workflow or workload of a forecast."""

    name: str
    work: Work
    expected: Expectation | None = None
    """None for a workload, which declares its durations."""

    def sentence(self) -> str:
        """The source of the durations as text."""
        if self.expected is not None:
            return self.expected.sentence()
        return f"{len(self.work):,} declared by the workload"

    def counts(self) -> dict[str, object]:
        """The source of the durations as JSON."""
        if self.expected is not None:
            return self.expected.counts()
        return {"from": "workload", "known": 0, "like_category": 0, "declared": len(self.work), "guessed": 0}


class Prediction(msgspec.Struct, frozen=True):
    """The predicted run on a number of nodes with one policy."""

    policy: str
    nodes: int
    played: SimulationResult
    makespan: float
    shortest: float | None = None
    longest: float | None = None
    """The error bar of the makespan."""
    samples: int = 0

    @property
    def node_hours(self) -> float:
        return self.nodes * self.makespan / 3600


class Advice(msgspec.Struct, frozen=True):
    """Recommended choices among several predictions."""

    fastest: Prediction
    near: Prediction
    """The smallest number of nodes that is nearly as fast."""
    cheapest: Prediction
    """The fewest node hours within `PATIENT` times the fastest makespan."""


def subject_of(expected: Expectation) -> Subject:
    """The tasks that the targets need, as columns; other tasks have duration 0."""
    graph = expected.workflow.graph
    work = from_graph(graph, expected.durations, expected.file_bytes)
    wanted = ancestors(graph, expected.workflow.targets)
    nothing = len(work.profiles) - 1
    for number, profile in enumerate(work.profiles[:nothing]):
        if not profile.resources.amounts:
            work.profiles[number] = msgspec.structs.replace(profile, resources=_LITTLE)
    work = msgspec.structs.replace(
        work,
        seconds=array("d", (length if wanted[task] else 0.0 for task, length in enumerate(work.seconds))),
        category=array("i", (number if wanted[task] else nothing for task, number in enumerate(work.category))),
    )
    return Subject(expected.workflow.path, work, expected)


def with_lengths(work: Work) -> Work:
    """Adds the column that the critical-path order needs."""
    return msgspec.structs.replace(work, upward_length=work_lengths(work))


def knows_spread(expected: Expectation | None) -> bool:
    """Whether there are measurements to draw random durations from."""
    if expected is None:
        return False
    varied = any(len(factors) > 1 for factors in expected.factors.values())
    drawn = expected.like_category and any(len(set(known)) > 1 for known in expected.samples.values())
    return bool(varied or drawn)


def draw_durations(subject: Subject, seed: int) -> Work:
    """The work with random durations from the measurements."""
    expected, work = subject.expected, subject.work
    assert expected is not None
    random = Random(seed)
    factors = {category: random.choice(known) for category, known in expected.factors.items()}
    graph = expected.workflow.graph
    seconds = array("d", work.seconds)
    for task, length in enumerate(seconds):
        if length:
            category = graph.profile_of(task).category
            known = expected.samples.get(category)
            if known and not expected.is_own[task]:
                length = random.choice(known)
            seconds[task] = length * factors.get(category, 1.0)
    return msgspec.structs.replace(work, seconds=seconds)


def predict_all(
    subject: Subject, specs: Sequence[ClusterSpec], policies: Sequence[str], options: SimulationOptions
) -> list[Prediction]:
    """Returns a prediction for each cluster and policy, in this order."""
    expected = subject.expected
    runs = len(specs) * len(policies)
    samples = 0
    if knows_spread(expected):
        samples = min(SAMPLES, MOST_SAMPLED // max(1, runs * len(subject.work)))
    works = [subject.work, *(draw_durations(subject, options.seed + number) for number in range(samples))]
    if options.order == "critical":
        works = [with_lengths(work) for work in works]
    return [_predict(subject, works, spec, policy, options) for spec in specs for policy in policies]


def _predict(
    subject: Subject, works: Sequence[Work], spec: ClusterSpec, policy: str, options: SimulationOptions
) -> Prediction:
    beside = 0.0
    if subject.expected is not None:
        overheads = subject.expected.overheads
        beside = overheads.at_ends
        spec = msgspec.structs.replace(spec, overhead=overheads.per_task)
    options = msgspec.structs.replace(options, policy=policy)
    played = [ClusterRun(work, spec, options).execute() for work in works]
    times = [each.makespan + beside for each in played]
    if len(times) == 1:
        return Prediction(policy, spec.nodes, played[0], times[0])
    return Prediction(policy, spec.nodes, played[0], times[0], min(times), max(times), len(times) - 1)


def on_one_node(expected: Expectation, node: Resources, order: str, done: bytearray | None = None) -> Forecast:
    """Forecast for one node, including overheads; tasks in `done` take no time.

    Overheads occupy cores but are not work: only the makespan includes them.
    """
    graph, overheads = expected.workflow.graph, expected.overheads
    wanted = ancestors(graph, expected.workflow.targets)
    seconds = [
        length if wanted[task] and graph.actions[task] is not None and not (done and done[task]) else 0.0
        for task, length in enumerate(expected.durations)
    ]
    held = [
        length + overheads.per_task if wanted[task] and not (done and done[task]) else 0.0
        for task, length in enumerate(seconds)
    ]
    found = predict(graph, held, node, order, wanted=wanted, input_bytes=expected.input_bytes)
    makespan = found.makespan + overheads.at_ends
    categories = {name: CategoryForecast(row.tasks) for name, row in found.categories.items()}
    work = 0.0
    for task, length in enumerate(seconds):
        if length:
            profile = graph.profile_of(task)
            categories[profile.category].seconds += length
            work += length * profile.resources.get("cores") / FRACTION
    area = work / (node.get("cores") / FRACTION)
    longest = max(upward_lengths(graph, seconds), default=0.0)
    return Forecast(found.tasks, makespan, area / makespan if makespan else 0.0, work, longest, area, categories)


def advise(predictions: Sequence[Prediction]) -> Advice:
    """Selects the recommendations; among equals the smaller number of nodes wins, then the earlier policy."""
    fastest = min(predictions, key=lambda each: (each.makespan, each.nodes))
    near = [each for each in predictions if each.makespan <= NEAR * fastest.makespan]
    smallest = min(near, key=lambda each: (each.nodes, each.makespan))
    patient = [each for each in predictions if each.makespan <= PATIENT * fastest.makespan]
    return Advice(fastest, smallest, min(patient, key=lambda each: (each.node_hours, each.nodes)))


def least_seconds(work: Work, spec: ClusterSpec) -> float:
    """A lower bound on the makespan on that cluster, for any policy."""
    from shoal.sim.lower_bound import Capacity, lower_bound

    kinds = [spec.kind(node) for node in range(spec.nodes)]
    return lower_bound(work, Capacity.of((kind.cores, kind.speed) for kind in kinds)).seconds


MOST_TASKS = 20_000
"""Larger workflows have no forecast in the summary of a run, because it would delay the output."""
ENOUGH = 0.9
"""Minimum fraction of tasks with a measurement of their own or of their category."""


def expected_makespan(workspace: Workspace, state: RunStatus) -> float | None:
    """Expected seconds of a completed run, from what was known before it; None if that was too little."""
    start, end = state.start, state.end
    if start is None or end is None or end.outcome != "ok" or not 0 < start.to_run <= start.total <= MOST_TASKS:
        return None
    measured = read_measured(workspace, before=start.run)
    if not measured.last:
        return None
    there = os.getcwd()
    try:
        os.chdir(workspace.base)
        with redirect_stdout(StringIO()):  # loading executes the workflow file, whose output is not wanted here
            return _predicted(workspace, state, start, measured)
    except (InputError, OSError):
        return None  # the workflow was removed or is being edited
    finally:
        os.chdir(there)


def _predicted(workspace: Workspace, state: RunStatus, start: RunStarted, measured: MeasuredTimes) -> float | None:
    workflow = load(workspace, start.targets)
    graph = workflow.graph
    if not _is_what_ran(graph, state):
        return None
    expected = expectation_of(workflow, *known_of(graph, measured), "ledger", measured)
    if not _knew_enough(expected, state):
        return None
    done = bytearray(b"\1") * len(graph)
    for task in state.names:
        done[task] = 0
    return on_one_node(expected, Resources(tuple(start.node)), DEFAULT_ORDER, done).makespan


def _is_what_ran(graph: Graph, state: RunStatus) -> bool:
    return all(task < len(graph) and decodable(graph.names[task]) == name for task, name in state.names.items())


def _knew_enough(expected: Expectation, state: RunStatus) -> bool:
    graph = expected.workflow.graph
    known = sum(
        bool(expected.is_own[task]) or graph.profile_of(task).category in expected.samples for task in state.names
    )
    return known >= ENOUGH * len(state.names)


def demands_of(expected: Expectation, node: Resources, machine_cores: int) -> dict[str, TaskDemand]:
    """Resource demand by category; `machine_cores` is the size of the machine on which the usage was learned."""
    graph = expected.workflow.graph
    kept, took = KeptSizes(), dict[str, list[TaskTimes]]()
    if expected.origin == "ledger":
        workspace = Workspace(expected.workflow.path)
        kept, took = read_kept(workspace), read_measured(workspace).by_category()
    cores = node.get("cores") / FRACTION
    found: dict[str, TaskDemand] = {}
    for profile in graph.profiles:
        category = profile.category
        if category in found:
            continue
        learned = kept.throttle.get(category)
        if learned is not None and learned.seconds:
            known = expected.samples.get(category) or [learned.seconds]
            found[category] = learned_demand(learned, sum(known) / len(known), machine_cores / cores)
        else:
            declared = profile.resources.get("cores") / FRACTION if profile.declares("cores") else 1.0
            found[category] = TaskDemand({CPU: _measured_cores(took.get(category, ()), declared) / cores})
    return found


def learned_demand(learned: UsageProfile, seconds: float, scale: float) -> TaskDemand:
    """Demand from a learned profile; `seconds` is the expected duration, and the node has `1 / scale` of the machine's
    cores."""
    use = {name: share for name, share in learned.use.items() if share > learned.error.get(name, 1.0)}
    if CPU in use:
        use[CPU] *= scale
    bears = learned.level if learned.dominant is None else 0
    return TaskDemand(use, bears, min(1.0, learned.seconds / seconds) if seconds else 1.0)


def _measured_cores(took: Sequence[TaskTimes], declared: float) -> float:
    seconds = sum(each.seconds for each in took)
    return sum(each.cpu for each in took) / seconds if seconds else declared


def under_throttles(
    expected: Expectation, node: Resources, order: str, regimes: Sequence[Regime], demands: Mapping[str, TaskDemand]
) -> list[ThrottledSimulation]:
    """A simulated run for each throttle regime, including overheads."""
    graph, overheads = expected.workflow.graph, expected.overheads
    wanted = ancestors(graph, expected.workflow.targets)
    durations = [length + overheads.per_task for length in expected.durations]
    runs = [ThrottledRun(graph, durations, node, regime, demands, wanted=wanted, order=order) for regime in regimes]
    found = [run.execute() for run in runs]
    return [msgspec.structs.replace(each, makespan=each.makespan + overheads.at_ends) for each in found]
