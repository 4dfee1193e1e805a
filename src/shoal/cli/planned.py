"""What a plan comes to, counted for people and programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.cli.text import count, table
from shoal.plan.decide import Plan, Reason

SHORT_PLAN = 40
_PHRASES = {
    Reason.NEW: "not done yet",
    Reason.FAILED: "failed last time",
    Reason.CHANGED: "command changed",
    Reason.OUTPUT_MISSING: "output is missing",
    Reason.OUTPUT_CHANGED: "output is not as it was left",
    Reason.INPUT_CHANGED: "input changed",
    Reason.NEEDS_ANOTHER: "needs another that runs",
    Reason.FORCED: "asked for with --force",
}


def count_up_to_date(plan: Plan) -> int:
    """Tasks that would run something and need not."""
    return sum(plan.graph.actions[task] is not None for task in plan.up_to_date())


def describe_plan(plan: Plan, every_task: bool) -> str:
    """What would run and why, as text; each task with its reason if there are few or all are asked for."""
    to_run, up_to_date = plan.to_run(), count_up_to_date(plan)
    if not to_run:
        are = "is" if up_to_date == 1 else "are"
        return f"nothing to do: {count(up_to_date, 'task')} {are} up to date"
    lines = [f"{count(len(to_run), 'task')} would run, {up_to_date:,} up to date"]
    reasons = Counter(Reason(plan.reasons[task]) for task in to_run)
    categories = Counter(plan.graph.profile_of(task).category for task in to_run)
    lines += ["why:", *table((_PHRASES[reason], f"{number:,}") for reason, number in reasons.most_common())]
    lines += ["categories:", *table((name, f"{number:,}") for name, number in categories.most_common(20))]
    if len(categories) > 20:
        lines.append(f"  and {len(categories) - 20} more")
    if every_task or len(to_run) < SHORT_PLAN:
        lines += ["tasks:", *(f"  {plan.graph.names[task]}: {plan.why(task)}" for task in to_run)]
    else:
        lines.append("--verbose lists every task")
    return "\n".join(lines)


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """The same for programs, with every task that would run."""
    graph, to_run = plan.graph, plan.to_run()
    return {
        "workflow": graph.source,
        "to_run": len(to_run),
        "up_to_date": count_up_to_date(plan),
        "tasks": [
            {
                "name": graph.names[task],
                "category": graph.profile_of(task).category,
                "reason": Reason(plan.reasons[task]).name.lower(),
                "why": plan.why(task),
            }
            for task in to_run
        ],
    }
