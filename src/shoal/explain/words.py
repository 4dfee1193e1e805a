"""Answers about a task in sentences: one paragraph that says what is waited for, who has it, and when it is expected.

Whole runs are told in `shoal.explain.summary`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.explain.answer import Answer, Cause, Holder, Shortage
from shoal.model.resources import show_amount

MOST_NAMED = 3
_LONGEST_CHAIN = 6
_LONGER = "already longer than tasks of its category take on average"
_ANY_MOMENT = 0.05
"""Seconds below which nobody is told how many there are."""


class Speech(msgspec.Struct, frozen=True):
    """How tasks, moments and durations are called; who speaks knows the clock and the names."""

    name: Callable[[int], str]
    moment: Callable[[float], str]
    """A moment as people say it, such as 14:05:07."""
    seconds: Callable[[float], str]
    now: float


def paragraph(answer: Answer, speech: Speech) -> str:
    """`'x' waits for ...`, with the chain to what holds it up, and when it is expected to start."""
    text = f"{speech.name(answer.task)!r} {clause(answer, speech)}."
    if answer.root is not None and answer.cause is Cause.NEEDS and answer.root.cause is not Cause.RUNNING:
        text += f" {speech.name(answer.root.task)!r} {clause(answer.root, speech)}."
    return text + _expectation(answer, speech)


def clause(answer: Answer, speech: Speech) -> str:
    """What is said of the task, without its name: `has been running since ...`."""
    where = f" on {answer.node}" if answer.node else ""
    match answer.cause:
        case Cause.DONE:
            return "is done"
        case Cause.FAILED:
            return _failed(answer)
        case Cause.EXCLUDED:
            return "is not part of this run: no target needs it"
        case Cause.DOOMED:
            return _doomed(answer, speech)
        case Cause.RUNNING:
            return _running(answer, speech)
        case Cause.NEEDS:
            return _needs(answer, speech, "waits for")
        case Cause.STOPPING if answer.chain:
            return f"{waits(answer, speech)}; it {_needs(answer, speech, 'needs')}"
        case Cause.STOPPING if answer.attempt:
            return f"is ready{where} after attempt {answer.attempt} and {waits(answer, speech)}"
        case Cause.RETRY:
            assert answer.until is not None
            why = f" ({answer.detail})" if answer.detail else ""
            left = speech.seconds(max(0.0, answer.until - speech.now))
            return f"rests{where} after attempt {answer.attempt} failed{why}; the next one is due in {left}"
        case Cause.TOO_LARGE | Cause.LABEL | Cause.ARRIVING:
            return f"is ready and {waits(answer, speech)}"
        case Cause.ENDING | Cause.RECORDING | Cause.BUNDLED | Cause.NODE_SILENT:
            return waits(answer, speech)
        case _:
            return f"is ready{where} and {waits(answer, speech)}"


def waits(answer: Answer, speech: Speech, example: str = "") -> str:
    """What a ready task waits for. `example`: ` on ash`, if what is free and who runs is told of one node of many."""
    where = f" on {answer.node}" if answer.node else ""
    match answer.cause:
        case Cause.RESOURCES:
            assert answer.shortage is not None
            return f"waits for {_short(answer.shortage, speech, example)}{_queue(answer)}"
        case Cause.LOCALITY:
            what = _short(answer.shortage, speech, example) if answer.shortage else "its turn"
            return f"waits beside the files that it reads, for {what}; if that takes long, other nodes may have it"
        case Cause.THROTTLE:
            assert answer.cap is not None
            cap = answer.cap
            why = cap.reason or f"no more than {cap.most} of them may run together"
            run = "runs" if cap.running == 1 else "run"
            return f"is held back by the throttle while {cap.running} of its category {run}{example}: {why}"
        case Cause.LARGER_FIRST:
            who = f"{speech.name(answer.first)!r}, for one ({answer.larger})," if answer.first is not None else ""
            return f"fits, but larger tasks {who or f'({answer.larger})'} were passed over too often and go first"
        case Cause.LABEL:
            return f"cannot start: {answer.detail}" if answer.detail else f"needs a node with {_label(answer)}"
        case Cause.STOPPING:
            return f"will not start: {answer.detail or 'the run is stopping, and nothing more is started'}"
        case Cause.NODE_SILENT:
            who = f"{answer.node}, which" if answer.node else "a node that"
            lost = "it is placed anew when that is taken for lost"
            return f"is with {who} does not answer, and may be running there; {lost}{_said(answer)}"
        case Cause.ARRIVING if answer.node:
            return f"is on its way to {answer.node}{_said(answer)}"
        case Cause.RECORDING:
            return f"has run{where}; how it ended is being recorded"
        case Cause.ENDING:
            return f"was cancelled and is being ended{where}"
        case Cause.BUNDLED:
            return f"was handed over{where} together with others that are as short, and is run after them"
    return _FIXED[answer.cause] + _said(answer)


_FIXED = {
    Cause.RUNNING: "runs",
    Cause.TURN: "is next: what comes after the tasks that have just ended is being decided",
    Cause.ARRIVING: "is on its way to a broker: it has just become ready, or goes from one node to another",
    Cause.FETCHING: "waits for what it reads, which is being fetched from other nodes",
    Cause.TOO_LARGE: "waits for a node that can run it: none that is there can",
    Cause.NODE_LOST: "is placed anew: the node that had it is gone",
    Cause.NO_NODE: "waits for a node: the cluster has none",
    Cause.STORE: "cannot go on: the cluster's store does not answer",
    Cause.ANOTHER_RUN: "waits for its run's turn: the cluster serves one that was brought before",
}


def _said(answer: Answer) -> str:
    return f" ({answer.detail})" if answer.detail else ""


def _label(answer: Answer) -> str:
    return f"the label {answer.shortage.resource}" if answer.shortage is not None else "a label that none has"


def _failed(answer: Answer) -> str:
    if answer.cancelled:
        return "was cancelled"
    return f"has failed: {answer.detail}" if answer.detail else "has failed or was cancelled"


def _short(shortage: Shortage, speech: Speech, example: str) -> str:
    name = shortage.resource
    asked, free, total = (show_amount(name, each) for each in (shortage.asked, shortage.free, shortage.total))
    reckoned = f"it declares none, {asked} {_are(asked)} assumed"
    asks = reckoned if shortage.reckoned else f"it asks for {asked}"
    text = f"{name}: {asks}, and {free} of {total} {_are(free)} free{example}"
    if not shortage.held_by:
        return text
    named = ", ".join(_holder(name, each, speech) for each in shortage.holders[:MOST_NAMED])
    rest = shortage.held_by - min(MOST_NAMED, len(shortage.holders))
    return f"{text}; held by {named}{f' and {rest:,} more' if rest else ''}"


def _are(amount: str) -> str:
    return "is" if amount.split()[0] == "1" else "are"


def _holder(resource: str, holder: Holder, speech: Speech) -> str:
    words = f"{speech.name(holder.task)!r} ({show_amount(resource, holder.amount)}"
    if holder.overdue:
        words += f", {_LONGER}"
    elif holder.until is not None:
        words += f", ends {_in_about(holder.until, speech)}"
    return words + ")"


def _in_about(moment: float, speech: Speech) -> str:
    left = moment - speech.now
    return f"in about {speech.seconds(left)}" if left >= _ANY_MOMENT else "any moment"


def _queue(answer: Answer) -> str:
    """Where it stands in its queue."""
    if answer.queued < 2:
        return ""
    if answer.ahead is None:
        return f"; {answer.queued:,} tasks are queued"
    if not answer.ahead:
        return f"; it is the first of {answer.queued:,} in the queue, and others start before it only if they fit"
    by = f" by the order {answer.order!r}" if answer.order else ""
    return f"; {answer.ahead:,} of {answer.queued:,} queued tasks {'is' if answer.ahead == 1 else 'are'} before it{by}"


def _running(answer: Answer, speech: Speech) -> str:
    where = f" on {answer.node}" if answer.node else ""
    since = ""
    if answer.since is not None:
        since = f" since {speech.moment(answer.since)} ({speech.seconds(max(0.0, speech.now - answer.since))})"
    until = ""
    if answer.overdue:
        until = f", {_LONGER}"
    elif answer.until is not None:
        until = f", and should be done {_in_about(answer.until, speech)}"
    more = f", {answer.detail}" if answer.detail else ""
    verb = "has been running" if since else "is running"
    return f"{verb}{where}{since}{more}, attempt {answer.attempt}{until}"


def _needs(answer: Answer, speech: Speech, verb: str) -> str:
    """`waits for the task 'b', which waits for ...`."""
    chain, root = answer.chain, answer.root
    first = speech.name(chain[0])
    what = f"{answer.unfinished:,} tasks that are not done, among them" if answer.unfinished > 1 else "the task"
    text = f"{verb} {what} {first!r}"
    if len(chain) > 1:
        text += f", which {verb} {_path(chain[1:], answer.links - 1, speech, verb)}"
    if root is not None and root.cause is Cause.RUNNING:
        text += f"; {repr(speech.name(root.task)) if len(chain) > 1 else 'that'} {_running(root, speech)}"
    return text


def _path(chain: list[int], links: int, speech: Speech, verb: str) -> str:
    """`'b', which needs 'c'`; of a long one only both ends. It has so many links, though not all may be there."""
    names = [repr(speech.name(task)) for task in (chain if links <= _LONGEST_CHAIN else chain[:2] + chain[-2:])]
    if links > _LONGEST_CHAIN:
        left_out = links - 4
        return f"{names[0]}, which {verb} {names[1]}, and so on over {left_out:,} more to {names[-2]} and {names[-1]}"
    return f", which {verb} ".join(names)


def _doomed(answer: Answer, speech: Speech) -> str:
    if not answer.chain:
        return "cannot run any more: something that it needs has failed or was cancelled"
    root = answer.chain[-1]
    how = clause(answer.root, speech) if answer.root is not None else "has failed or was cancelled"
    if answer.links == 1:
        return f"cannot run any more: it needs {speech.name(root)!r}, which {how}"
    path = _path(answer.chain, answer.links, speech, "needs")
    return f"cannot run any more: it needs {path}; {speech.name(root)!r} {how}"


def _expectation(answer: Answer, speech: Speech) -> str:
    if answer.starts is None or answer.cause is Cause.RETRY:
        return ""
    left, name = answer.starts - speech.now, repr(speech.name(answer.task))
    if left < _ANY_MOMENT:
        return f" {name} should start any moment."
    return f" {name} is expected to start at about {speech.moment(answer.starts)} (in {speech.seconds(left)})."
