"""The tables of `shoal status --categories`, `--tasks` and `--nodes`, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.cli.text import show_seconds
from shoal.engine.follow import CategoryState, Follower, Phase
from shoal.model.resources import FRACTION, show_bytes

CATEGORY_HEADS = ("CATEGORY", "RUNNING", "WAITING", "FIT-NODES", "MAX-CORES", "MAX-MEMORY", "MAX-DISK",
                  "FIRST", "RETRIES", "WASTE")  # fmt: skip
TASK_HEADS = ("ID", "STATE", "CATEGORY", "ATTEMPTS", "CORES", "MEMORY", "LIMIT", "WALL", "NAME")
NODE_HEADS = ("HOST", "COMPLETED", "RUNNING", "CORES", "MEMORY", "DISK")


def laid_out(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest entry; the first and the last to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def categories_as_data(follower: Follower, phase: Phase) -> list[dict[str, Any]]:
    """One object per category; sizes in bytes."""
    state = follower.state
    node = dict(state.start.node) if state.start else {}
    found = []
    for name, category in sorted(state.categories.items()):
        over = category.done + category.failed
        running = category.running if phase is Phase.RUNNING else 0
        found.append(
            {
                "category": name,
                "running": running,
                "waiting": max(0, category.planned - over - running) if phase is Phase.RUNNING else 0,
                "done": category.done,
                "failed": category.failed,
                "fit_nodes": int(all(amount <= node.get(key, 0) for key, amount in category.declared.items())),
                "cores": _maximum(category, "cores"),
                "memory": _maximum(category, "memory"),
                "disk": _maximum(category, "disk"),
                "first_memory": category.first_size or None,
                "retries": category.retries,
                "waste": round(1 - category.used / category.allocated, 3) if category.allocated else None,
            }
        )
    return found


def _maximum(category: CategoryState, name: str) -> dict[str, Any]:
    """`declared`, the largest that was `seen`, or the largest that was `exceeded` when nothing larger is known."""
    declared = category.declared.get(name)
    if name == "cores":
        seen: float = round(category.most_cores, 3)
        return {"declared": None if declared is None else declared / FRACTION, "seen": seen or None, "exceeded": None}
    if name == "memory":
        exceeded = category.exhausted_at if category.exhausted_at >= category.most_memory else 0
        return {"declared": declared, "seen": category.most_memory or None, "exceeded": exceeded or None}
    return {"declared": declared, "seen": category.most_disk or None, "exceeded": None}


def category_table(follower: Follower, phase: Phase) -> list[str]:
    """As users of Work Queue know it: a number was declared, `~` seen, `>` exceeded; then what was learned."""
    rows = []
    for data in categories_as_data(follower, phase):
        waste = data["waste"]
        rows.append(
            (
                data["category"],
                str(data["running"]),
                str(data["waiting"]),
                str(data["fit_nodes"]),
                _marked(data["cores"], lambda amount: f"{amount:g}"),
                _marked(data["memory"], show_bytes),
                _marked(data["disk"], show_bytes),
                show_bytes(data["first_memory"]) if data["first_memory"] else "-",
                str(data["retries"]),
                f"{waste:.0%}" if waste is not None else "-",
            )
        )
    return laid_out(CATEGORY_HEADS, rows)


def _marked(found: dict[str, Any], show: Any) -> str:
    if found["declared"] is not None:
        return str(show(found["declared"]))
    if found["exceeded"] is not None:
        return f">{show(found['exceeded'])}"
    return f"~{show(found['seen'])}" if found["seen"] is not None else "na"


def tasks_as_data(follower: Follower, phase: Phase) -> list[dict[str, Any]]:
    """Every task that was planned, with how it stands and what its last attempt used."""
    state = follower.state
    found = []
    for task, name in state.names.items():
        last, started = state.last.get(task), state.running.get(task)
        how = "waiting" if phase is Phase.RUNNING else "not run"
        if task in state.done:
            how = "done"
        elif task in state.failed:
            how = "failed"
        elif started is not None and phase is Phase.RUNNING:
            how = "running"
        seconds = last.ended - last.started if last else 0.0
        found.append(
            {
                "task": task,
                "name": name,
                "state": how,
                "category": state.category_of.get(task, ""),
                "attempts": started.attempt if started else last.attempt if last else 0,
                "cores": round((last.user + last.system) / seconds, 3) if last and seconds > 0 else None,
                "memory": (max(last.max_rss, last.usage.tree_memory) or None) if last else None,
                "memory_limit": (last.memory_limit or None) if last else None,
                "seconds": round(seconds, 6) if last else None,
                "message": last.message if last and how == "failed" else "",
            }
        )
    return found


def task_table(follower: Follower, phase: Phase) -> list[str]:
    rows = []
    for data in tasks_as_data(follower, phase):
        rows.append(
            (
                str(data["task"]),
                data["state"],
                data["category"],
                str(data["attempts"]),
                f"{data['cores']:.2f}" if data["cores"] is not None else "-",
                show_bytes(data["memory"]) if data["memory"] else "-",
                show_bytes(data["memory_limit"]) if data["memory_limit"] else "-",
                show_seconds(data["seconds"]) if data["seconds"] is not None else "-",
                data["name"],
            )
        )
    return laid_out(TASK_HEADS, rows)


def nodes_as_data(follower: Follower, phase: Phase) -> list[dict[str, Any]]:
    """The machine of the run; there is one."""
    state = follower.state
    if state.start is None:
        return []
    node = dict(state.start.node)
    running = len(state.running) if phase is Phase.RUNNING else 0
    return [
        {
            "host": state.start.host,
            "completed": len(state.done),
            "running": running,
            "cores": node.get("cores", 0) / FRACTION,
            "memory": node.get("memory"),
            "disk": node.get("disk"),
        }
    ]


def node_table(follower: Follower, phase: Phase) -> list[str]:
    rows = []
    for data in nodes_as_data(follower, phase):
        sizes = [show_bytes(data[name]) if data[name] else "-" for name in ("memory", "disk")]
        rows.append((data["host"], str(data["completed"]), str(data["running"]), f"{data['cores']:g}", *sizes))
    return laid_out(NODE_HEADS, rows)
