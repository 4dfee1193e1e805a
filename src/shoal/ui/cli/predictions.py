"""Predictions on clusters in words, as tables and as data. Pure: what is shown is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.quantities import count, show_bytes, show_cores, show_number, show_seconds, show_share
from shoal.core.resources import FRACTION, Resources
from shoal.sim.cluster.run import SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec
from shoal.sim.expected_times import Expectation
from shoal.sim.forecast import Advice, Prediction, Subject, knows_spread
from shoal.sim.throttle.workflow import TaskDemand, ThrottledSimulation
from shoal.ui.cli.status_tables import laid_out
from shoal.ui.cli.text import clip, table


def run_as_data(
    subject: Subject, spec: ClusterSpec, options: SimulationOptions, predictions: Sequence[Prediction], bound: float
) -> dict[str, Any]:
    """One cluster, for programs; times are in seconds, rates in bytes per second."""
    return {
        **_subject_as_data(subject, spec, options),
        "nodes": spec.nodes,
        "lower_bound": bound,
        "runs": [as_data(each) for each in predictions],
    }


def plan_as_data(
    subject: Subject,
    specs: Sequence[ClusterSpec],
    options: SimulationOptions,
    predictions: Sequence[Prediction],
    advice: Advice,
) -> dict[str, Any]:
    """Several clusters and what to choose, for programs."""
    return {
        **_subject_as_data(subject, specs[0], options),
        "runs": [as_data(each) for each in predictions],
        "advice": {
            "fastest": _choice(advice.fastest),
            "within_10_percent": _choice(advice.near),
            "cheapest_within_twice": _choice(advice.cheapest),
        },
    }


def _choice(prediction: Prediction) -> dict[str, Any]:
    return {
        "nodes": prediction.nodes,
        "policy": prediction.policy,
        "makespan": prediction.makespan,
        "node_hours": prediction.node_hours,
    }


def _subject_as_data(subject: Subject, spec: ClusterSpec, options: SimulationOptions) -> dict[str, Any]:
    return {
        "of": subject.name,
        "cores_per_node": spec.node.cores,
        "order": options.order,
        "submission": options.submission,
        "seed": options.seed,
        "bandwidth": spec.node.link,
        "latency": spec.latency,
        "speed": spec.node.speed,
        "durations": subject.counts(),
    }


def as_data(prediction: Prediction) -> dict[str, Any]:
    """One predicted run."""
    played = prediction.played
    return {
        "policy": prediction.policy,
        "nodes": prediction.nodes,
        "tasks": played.tasks,
        "makespan": prediction.makespan,
        "shortest": prediction.shortest,
        "longest": prediction.longest,
        "samples": prediction.samples,
        "utilisation": played.utilisation,
        "moved": played.moved,
        "from_shared": played.from_shared,
        "reads": played.reads,
        "hits": played.hits,
        "steals": played.steals,
        "stolen": played.stolen,
        "pushed": played.pushed,
        "messages": played.messages,
        "node_hours": prediction.node_hours,
    }


def run_as_text(
    subject: Subject, spec: ClusterSpec, options: SimulationOptions, predictions: Sequence[Prediction], bound: float
) -> list[str]:
    """One cluster, for people."""
    tasks = predictions[0].played.tasks
    rows = [("policy", "makespan", "utilisation", "moved", "from shared", "hits", "steals", "node hours")]
    for each in predictions:
        played = each.played
        rows.append(
            (
                each.policy,
                show_makespan(each),
                show_share(played.utilisation),
                show_bytes(played.moved),
                show_bytes(played.from_shared),
                show_share(played.hits, played.reads) if played.reads else "-",
                f"{played.steals:,}",
                show_number(each.node_hours),
            )
        )
    on = f"{count(spec.nodes, 'node')} of {count(spec.node.cores, 'core')}"
    return [
        f"{subject.name}: {count(tasks, 'task')} on {on}, order {options.order}",
        f"durations: {subject.sentence()}",
        f"lower bound: {show_seconds(bound)}",
        *table(rows),
        *remarks(subject, predictions),
    ]


def plan_as_text(
    subject: Subject,
    specs: Sequence[ClusterSpec],
    options: SimulationOptions,
    predictions: Sequence[Prediction],
    advice: Advice,
) -> list[str]:
    """A table over numbers of nodes, and what to choose."""
    cores = count(specs[0].node.cores, "core")
    rows = [("nodes", "policy", "makespan", "utilisation", "moved", "node hours")]
    for each in predictions:
        rows.append(
            (
                f"{each.nodes:,}",
                each.policy,
                show_makespan(each),
                show_share(each.played.utilisation),
                show_bytes(each.played.moved),
                show_number(each.node_hours),
            )
        )
    return [
        f"{subject.name}: {count(predictions[0].played.tasks, 'task')} on nodes of {cores}, order {options.order}",
        f"durations: {subject.sentence()}",
        *table(rows),
        recommend(advice),
        *remarks(subject, predictions),
    ]


def show_makespan(prediction: Prediction) -> str:
    """With its error bars, if there are any: `41.2 s (40.1 s to 43.0 s)`."""
    text = show_seconds(prediction.makespan)
    if prediction.shortest is None or prediction.longest is None:
        return text
    return f"{text} ({show_seconds(prediction.shortest)} to {show_seconds(prediction.longest)})"


def recommend(advice: Advice) -> str:
    """What to choose, in one sentence."""
    near, fastest, cheapest = advice.near, advice.fastest, advice.cheapest
    if near == fastest:
        first = f"take {_named(near)}: with {show_seconds(near.makespan)} the fastest"
    else:
        first = (
            f"take {_named(near)}: {show_seconds(near.makespan)} is within 10 % of the best time, "
            f"{show_seconds(fastest.makespan)} on {_named(fastest)}"
        )
    hours = f"{show_number(cheapest.node_hours)} node hours"
    if cheapest == near:
        return f"{first}, and with {hours} the cheapest within twice that time"
    return (
        f"{first}; the cheapest within twice the best time is {_named(cheapest)}, "
        f"{hours} in {show_seconds(cheapest.makespan)}"
    )


def _named(prediction: Prediction) -> str:
    return f"{count(prediction.nodes, 'node')} with {prediction.policy}"


def remarks(subject: Subject, predictions: Sequence[Prediction]) -> list[str]:
    """What the numbers are worth."""
    expected = subject.expected
    if expected is None:
        return []
    known = expected.known + expected.like_category
    unknown = expected.guessed + expected.declared
    found = []
    if unknown > known:
        found.append("most durations are not measured: compare the times with each other, do not rely on them")
    samples = predictions[0].samples
    if samples:
        found.append(f"error bars: shortest and longest of {samples + 1} runs, durations drawn from what was measured")
    elif knows_spread(expected):
        found.append("error bars: none, the workflow is too large to be simulated so often")
    elif known:
        found.append("error bars: none, it is not known how much durations differ between runs")
    return found


MOST_CATEGORIES = 6


def throttles_as_text(
    expected: Expectation, node: Resources, demands: Mapping[str, TaskDemand], found: Sequence[ThrottledSimulation]
) -> list[str]:
    """One line for each throttle, after what is known of the tasks."""
    cores = node.get("cores") / FRACTION
    on = show_cores(cores)
    tasks = sum(action is not None for action in expected.workflow.graph.actions)
    present = [name for name in demands if any(name in run.together for run in found)]
    names = present[:MOST_CATEGORIES]
    heads = ("THROTTLE", "MAKESPAN", "PROCESSORS", "MOST", *(f"{clip(name, 30)} AT ONCE" for name in names))
    rows = [
        (
            run.throttle,
            show_seconds(run.makespan),
            show_share(run.processors),
            f"{run.most:,}",
            *(f"{run.together.get(name, 0.0):.1f}" for name in names),
        )
        for run in found
    ]
    left = len(present) - len(names)
    more = [f"and {left} more categories (--json lists all)"] if left > 0 else []
    return [
        f"{expected.workflow.path}: {count(tasks, 'task')} on {on}",
        f"durations: {expected.sentence()}",
        *(f"{name}: {_in_words(demands[name], cores)}" for name in names),
        *laid_out(heads, rows),
        *more,
    ]


def _in_words(demand: TaskDemand, cores: float) -> str:
    """What a task uses, for people."""
    parts = [
        show_cores(share * cores) if name == "cpu" else f"{show_share(share)} of the {name}"
        for name, share in demand.use.items()
        if share > 0
    ]
    if demand.bears:
        parts.append(f"something outside that bears {demand.bears:,}")
    return "a task uses " + (", ".join(parts) or "nothing that is measured")


def throttles_as_data(
    expected: Expectation, node: Resources, demands: Mapping[str, TaskDemand], found: Sequence[ThrottledSimulation]
) -> dict[str, Any]:
    """The same for programs; times are in seconds."""
    return {
        "workflow": expected.workflow.path,
        "cores": node.get("cores") / FRACTION,
        "durations": expected.counts(),
        "demands": {
            name: {"use": dict(each.use), "bears": each.bears or None, "speed": each.speed}
            for name, each in demands.items()
        },
        "runs": [
            {
                "throttle": run.throttle,
                "makespan": run.makespan,
                "processors": run.processors,
                "most": run.most,
                "together": run.together,
            }
            for run in found
        ],
    }
