"""The output of `shoal status` as text and data: headline, counts, tables of categories, tasks, nodes and throttle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.policies.sizing.adviser import SIZED, Durations
from shoal.core.quantities import (
    count,
    show_bytes,
    show_change,
    show_cores,
    show_number,
    show_progress,
    show_rate,
    show_seconds,
    show_share,
    time_left,
)
from shoal.core.resources import BYTE_RESOURCES, FRACTION
from shoal.execution.learned_sizes import ShownSize, read_kept
from shoal.ledger.cluster_notes import GIVE_UP
from shoal.ledger.records import TASKS_CANCELLED, TaskStarted, ThrottleDecided, decodable, decodable_parts
from shoal.ledger.status import CategoryState, Follower, RunPhase, RunStatus, cores_used
from shoal.ui.cli.text import clip

if TYPE_CHECKING:
    from shoal.cluster.session import SubmittedRun


CATEGORY_HEADS = ("CATEGORY", "RUNNING", "WAITING", "FIT", "MAX-CORES", "MAX-MEMORY", "MAX-DISK", "GPUS", "WALL",
                  "FIRST", "RETRIES", "WASTE")  # fmt: skip
WIDEST = 120
TASK_HEADS = ("ID", "STATE", "CATEGORY", "ATTEMPTS", "CORES", "MEMORY", "LIMIT", "WALL", "NAME")
NODE_HEADS = ("HOST", "COMPLETED", "RUNNING", "CORES", "MEMORY", "DISK")


def laid_out(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats columns as wide as their widest entry: the first and the last left-aligned, the others right-aligned."""
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def categories_as_data(follower: Follower, phase: RunPhase) -> list[dict[str, Any]]:
    """One object per category; sizes in bytes, times in seconds."""
    state = follower.state
    node = dict(state.start.node) if state.start else {}
    kept = read_kept(follower.workspace)
    found = []
    for name, category in sorted(state.categories.items()):
        running = state.running_of(name) if phase is RunPhase.RUNNING else 0
        shown = kept.shown.get(name, {})
        found.append(
            {
                "category": name,
                "running": running,
                "waiting": max(0, state.left_of(name) - running) if phase is RunPhase.RUNNING else 0,
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


def _maximum(category: CategoryState, name: str, shown: ShownSize | None) -> dict[str, Any]:
    """`declared`; else the largest amount `seen`; else, if nothing larger is known, the largest amount `exceeded`.

    GPUs have no `seen` amount, because their use is not measured.
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
    """Longest task seen and expected duration of the next one, from earlier runs if necessary."""
    known = kept or Durations()
    over = category.done + category.failed
    expected = known.mean if known.tasks else category.spent / over if over else 0.0
    return {"seen": round(known.largest, 6) or None, "expected": round(expected, 6) or None}


def _learned(shown: Mapping[str, ShownSize]) -> dict[str, Any]:
    """Size of the next first attempt for each estimated resource, and how well the estimates fitted so far."""
    found: dict[str, Any] = {}
    for name in SIZED:
        row = shown.get(name)
        if row is not None:
            first = row.first if name in BYTE_RESOURCES else row.first / FRACTION
            waste = None if row.waste is None else round(row.waste, 3)
            found[name] = {"first": first, "retries": row.retries, "waste": waste}
    return found


def category_table(follower: Follower, phase: RunPhase) -> list[str]:
    """The table in the notation of Work Queue: a plain number was declared, `~` seen, `>` exceeded; then the estimates.

    FIRST and WASTE (in percent) list cores, memory and disk, in this order.
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


def tasks_as_data(follower: Follower, phase: RunPhase) -> list[dict[str, Any]]:
    """Every task with its state and the resource usage of its last attempt. Only planned tasks have a name."""
    state = follower.state
    found, lost = [], state.lost()
    unplanned = {task: f"task {task}" for task in state.last if task not in state.names}
    for task, name in (state.names | unplanned).items():
        last, started = state.last.get(task), state.running.get(task)
        how = {RunPhase.RUNNING: "not started", RunPhase.AWAY: "on the cluster"}.get(phase, "not run")
        if phase is RunPhase.RUNNING and task in lost:
            how = "cannot run"
        if task in state.done:
            how = "done"
        elif task in state.failed:
            how = "failed"
        elif started is not None and phase is RunPhase.RUNNING:
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


def task_table(follower: Follower, phase: RunPhase) -> list[str]:
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


def nodes_as_data(follower: Follower, phase: RunPhase) -> list[dict[str, Any]]:
    """The machine of the run, or the cluster nodes that took part in it."""
    state = follower.state
    if state.start is None:
        return []
    if not state.is_cluster():
        running = state.running_now() if phase is RunPhase.RUNNING else 0
        return [_node(state.start.host, len(state.done), running, dict(state.start.node))]
    found = []
    for number, node in state.nodes.items():
        running = (
            (node.current_report.running or 0) if node.current_report is not None and phase is RunPhase.RUNNING else 0
        )
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


def node_table(follower: Follower, phase: RunPhase) -> list[str]:
    rows = []
    for data in nodes_as_data(follower, phase):
        sizes = [show_bytes(data[name]) if data[name] else "-" for name in ("memory", "disk")]
        rows.append((data["host"], str(data["completed"]), str(data["running"]), show_number(data["cores"]), *sizes))
    return laid_out(NODE_HEADS, rows)


HEADS = ("TIME", "CATEGORY", "CAP", "RUNNING", "READY", "STATE", "RESOURCE", "USE", "RATE", "WHY")
ALL = "(all)"


def throttle_lines(state: RunStatus) -> list[str]:
    """How many tasks of each category may run now."""
    rows = [_line(state, record) for record in state.throttle]
    return ["throttle:", *rows] if rows else []


def _line(state: RunStatus, record: ThrottleDecided) -> str:
    if not record.category:
        return f"  {state.running_now():,} run, {_cap(record)} may ({record.state})"
    where = f" on {record.node}" if record.node else ""
    running = record.running if record.node else state.running_of(record.category)
    words = [f"  {record.category}{where}: {running:,} run, {_cap(record)} may ({record.state})"]
    if record.dominant:
        words.append(f"{record.dominant} {show_share(record.use)} in use")
    if record.rate:
        words.append(show_rate(record.rate))
    return ", ".join(words)


def _cap(record: ThrottleDecided) -> str:
    return "any number" if record.cap < 0 else f"{record.cap:,}"


def throttle_as_data(state: RunStatus) -> list[dict[str, Any]]:
    """The latest decision for each category."""
    return [_as_data(record) for record in state.throttle]


def throttle_history(state: RunStatus) -> list[dict[str, Any]]:
    """All decisions in order of time."""
    return [_as_data(record) for record in state.throttle.decisions]


def _as_data(record: ThrottleDecided) -> dict[str, Any]:
    return {
        "time": record.time,
        "node": record.node or None,
        "category": record.category or None,
        "cap": None if record.cap < 0 else record.cap,
        "running": record.running,
        "waiting": record.waiting,
        "state": record.state,
        "dominant": record.dominant or None,
        "use": round(record.use, 4),
        "rate": round(record.rate, 4),
        "reason": record.reason,
    }


def throttle_table(state: RunStatus) -> list[str]:
    """One row per decision or report of the throttle; times are relative to the start of the run."""
    if not state.throttle:
        return ["the latest run has no throttle decisions"]
    began = state.start.time if state.start else state.throttle.decisions[0].time
    rows = []
    for record in state.throttle.decisions:
        rows.append(
            (
                show_seconds(max(0.0, record.time - began)),
                " on ".join(part for part in (record.category or ALL, record.node) if part),
                "-" if record.cap < 0 else str(record.cap),
                str(record.running),
                str(record.waiting),
                record.state,
                record.dominant or "-",
                show_share(record.use) if record.dominant else "-",
                show_rate(record.rate),
                record.reason,
            )
        )
    return laid_out(HEADS, rows)


MOST_SHOWN = 10


def show_moment(moment: float, now: float) -> str:
    """Formats a time of today without the date, any other with the date."""
    then = time.localtime(moment)
    same_day = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def headline(name: str, follower: Follower, phase: RunPhase, now: float) -> str:
    """One line: the workflow and the outcome of its latest run."""
    state = follower.state
    if phase is RunPhase.NEVER or state.start is None:
        return f"{name}: no run is recorded" if phase is RunPhase.NEVER else f"{name}: a run is starting"
    if phase is RunPhase.AWAY:
        since = show_moment(state.start.time, now)
        return f"{name}: on a cluster since {since}, not followed; 'shoal attach' follows it"
    began = state.start.time
    done = f"{len(state.done):,} of {count(state.to_run(), 'task')} done"
    if phase is RunPhase.RUNNING:
        who = follower.holder
        by = f" by process {who.pid} on {who.host}" if who and who.pid else ""
        return f"{name}: running for {show_seconds(max(now, state.last_time) - began)}{by}, {done}"
    if state.end is None:
        return f"{name}: killed at about {show_moment(state.last_time, now)}, {done}; 'shoal run' continues it"
    if not state.to_run() and state.up_to_date():
        return f"{name}: ended at {show_moment(state.last_time, now)}, {_nothing_to_do(state.up_to_date())}"
    how = {"ok": "everything was made", "failed": "with failures"}.get(state.end.outcome, state.end.outcome)
    if how == "with failures" and not state.failed and state.cancelled():  # as earlier versions have recorded it
        how = TASKS_CANCELLED
    took = show_seconds(state.last_time - began)
    return f"{name}: ended at {show_moment(state.last_time, now)} after {took} ({how}), {done}"


def idle_line(state: RunStatus, now: float) -> list[str]:
    """Reports a later run that had nothing to do; the output describes the last run that executed tasks."""
    if state.idle is None:
        return []
    return [f"run again at {show_moment(state.idle.time, now)}: {_nothing_to_do(state.idle.total)}"]


def _nothing_to_do(up_to_date: int) -> str:
    return f"nothing to do, {count(up_to_date, 'task')} {'is' if up_to_date == 1 else 'are'} up to date"


def damage_line(follower: Follower) -> list[str]:
    """A sentence about damaged records in the ledger, if there are any."""
    size = follower.damaged_bytes()
    if not size:
        return []
    lost = "the next run repairs it and repeats tasks whose records are lost"
    return [f"{count(size, 'byte')} of the ledger {'is' if size == 1 else 'are'} damaged; {lost}"]


def prediction_line(predicted: float, took: float) -> str:
    """`predicted 41.2 s, took 43.0 s (+4 %)`."""
    off = f" ({show_change(took / predicted)})" if predicted > 0 else ""
    return f"predicted {show_seconds(predicted)}, took {show_seconds(took)}{off}"


def describe(
    follower: Follower,
    phase: RunPhase,
    now: float,
    *,
    every: bool = False,
    predicted: float | None = None,
    brought: SubmittedRun | None = None,
) -> list[str]:
    """The full text output. `predicted` is the expected duration of the run, if known; `brought` is the state that the
    cluster reports for a run that no local process follows."""
    state = follower.state
    name = follower.workspace.workflow.rsplit("/", 1)[-1]
    lines = [headline(name, follower, phase, now), *damage_line(follower), *idle_line(state, now)]
    if state.start is None:
        return lines
    if state.start.targets:
        lines.append(f"asked for: {' '.join(map(decodable, state.start.targets))}")
    if phase is RunPhase.AWAY:
        return [*lines, *away_lines(state, brought)]
    counts = [f"{len(state.done):,} done", f"{state.up_to_date():,} up to date", f"{len(state.failed):,} failed"]
    if phase is RunPhase.RUNNING:
        counts += [f"{state.running_now():,} running", f"{state.waiting():,} not started"]
    if cancelled := state.cancelled():
        counts.append(f"{cancelled:,} cancelled")
    if phase is RunPhase.RUNNING:
        if cannot := state.cannot_run():
            counts.append(f"{cannot:,} cannot run")
    else:
        counts.append(f"{state.not_run():,} not run")
    lines.append(f"{show_progress(len(state.done), state.to_run())}: {', '.join(counts)}")
    if phase is RunPhase.RUNNING:
        lines.append(_pace(state, now))
    if predicted is not None and state.end is not None:
        lines.append(prediction_line(predicted, state.last_time - state.start.time))
    most = len(state.names) if every else MOST_SHOWN
    if phase is RunPhase.RUNNING:
        lines += throttle_lines(state)
        lines += _running(state, now, most)
    if state.failed:
        lines += _failed(state, most)
    return lines


def away_lines(state: RunStatus, brought: SubmittedRun | None) -> list[str]:
    """State of a run on a cluster that no local process follows."""
    done = len(state.done)
    here = f"{done:,} of {count(state.to_run(), 'task')} {'is' if done == 1 else 'are'} recorded here as done"
    if brought is None:
        return [here]
    if brought.tasks is None:
        return [here, f"the cluster {brought.cluster} cannot be reached: {brought.trouble}", GIVE_UP]
    if brought.left is None:
        return [
            here,
            f"the cluster {brought.cluster} does not have this run; 'shoal attach' submits the remaining tasks again",
        ]
    if not brought.left:
        return [here, f"all tasks have ended on the cluster {brought.cluster}; 'shoal attach' fetches the results"]
    over = max(0, state.to_run() - brought.left)  # the remaining tasks may include groups
    there = f"on the cluster {brought.cluster}: {over:,} ended, {state.to_run() - over:,} left"
    return [here, f"{there}, of which {brought.ready:,} {'is' if brought.ready == 1 else 'are'} ready or running"]


def _pace(state: RunStatus, now: float) -> str:
    """Rate, time left and utilisation in one line."""
    progress = state.progress(now)
    if not progress.done:
        return "nothing is done yet"
    words = [show_rate(progress.rate)]
    if progress.left is not None:
        words.append(time_left(progress.left, progress.least, progress.most))
    if progress.utilisation is not None and state.start is not None:
        cores = state.total_cores()
        words.append(f"{show_share(progress.utilisation)} of {show_cores(cores)} in use so far")
    return ", ".join(words)


def _running(state: RunStatus, now: float, most: int) -> list[str]:
    running = sorted(state.running.values(), key=lambda started: started.time)
    if not running:
        return []
    total, last = max(len(running), state.running_now()), max(now, state.last_time)
    rows = []
    for started in running[:most]:
        process = where_it_runs(state, started)
        again = f", attempt {started.attempt}" if started.attempt > 1 else ""
        name = state.names.get(started.task, str(started.task))
        category = state.category_of.get(started.task, "")
        rows.append(f"  {show_seconds(max(0.0, last - started.time)):>10}  {name} ({category}, {process}{again})")
    lines = ["running:", *rows]
    if total > len(rows):
        lines.append(f"  and {total - len(rows):,} more")
    return lines


def where_it_runs(state: RunStatus, started: TaskStarted) -> str:
    """The process of the task, or the cluster node."""
    if started.node:
        return f"on {state.node_name(started.node)}"
    return f"process {started.pid}" if started.pid else "a Python call"


def _failed(state: RunStatus, most: int) -> list[str]:
    lines = ["failed:"]
    for task, record in list(state.failed.items())[:most]:
        lines.append(f"  {state.names.get(task, task)}: {record.message}")
    if len(state.failed) > most:
        lines.append(f"  and {len(state.failed) - most:,} more ('shoal status --verbose' lists them)")
    return lines


def run_as_data(state: RunStatus) -> dict[str, Any]:
    """Which run it is, where it runs, when it began and how it ended."""
    start, end = state.start, state.end
    return {
        "run": start.run if start else None,
        "pid": start.pid if start else None,
        "host": start.host if start else None,
        "started": start.time if start else None,
        "ended": state.last_time if end else None,
        "outcome": end.outcome if end else None,
    }


def state_as_data(
    follower: Follower,
    phase: RunPhase,
    now: float,
    *,
    predicted: float | None = None,
    brought: SubmittedRun | None = None,
) -> dict[str, Any]:
    """The same as data; times are seconds since the epoch."""
    state = follower.state
    start, end = state.start, state.end
    goes_on = phase is RunPhase.RUNNING
    progress = state.progress(now) if goes_on or phase is RunPhase.ENDED else None
    return {
        "workflow": follower.workspace.workflow,
        "state": phase.value,
        **run_as_data(state),
        "took": state.last_time - start.time if start and end else None,
        "predicted": predicted,
        "nothing_to_do": {"run": state.idle.run, "started": state.idle.time} if state.idle else None,
        "targets": decodable_parts(start.targets) if start else [],
        "damaged_bytes": follower.damaged_bytes(),
        "to_run": state.to_run(),
        "up_to_date": state.up_to_date(),
        "done": len(state.done),
        "failed": len(state.failed),
        "running": state.running_now() if goes_on else 0,
        "waiting": state.waiting() if goes_on else 0,
        "cannot_run": state.cannot_run(),
        "cancelled": state.cancelled(),
        "not_run": 0 if goes_on else state.not_run(),
        "rate": round(progress.rate, 3) if progress else 0.0,
        "seconds_left": progress.left if progress and goes_on else None,
        "seconds_left_least": progress.least if progress and goes_on else None,
        "seconds_left_most": progress.most if progress and goes_on else None,
        "utilisation": progress.utilisation if progress else None,
        "throttle": throttle_as_data(state),
        "on_cluster": msgspec.to_builtins(brought) if brought is not None else None,
        "running_tasks": [
            {
                "name": state.names.get(started.task),
                "attempt": started.attempt,
                "pid": started.pid or None,
                "since": started.time,
                "node": state.node_name(started.node),
            }
            for started in state.running.values()
        ]
        if goes_on
        else [],
        "failures": [
            {"name": state.names.get(task), "attempt": record.attempt, "message": record.message}
            for task, record in state.failed.items()
        ],
    }
