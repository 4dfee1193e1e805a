"""What a plan comes to, counted for people and programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.core.quantities import count
from shoal.ledger.up_to_date import ADOPT_OR_OVERWRITE, NOT_MADE_HERE, Plan, Reason
from shoal.ui.cli.text import some, table

SHORT_PLAN = 40


_PHRASES = {
    Reason.NEW: "not done yet",
    Reason.FAILED: "last attempt failed",
    Reason.CHANGED: "command changed",
    Reason.OUTPUT_MISSING: "output is missing",
    Reason.OUTPUT_CHANGED: "output changed after it was made",
    Reason.INPUT_CHANGED: "input changed",
    Reason.NEEDS_ANOTHER: "depends on a task that runs",
    Reason.INTERRUPTED: "interrupted last time",
    Reason.FORCED: "asked for with --force",
}


_OF_TIME = {
    Reason.OUTPUT_CHANGED: "output has a different modification time than when it was made",
    Reason.INPUT_CHANGED: "input has a different modification time than when it was read",
}
"""Where the file has the size that it had: whether it changed is not known."""


def count_up_to_date(plan: Plan) -> int:
    """Tasks that would run something and need not."""
    return sum(plan.graph.actions[task] is not None for task in plan.up_to_date())


def _count_phrases(plan: Plan, to_run: list[int]) -> Counter[str]:
    """How many tasks run for each reason; a phrase is looked up once per reason, for there may be a million tasks."""
    counts = Counter(map(plan.reasons.__getitem__, to_run))
    found = Counter({_PHRASES[Reason(reason)]: number for reason, number in counts.items()})
    for task in plan.other_time:
        if plan.runs(task) and plan.graph.actions[task] is not None:
            reason = Reason(plan.reasons[task])
            found[_PHRASES[reason]] -= 1
            found[_OF_TIME[reason]] += 1
    return +found


def describe_plan(plan: Plan, every_task: bool) -> str:
    """What would run and why, as text; each task with its reason if there are few or all are asked for."""
    to_run, up_to_date = plan.to_run(), count_up_to_date(plan)
    if not to_run:
        are = "is" if up_to_date == 1 else "are"
        return f"nothing to do: {count(up_to_date, 'task')} {are} up to date"
    lines = [f"{count(len(to_run), 'task')} would run, {up_to_date:,} up to date"]
    if plan.unknown:
        lines.append(f"'shoal run' refuses this: {_unknown(plan)}; {ADOPT_OR_OVERWRITE}")
    reasons = _count_phrases(plan, to_run)
    categories = Counter(plan.graph.profile_of(task).category for task in to_run)
    lines += ["why:", *table((phrase, f"{number:,}") for phrase, number in reasons.most_common())]
    lines += ["categories:", *table((name, f"{number:,}") for name, number in categories.most_common(20))]
    if len(categories) > 20:
        lines.append(f"  and {len(categories) - 20} more")
    if every_task or len(to_run) < SHORT_PLAN:
        lines += ["tasks:", *(f"  {plan.graph.names[task]}: {plan.why(task)}" for task in to_run)]
    else:
        lines.append("'shoal plan --verbose' lists every task")
    return "\n".join(lines)


def _unknown(plan: Plan) -> str:
    names = [plan.graph.file_names[file] for files in plan.unknown.values() for file in files]
    if len(names) == 1:
        return f"{names[0]!r} {NOT_MADE_HERE}"
    return f"{len(names):,} outputs exist, but were not made by this workflow ({some(names)})"


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """The plan as data, with every task that would run."""
    graph, to_run = plan.graph, plan.to_run()
    return {
        "workflow": graph.source,
        "to_run": len(to_run),
        "up_to_date": count_up_to_date(plan),
        "unknown": [graph.file_names[file] for files in plan.unknown.values() for file in files],
        "tasks": [
            {
                "name": graph.names[task],
                "category": graph.profile_of(task).category,
                "reason": Reason(plan.reasons[task]).name.lower(),
                "why": plan.why(task),
                "unknown": [graph.file_names[file] for file in plan.unknown.get(task, ())],
            }
            for task in to_run
        ],
    }
