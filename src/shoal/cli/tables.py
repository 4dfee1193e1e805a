"""The tables of `shoal status --categories`, `--tasks` and `--nodes`, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.text import clip
from shoal.engine.costs import CategoryState, cores_used
from shoal.engine.follow import Follower, Phase
from shoal.engine.sizes import Shown, read_kept
from shoal.model.quantities import show_bytes, show_number, show_seconds
from shoal.model.resources import BYTE_RESOURCES, FRACTION
from shoal.policy.sizing.panel import SIZED, Durations

CATEGORY_HEADS = ("CATEGORY", "RUNNING", "WAITING", "FIT", "MAX-CORES", "MAX-MEMORY", "MAX-DISK", "GPUS", "WALL",
                  "FIRST", "RETRIES", "WASTE")  # fmt: skip
WIDEST = 120
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
    """One object per category; sizes in bytes, times in seconds."""
    state = follower.state
    node = dict(state.start.node) if state.start else {}
    kept = read_kept(follower.workspace)
    found = []
    for name, category in sorted(state.categories.items()):
        running = state.running_of(name) if phase is Phase.RUNNING else 0
        shown = kept.shown.get(name, {})
        found.append(
            {
                "category": name,
                "running": running,
                "waiting": max(0, state.left_of(name) - running) if phase is Phase.RUNNING else 0,
                "done": category.done,
                "failed": category.failed,
                "fit_nodes": int(all(amount <= node.get(key, 0) for key, amount in category.declared.items())),
                **{resource: _maximum(category, resource, shown.get(resource)) for resource in (*SIZED, "gpus")},
                "wall": _wall(category, kept.wall.get(name)),
                "learned": _learned(shown),
                "first_memory": category.first_size or None,
                "retries": category.retries,
                "waste": round(1 - category.used / category.allocated, 3) if category.allocated else None,
            }
        )
    return found


def _maximum(category: CategoryState, name: str, shown: Shown | None) -> dict[str, Any]:
    """`declared`, the largest that was `seen`, or the largest that was `exceeded` when nothing larger is known.

    Of GPUs nothing is seen: they cannot be measured.
    """
    declared = category.declared.get(name)
    if declared is not None and name not in BYTE_RESOURCES:
        return {"declared": declared / FRACTION, "seen": _seen(category, name), "exceeded": None}
    exceeded = category.exhausted_at if name == "memory" and category.exhausted_at >= category.most_memory else 0
    if shown is not None:
        exceeded = shown.exceeded
    return {"declared": declared, "seen": _seen(category, name), "exceeded": exceeded or None}


def _seen(category: CategoryState, name: str) -> float | None:
    seen = {"cores": round(category.most_cores, 3), "memory": category.most_memory, "disk": category.most_disk}
    return seen.get(name) or None


def _wall(category: CategoryState, kept: Durations | None) -> dict[str, Any]:
    """The longest task that was seen, and how long the next one is expected to take; from earlier runs if need be."""
    known = kept or Durations()
    over = category.done + category.failed
    expected = known.mean if known.tasks else category.spent / over if over else 0.0
    return {"seen": round(known.largest, 6) or None, "expected": round(expected, 6) or None}


def _learned(shown: Mapping[str, Shown]) -> dict[str, Any]:
    """What the next first attempt gets of each resource that is learned, and how well that went."""
    found: dict[str, Any] = {}
    for name in SIZED:
        row = shown.get(name)
        if row is not None:
            first = row.first if name in BYTE_RESOURCES else row.first / FRACTION
            waste = None if row.waste is None else round(row.waste, 3)
            found[name] = {"first": first, "retries": row.retries, "waste": waste}
    return found


def category_table(follower: Follower, phase: Phase) -> list[str]:
    """As users of Work Queue know it: a number was declared, `~` seen, `>` exceeded; then what was learned.

    FIRST and WASTE (in percent) are of cores, memory and disk, in this order.
    """
    rows = []
    for data in categories_as_data(follower, phase):
        learned = data["learned"]
        firsts = [learned.get(name, {}).get("first") for name in SIZED]
        firsts[1] = firsts[1] or data["first_memory"]
        wastes = [learned.get(name, {}).get("waste") for name in SIZED]
        wastes[1] = data["waste"] if data["waste"] is not None else wastes[1]
        rows.append(
            (
                data["category"],
                str(data["running"]),
                str(data["waiting"]),
                str(data["fit_nodes"]),
                _marked(data["cores"], show_number),
                _marked(data["memory"], _short),
                _marked(data["disk"], _short),
                _marked(data["gpus"], show_number),
                f"~{show_seconds(data['wall']['seen'])}" if data["wall"]["seen"] else "na",
                "/".join(["-" if firsts[0] is None else show_number(firsts[0]), *map(_short, firsts[1:])]),
                str(data["retries"]),
                "/".join("-" if waste is None else f"{100 * waste:.0f}" for waste in wastes),
            )
        )
    others = [max(len(row[at]) for row in (CATEGORY_HEADS, *rows)) + 2 for at in range(1, len(CATEGORY_HEADS))]
    room = max(len(CATEGORY_HEADS[0]), WIDEST - sum(others))
    return laid_out(CATEGORY_HEADS, [(clip(row[0], room), *row[1:]) for row in rows])


def _short(amount: float | None) -> str:
    """`256M`, `1.5G`; `-` for nothing."""
    return show_bytes(amount).replace(" ", "").removesuffix("iB") if amount else "-"


def _marked(found: dict[str, Any], show: Any) -> str:
    if found["declared"] is not None:
        return str(show(found["declared"]))
    if found["exceeded"] is not None:
        return f">{show(found['exceeded'])}"
    return f"~{show(found['seen'])}" if found["seen"] is not None else "na"


def tasks_as_data(follower: Follower, phase: Phase) -> list[dict[str, Any]]:
    """Every task, with how it stands and what its last attempt used; of those that were planned the name is known."""
    state = follower.state
    found, lost = [], state.lost()
    unplanned = {task: f"task {task}" for task in state.last if task not in state.names}
    for task, name in (state.names | unplanned).items():
        last, started = state.last.get(task), state.running.get(task)
        how = {Phase.RUNNING: "not started", Phase.AWAY: "on the cluster"}.get(phase, "not run")
        if phase is Phase.RUNNING and task in lost:
            how = "cannot run"
        if task in state.done:
            how = "done"
        elif task in state.failed:
            how = "failed"
        elif started is not None and phase is Phase.RUNNING:
            how = "running"
        elif task in state.unwanted:
            how = "cancelled"
        seconds = last.ended - last.started if last else 0.0
        found.append(
            {
                "task": task,
                "name": name,
                "state": how,
                "category": state.category_of.get(task, ""),
                "attempts": state.attempts.get(task, 0) + (started is not None),
                "cores": round(cores_used(last), 3) if last and seconds > 0 else None,
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
                show_number(data["cores"]) if data["cores"] is not None else "-",
                show_bytes(data["memory"]) if data["memory"] else "-",
                show_bytes(data["memory_limit"]) if data["memory_limit"] else "-",
                show_seconds(data["seconds"]) if data["seconds"] is not None else "-",
                data["name"],
            )
        )
    return laid_out(TASK_HEADS, rows)


def nodes_as_data(follower: Follower, phase: Phase) -> list[dict[str, Any]]:
    """The machine of the run, or the nodes of the cluster that have taken part in it."""
    state = follower.state
    if state.start is None:
        return []
    if not state.is_cluster():
        running = state.running_now() if phase is Phase.RUNNING else 0
        return [_node(state.start.host, len(state.done), running, dict(state.start.node))]
    found = []
    for number, node in state.nodes.items():
        running = (node.stands.running or 0) if node.stands is not None and phase is Phase.RUNNING else 0
        found.append(_node(node.name, state.done_on.get(number, 0), running, node.resources))
    return found


def _node(host: str, completed: int, running: int, there: Mapping[str, int]) -> dict[str, Any]:
    return {
        "host": host,
        "completed": completed,
        "running": running,
        "cores": there.get("cores", 0) / FRACTION,
        "memory": there.get("memory"),
        "disk": there.get("disk"),
    }


def node_table(follower: Follower, phase: Phase) -> list[str]:
    rows = []
    for data in nodes_as_data(follower, phase):
        sizes = [show_bytes(data[name]) if data[name] else "-" for name in ("memory", "disk")]
        rows.append((data["host"], str(data["completed"]), str(data["running"]), show_number(data["cores"]), *sizes))
    return laid_out(NODE_HEADS, rows)
