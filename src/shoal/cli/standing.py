"""How a run stands, in words and as data; `now` is an argument."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.throttled import throttle_as_data, throttle_lines
from shoal.engine.brought import GIVE_UP
from shoal.engine.follow import Follower, Phase, RunState
from shoal.ledger.records import TASKS_CANCELLED, TaskStarted, printable, printable_parts
from shoal.model.quantities import (
    count,
    show_change,
    show_cores,
    show_progress,
    show_rate,
    show_seconds,
    show_share,
    time_left,
)

if TYPE_CHECKING:
    from shoal.cluster.session import Brought

MOST_SHOWN = 10


def show_moment(moment: float, now: float) -> str:
    """A moment of today by its time, another with its date."""
    then = time.localtime(moment)
    same_day = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def headline(name: str, follower: Follower, phase: Phase, now: float) -> str:
    """One line: which workflow, and what has become of its last run."""
    state = follower.state
    if phase is Phase.NEVER or state.start is None:
        return f"{name}: nothing has been recorded of a run" if phase is Phase.NEVER else f"{name}: a run is starting"
    if phase is Phase.AWAY:
        since = show_moment(state.start.time, now)
        return f"{name}: on a cluster since {since}, and nobody follows it; 'shoal attach' does"
    began = state.start.time
    done = f"{len(state.done):,} of {count(state.to_run(), 'task')} done"
    if phase is Phase.RUNNING:
        who = follower.holder
        by = f" by process {who.pid} on {who.host}" if who and who.pid else ""
        return f"{name}: running for {show_seconds(max(now, state.last_time) - began)}{by}, {done}"
    if state.end is None:
        return f"{name}: killed at about {show_moment(state.last_time, now)}, {done}; 'shoal run' goes on from there"
    if not state.to_run() and state.up_to_date():
        return f"{name}: ended at {show_moment(state.last_time, now)}, {_nothing_to_do(state.up_to_date())}"
    how = {"ok": "everything was made", "failed": "with failures"}.get(state.end.outcome, state.end.outcome)
    if how == "with failures" and not state.failed and state.cancelled():  # as earlier versions have recorded it
        how = TASKS_CANCELLED
    took = show_seconds(state.last_time - began)
    return f"{name}: ended at {show_moment(state.last_time, now)} after {took} ({how}), {done}"


def idle_line(state: RunState, now: float) -> list[str]:
    """A sentence on a later run, if it had nothing to do: what is told is the one before it."""
    if state.idle is None:
        return []
    return [f"run again at {show_moment(state.idle.time, now)}: {_nothing_to_do(state.idle.total)}"]


def _nothing_to_do(up_to_date: int) -> str:
    return f"nothing to do, {count(up_to_date, 'task')} {'is' if up_to_date == 1 else 'are'} up to date"


def damage_line(follower: Follower) -> list[str]:
    """A sentence, if something of the ledger cannot be read."""
    size = follower.damaged_bytes()
    if not size:
        return []
    lost = "the next run mends it, and runs again what it does not know of any more"
    return [f"{count(size, 'byte')} of the ledger {'is' if size == 1 else 'are'} damaged; {lost}"]


def beside(predicted: float, took: float) -> str:
    """`predicted 41.2 s, took 43.0 s (+4 %)`."""
    off = f" ({show_change(took / predicted)})" if predicted > 0 else ""
    return f"predicted {show_seconds(predicted)}, took {show_seconds(took)}{off}"


def describe(
    follower: Follower,
    phase: Phase,
    now: float,
    *,
    every: bool = False,
    predicted: float | None = None,
    brought: Brought | None = None,
) -> list[str]:
    """The whole picture, as lines; `predicted` is how long the run should have taken, if that is known, `brought` what
    the cluster says of a run that nobody follows."""
    state = follower.state
    name = follower.workspace.workflow.rsplit("/", 1)[-1]
    lines = [headline(name, follower, phase, now), *damage_line(follower), *idle_line(state, now)]
    if state.start is None:
        return lines
    if state.start.targets:
        lines.append(f"asked for: {' '.join(map(printable, state.start.targets))}")
    if phase is Phase.AWAY:
        return [*lines, *away_lines(state, brought)]
    counts = [f"{len(state.done):,} done", f"{state.up_to_date():,} up to date", f"{len(state.failed):,} failed"]
    if phase is Phase.RUNNING:
        counts += [f"{state.running_now():,} running", f"{state.waiting():,} not started"]
    if cancelled := state.cancelled():
        counts.append(f"{cancelled:,} cancelled")
    if phase is Phase.RUNNING:
        if cannot := state.cannot_run():
            counts.append(f"{cannot:,} cannot run")
    else:
        counts.append(f"{state.not_run():,} not run")
    lines.append(f"{show_progress(len(state.done), state.to_run())}: {', '.join(counts)}")
    if phase is Phase.RUNNING:
        lines.append(_pace(state, now))
    if predicted is not None and state.end is not None:
        lines.append(beside(predicted, state.last_time - state.start.time))
    most = len(state.names) if every else MOST_SHOWN
    if phase is Phase.RUNNING:
        lines += throttle_lines(state)
        lines += _running(state, now, most)
    if state.failed:
        lines += _failed(state, most)
    return lines


def away_lines(state: RunState, brought: Brought | None) -> list[str]:
    """What is known of a run on a cluster that nobody follows."""
    done = len(state.done)
    here = f"{done:,} of {count(state.to_run(), 'task')} {'is' if done == 1 else 'are'} recorded here as done"
    if brought is None:
        return [here]
    if brought.tasks is None:
        return [here, f"the cluster {brought.cluster} cannot be asked: {brought.trouble}", GIVE_UP]
    if brought.left is None:
        return [here, f"the cluster {brought.cluster} does not have this run; 'shoal attach' brings anew what is left"]
    if not brought.left:
        return [here, f"all of it is over on the cluster {brought.cluster}; 'shoal attach' fetches the results"]
    over = max(0, state.to_run() - brought.left)  # what is left may be groups, too
    there = f"on the cluster {brought.cluster}: {over:,} over, {state.to_run() - over:,} left"
    return [here, f"{there}, of which {brought.ready:,} {'is' if brought.ready == 1 else 'are'} ready or running"]


def _pace(state: RunState, now: float) -> str:
    """Rate, time left and cores in one line."""
    told = state.progress(now)
    if not told.done:
        return "nothing is done yet"
    words = [show_rate(told.rate)]
    if told.left is not None:
        words.append(time_left(told.left, told.least, told.most))
    if told.utilisation is not None and state.start is not None:
        cores = state.total_cores()
        words.append(f"{show_share(told.utilisation)} of {show_cores(cores)} in use so far")
    return ", ".join(words)


def _running(state: RunState, now: float, most: int) -> list[str]:
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


def where_it_runs(state: RunState, started: TaskStarted) -> str:
    """The process that does it, or the node of a cluster."""
    if started.node:
        return f"on {state.node_name(started.node)}"
    return f"process {started.pid}" if started.pid else "a Python call"


def _failed(state: RunState, most: int) -> list[str]:
    lines = ["failed:"]
    for task, record in list(state.failed.items())[:most]:
        lines.append(f"  {state.names.get(task, task)}: {record.message}")
    if len(state.failed) > most:
        lines.append(f"  and {len(state.failed) - most:,} more ('shoal status --verbose' lists them)")
    return lines


def state_as_data(
    follower: Follower, phase: Phase, now: float, *, predicted: float | None = None, brought: Brought | None = None
) -> dict[str, Any]:
    """The same for programs; times are seconds since the epoch."""
    state = follower.state
    start, end = state.start, state.end
    goes_on = phase is Phase.RUNNING
    told = state.progress(now) if goes_on or phase is Phase.ENDED else None
    return {
        "workflow": follower.workspace.workflow,
        "state": phase.value,
        "run": start.run if start else None,
        "pid": start.pid if start else None,
        "host": start.host if start else None,
        "started": start.time if start else None,
        "ended": state.last_time if end else None,
        "outcome": end.outcome if end else None,
        "took": state.last_time - start.time if start and end else None,
        "predicted": predicted,
        "nothing_to_do": {"run": state.idle.run, "started": state.idle.time} if state.idle else None,
        "targets": printable_parts(start.targets) if start else [],
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
        "rate": round(told.rate, 3) if told else 0.0,
        "seconds_left": told.left if told and goes_on else None,
        "seconds_left_least": told.least if told and goes_on else None,
        "seconds_left_most": told.most if told and goes_on else None,
        "utilisation": told.utilisation if told else None,
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
