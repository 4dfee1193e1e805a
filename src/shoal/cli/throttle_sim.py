"""Simulated runs under several throttles: as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.tables import laid_out
from shoal.cli.text import clip
from shoal.engine.expect import Expectation
from shoal.model.quantities import count, show_cores, show_seconds, show_share
from shoal.model.resources import FRACTION, Resources
from shoal.sim.throttle.workflow import Demand, Throttled

MOST_CATEGORIES = 6


def throttles_as_text(
    expected: Expectation, node: Resources, demands: Mapping[str, Demand], found: Sequence[Throttled]
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


def _in_words(demand: Demand, cores: float) -> str:
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
    expected: Expectation, node: Resources, demands: Mapping[str, Demand], found: Sequence[Throttled]
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
