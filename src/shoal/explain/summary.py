"""Answers about a whole run in lines: what runs, what does not, and why. Tasks with the same reason share a line."""

from __future__ import annotations

import msgspec

from shoal.explain.answer import Cause, Group, RunAnswer, RunRecord
from shoal.explain.words import Speech, waits


def run_lines(answer: RunAnswer, speech: Speech) -> list[str]:
    """What is running, what is not, and for what reasons."""
    lines = [_headline(answer)]
    for group in answer.groups:
        lines.append(f"  {group.count:,}{_group(group, speech)}")
    if answer.waiting:
        lines.append(f"  {answer.waiting:,} {_verb(answer.waiting, 'waits', 'wait')} for unfinished dependencies")
    if answer.failed or answer.doomed:
        doomed = f"; {answer.doomed:,} cannot run because of that" if answer.doomed else ""
        lines.append(f"  {_failed(answer)}{doomed}")
    return lines + [f"  {note}" for note in answer.notes]


def record_lines(record: RunRecord, speech: Speech) -> list[str]:
    """The same of a run of which only the ledger is known: it goes on elsewhere, has ended, or was killed."""
    lines = []
    if record.state == "running":
        lines.append(f"  {record.running:,} running, {record.waiting:,} not started")
    elif record.state == "killed":
        lines.append("  nothing is running: the process of the run is gone; 'shoal run' continues the run")
    elif record.not_run:
        because = f", {record.doomed:,} of them because a dependency failed or was cancelled" if record.doomed else ""
        tasks = _verb(record.not_run, "task", "tasks")
        lines.append(f"  {record.not_run:,} {tasks} did not run{because}; outcome of the run: {record.outcome}")
    for task in record.longest:
        if task.since is not None:
            lines.append(f"  {task.name!r} has been running since {speech.moment(task.since)}")
    lines += [f"  {task.name!r} failed: {task.detail}" for task in record.failures]
    if record.failed > len(record.failures):
        lines.append(f"  and {record.failed - len(record.failures):,} more failed")
    return lines


def _failed(answer: RunAnswer) -> str:
    """Cancelled tasks are counted apart from failed ones if their number is known."""
    if answer.cancelled is None:
        return f"{answer.failed:,} failed or {_verb(answer.failed, 'was', 'were')} cancelled"
    cancelled = min(answer.cancelled, answer.failed)
    words = [f"{answer.failed - cancelled:,} failed"] if answer.failed > cancelled or not cancelled else []
    if cancelled:
        words.append(f"{cancelled:,} {_verb(cancelled, 'was', 'were')} cancelled")
    return ", ".join(words)


def _headline(answer: RunAnswer) -> str:
    left = answer.running + answer.ready + answer.waiting
    over = answer.done + answer.failed + answer.doomed
    if not left and not over and answer.notes:
        return "The state of the run is not known."
    if not left:
        return f"Nothing is left to run: {answer.done:,} {_verb(answer.done, 'task is', 'tasks are')} done."
    is_all = not any(group.cause is Cause.NODE_SILENT for group in answer.groups)
    if answer.running:
        running = f"{'' if is_all else 'At least '}{answer.running:,} running"
        return f"{running}, {answer.ready:,} ready, {answer.waiting:,} waiting for dependencies."
    why = _short_reason(answer)
    if not is_all:
        return f"It is not known what is running: {why}."
    return f"Nothing is running{': ' + why if why else ''}."


def _verb(count: int, one: str, several: str) -> str:
    return one if count == 1 else several


def _short_reason(answer: RunAnswer) -> str:
    if answer.groups:
        return REASONS[answer.groups[0].cause]
    return answer.notes[0] if answer.notes else ""


REASONS = {
    Cause.RETRY: "the ready tasks wait for a retry",
    Cause.RESOURCES: "too little is free for the ready tasks",
    Cause.LOCALITY: "the ready tasks wait on the nodes that have their input files",
    Cause.LABEL: "no node has the label that the ready tasks ask for",
    Cause.TOO_LARGE: "no node can run the ready tasks",
    Cause.THROTTLE: "the throttle holds all ready tasks back",
    Cause.LARGER_FIRST: "the free room is reserved for larger tasks",
    Cause.TURN: "the scheduler is choosing the next tasks",
    Cause.STOPPING: "the run is stopping",
    Cause.FETCHING: "input files are being fetched",
    Cause.RECORDING: "results are being recorded",
    Cause.ARRIVING: "the ready tasks are being placed on nodes",
    Cause.NODE_LOST: "nodes are lost, and their tasks are being placed on others",
    Cause.NODE_SILENT: "the nodes that have tasks do not answer",
    Cause.NO_NODE: "the cluster has no node",
    Cause.STORE: "the cluster's store does not answer",
    Cause.ANOTHER_RUN: "the cluster serves another run first",
    Cause.RUNNING: "the nodes have not reported their running tasks yet",
    Cause.ENDING: "cancelled tasks are being terminated",
    Cause.BUNDLED: "the node has not reported its bundle of short tasks yet",
    Cause.NEEDS: "all tasks wait for dependencies",
}


def _group(group: Group, speech: Speech) -> str:
    """` such as 'x': each waits for cores: ...`. The example has a number below 0 if no task of the group is known."""
    one = msgspec.structs.replace(group.example, ahead=None, queued=0)
    nowhere = (Cause.LABEL, Cause.TOO_LARGE, Cause.NODE_SILENT)  # the node that keeps them is not the reason
    where = f" on {one.node}" if one.node and one.cause not in nowhere else ""
    name = repr(speech.name(one.task)) if one.task >= 0 else ""
    if one.cause is Cause.RETRY and one.until is not None:
        left = speech.seconds(max(0.0, one.until - speech.now))
        if group.count == 1:
            return f" ({name}{where}) waits for a retry, due in {left}"
        return f" wait for a retry; the first is {name}{where}, due in {left}"
    several = group.nodes > 1
    if one.cause is not Cause.NODE_SILENT:  # the node is named beside the example
        one.node = ""
    says = waits(one, speech, where if several else "")
    if not name:
        return f" {says}" if group.count == 1 else f": each {says}"
    if group.count == 1:
        return f" ({name}{where}) {says}"
    return f"{f' on {group.nodes:,} nodes,' if several else ''} such as {name}{where}: each {says}"
