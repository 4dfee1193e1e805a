"""Answers about a whole run in lines: what runs, what does not, and why; tasks that wait alike are told together."""

from __future__ import annotations

import msgspec

from shoal.explain.answer import Cause, Group, RunAnswer
from shoal.explain.words import Speech, waits


def run_lines(answer: RunAnswer, speech: Speech) -> list[str]:
    """The whole run: what runs, what does not, and for what reasons."""
    lines = [_headline(answer)]
    for group in answer.groups:
        lines.append(f"  {group.count:,}{_group(group, speech)}")
    if answer.waiting:
        needs = "needs another one that is not done" if answer.waiting == 1 else "need others that are not done"
        lines.append(f"  {answer.waiting:,} {needs}")
    if answer.failed or answer.doomed:
        doomed = f"; {answer.doomed:,} cannot run because of that" if answer.doomed else ""
        lines.append(f"  {_failed(answer)}{doomed}")
    return lines + [f"  {note}" for note in answer.notes]


def _failed(answer: RunAnswer) -> str:
    """Those that did not fail but were cancelled are told apart, if it is known how many these are."""
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
        return "It cannot be said how the run stands."
    if not left:
        return f"Nothing is left to run: {answer.done:,} {_verb(answer.done, 'task is', 'tasks are')} done."
    is_all = not any(group.cause is Cause.NODE_SILENT for group in answer.groups)
    if answer.running:
        return (
            f"{'' if is_all else 'At least '}{answer.running:,} {_verb(answer.running, 'runs', 'run')}, "
            f"{answer.ready:,} {_verb(answer.ready, 'is', 'are')} ready, "
            f"{answer.waiting:,} {_verb(answer.waiting, 'waits', 'wait')} for others."
        )
    why = _short_reason(answer)
    if not is_all:
        return f"It is not known what runs: {why}."
    return f"Nothing runs{': ' + why if why else ''}."


def _verb(count: int, one: str, several: str) -> str:
    return one if count == 1 else several


def _short_reason(answer: RunAnswer) -> str:
    if answer.groups:
        return REASONS[answer.groups[0].cause]
    return answer.notes[0] if answer.notes else ""


REASONS = {
    Cause.RETRY: "what is ready rests before its next attempt",
    Cause.RESOURCES: "too little is free for what is ready",
    Cause.LOCALITY: "what is ready waits beside its data",
    Cause.LABEL: "no node has the label that is asked for",
    Cause.TOO_LARGE: "no node can run what is ready",
    Cause.THROTTLE: "the throttle holds everything back",
    Cause.LARGER_FIRST: "room is kept for larger tasks",
    Cause.TURN: "the next tasks are being chosen",
    Cause.STOPPING: "the run is stopping",
    Cause.FETCHING: "files are being fetched",
    Cause.RECORDING: "what has just ended is being recorded",
    Cause.ARRIVING: "what is ready is on its way to a node",
    Cause.NODE_LOST: "the nodes that had work are gone, and it is placed anew",
    Cause.NODE_SILENT: "the nodes that have work do not answer",
    Cause.NO_NODE: "the cluster has no node",
    Cause.STORE: "the cluster's store does not answer",
    Cause.ANOTHER_RUN: "the cluster serves another run first",
    Cause.RUNNING: "what runs has not been told yet",
    Cause.ENDING: "what runs is being ended",
    Cause.BUNDLED: "what was handed over together has not been told yet",
    Cause.NEEDS: "everything waits for other tasks",
}


def _group(group: Group, speech: Speech) -> str:
    """` such as 'x': each waits for cores: ...`, told by one of them; one that is nobody has no name."""
    one = msgspec.structs.replace(group.example, ahead=None, queued=0)
    nowhere = (Cause.LABEL, Cause.TOO_LARGE, Cause.NODE_SILENT)  # whoever keeps them has nothing to do with it
    where = f" on {one.node}" if one.node and one.cause not in nowhere else ""
    name = repr(speech.name(one.task)) if one.task >= 0 else ""
    if one.cause is Cause.RETRY and one.until is not None:
        left = speech.seconds(max(0.0, one.until - speech.now))
        if group.count == 1:
            return f" ({name}{where}) rests before its next attempt, due in {left}"
        return f" rest before their next attempt; the first is {name}{where}, due in {left}"
    several = group.nodes > 1
    if one.cause is not Cause.NODE_SILENT:  # of the others it is said beside their names where they are
        one.node = ""
    says = waits(one, speech, where if several else "")
    if not name:
        return f" {says}" if group.count == 1 else f": each {says}"
    if group.count == 1:
        return f" ({name}{where}) {says}"
    return f"{f' on {group.nodes:,} nodes,' if several else ''} such as {name}{where}: each {says}"
