"""Sentences for answers: what a task waits for, what delays it, when it should start; the same for a whole run.

All sources of answers share these sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.core.explain.answer import (
    Answer,
    LastAttempt,
    PlanVerdict,
    ResourceHolder,
    RunAnswer,
    RunRecord,
    Shortage,
    WaitCause,
    WaitingGroup,
)
from shoal.core.resources import show_amount

MOST_NAMED = 3
_LONGEST_CHAIN = 6
_LONGER = "already longer than tasks of its category take on average"
_ANY_MOMENT = 0.05
"""Remaining times below this many seconds are not shown as numbers."""
_QUEUED = (WaitCause.RESOURCES, WaitCause.LOCALITY, WaitCause.THROTTLE, WaitCause.LARGER_FIRST, WaitCause.TURN)


class SentenceWriter(msgspec.Struct, frozen=True):
    """How names of tasks, times and durations are written: provided by the caller."""

    name: Callable[[int], str]
    moment: Callable[[float], str]
    """A time of day, such as 14:05:07."""
    seconds: Callable[[float], str]
    now: float


def paragraph(answer: Answer, speech: SentenceWriter) -> str:
    """`'x' waits for ...`, with the chain to the task that holds it up, and when it is expected to start."""
    if answer.verdict is not None:
        return _between_runs(answer, answer.verdict, speech)
    text = f"{speech.name(answer.task)!r} {clause(answer, speech)}."
    if answer.root is not None and answer.cause is WaitCause.NEEDS and answer.root.cause is not WaitCause.RUNNING:
        text += f" {speech.name(answer.root.task)!r} {clause(answer.root, speech)}."
    return text + _expectation(answer, speech)


def clause(answer: Answer, speech: SentenceWriter) -> str:
    """The state of the task, without its name: `has been running since ...`."""
    where = f" on {answer.node}" if answer.node else ""
    match answer.cause:
        case WaitCause.DONE:
            return _done(answer, speech)
        case WaitCause.FAILED:
            return _failed(answer, speech)
        case WaitCause.EXCLUDED:
            return "is not part of this run: no target needs it"
        case WaitCause.DOOMED:
            return f"cannot run: {_lost(answer, speech)}"
        case WaitCause.RUNNING:
            return _running(answer, speech)
        case WaitCause.NEEDS:
            return _needs(answer, speech, "waits for")
        case WaitCause.STOPPING if answer.chain:
            return f"{waits(answer, speech)}; it {_needs(answer, speech, 'depends on')}"
        case WaitCause.STOPPING if answer.attempt:
            return f"is ready{where} after attempt {answer.attempt} and {waits(answer, speech)}"
        case WaitCause.RETRY:
            text = f"waits{where} for a retry: attempt {answer.attempt} failed{_detail(answer)}"
            return text if answer.until is None else f"{text}; the next attempt is due in {_left(answer.until, speech)}"
        case WaitCause.TOO_LARGE | WaitCause.LABEL | WaitCause.ARRIVING:
            return f"is ready and {waits(answer, speech)}"
        case WaitCause.ENDING | WaitCause.RECORDING | WaitCause.BUNDLED | WaitCause.NODE_SILENT:
            return waits(answer, speech)
        case _:
            return f"is {'queued' if answer.cause in _QUEUED else 'ready'}{where} and {waits(answer, speech)}"


def waits(answer: Answer, speech: SentenceWriter, example: str = "") -> str:
    """What a ready task waits for. `example`: ` on ash`, if free amounts and running tasks are those of one of several
    nodes."""
    where = f" on {answer.node}" if answer.node else ""
    match answer.cause:
        case WaitCause.RESOURCES:
            assert answer.shortage is not None
            return f"waits for {_short(answer.shortage, speech, example)}{_queue(answer)}"
        case WaitCause.LOCALITY:
            what = _short(answer.shortage, speech, example) if answer.shortage else "its turn"
            return f"waits on the node that has its input files, for {what}; after some time other nodes may take it"
        case WaitCause.THROTTLE:
            assert answer.cap is not None
            cap = answer.cap
            why = cap.reason or f"at most {cap.most} of them may run at the same time"
            run = "runs" if cap.running == 1 else "run"
            return f"is held back by the throttle while {cap.running} of its category {run}{example}: {why}"
        case WaitCause.LARGER_FIRST:
            which = f"{speech.name(answer.first)!r} ({answer.larger})" if answer.first is not None else answer.larger
            return f"fits, but the free room is reserved for larger tasks that waited too long, such as {which}"
        case WaitCause.LABEL:
            return f"cannot start: {answer.detail}" if answer.detail else f"needs a node with {_label(answer)}"
        case WaitCause.STOPPING:
            return f"will not start: {answer.detail or 'the run is stopping'}"
        case WaitCause.NODE_SILENT:
            node = f"{answer.node}, which" if answer.node else "a node that"
            lost = "another node gets it when that one is declared lost"
            return f"is on {node} does not answer, and may be running there; {lost}{_detail(answer)}"
        case WaitCause.ARRIVING if answer.node:
            return f"is being sent to {answer.node}{_detail(answer)}"
        case WaitCause.RECORDING:
            return f"has run{where}; its result is being recorded"
        case WaitCause.ENDING:
            return f"was cancelled and is being terminated{where}"
        case WaitCause.BUNDLED:
            return f"is bundled with other short tasks{where} and runs after them"
    return _FIXED[answer.cause] + _detail(answer)


_FIXED = {
    WaitCause.RUNNING: "is running",
    WaitCause.TURN: "waits for the scheduler's next decision",
    WaitCause.ARRIVING: "is being placed: it has just become ready, or moves from one node to another",
    WaitCause.FETCHING: "waits for its input files, which are being fetched from other nodes",
    WaitCause.TOO_LARGE: "waits for a node that can run it: no current node can",
    WaitCause.NODE_LOST: "is being placed on another node: its node is lost",
    WaitCause.NO_NODE: "waits for a node: the cluster has none",
    WaitCause.STORE: "cannot continue: the cluster's store does not answer",
    WaitCause.ANOTHER_RUN: "waits for its run's turn: the cluster serves an earlier run first",
}


def _detail(answer: Answer) -> str:
    return f" ({answer.detail})" if answer.detail else ""


def _label(answer: Answer) -> str:
    return f"the label {answer.shortage.resource}" if answer.shortage is not None else "a label that no node has"


def _short(shortage: Shortage, speech: SentenceWriter, example: str) -> str:
    name = shortage.resource
    asked, free, total = (show_amount(name, each) for each in (shortage.asked, shortage.free, shortage.total))
    assumed = f"it declares none ({asked} {_are(asked)} assumed)"
    asks = assumed if shortage.reckoned else f"it asks for {asked}"
    text = f"{name}: {asks}, and {free} of {total} {_are(free)} free{example}"
    if not shortage.held_by:
        return text
    named = ", ".join(_holder(name, each, speech) for each in shortage.holders[:MOST_NAMED])
    rest = shortage.held_by - min(MOST_NAMED, len(shortage.holders))
    return f"{text}; held by {named}{f' and {rest:,} more' if rest else ''}"


def _are(amount: str) -> str:
    return "is" if amount.split()[0] == "1" else "are"


def _holder(resource: str, holder: ResourceHolder, speech: SentenceWriter) -> str:
    words = f"{speech.name(holder.task)!r} ({show_amount(resource, holder.amount)}"
    if holder.overdue:
        words += f", {_LONGER}"
    elif holder.until is not None:
        words += f", ends {_in_about(holder.until, speech)}"
    return words + ")"


def _left(moment: float, speech: SentenceWriter) -> str:
    return speech.seconds(max(0.0, moment - speech.now))


def _in_about(moment: float, speech: SentenceWriter) -> str:
    left = moment - speech.now
    return f"in about {speech.seconds(left)}" if left >= _ANY_MOMENT else "any moment"


def _queue(answer: Answer) -> str:
    """Its position in the queue."""
    if answer.queued < 2:
        return ""
    if answer.ahead is None:
        return f"; {answer.queued:,} tasks are queued"
    if not answer.ahead:
        return f"; it is the first of {answer.queued:,} in the queue, and others start before it only if they fit"
    by = f" (order {answer.order!r})" if answer.order else ""
    return (
        f"; {answer.ahead:,} of {answer.queued:,} queued tasks {'is' if answer.ahead == 1 else 'are'} ahead of it{by}"
    )


def _running(answer: Answer, speech: SentenceWriter) -> str:
    where = f" on {answer.node}" if answer.node else ""
    since = ""
    if answer.since is not None:
        since = f" since {speech.moment(answer.since)} ({speech.seconds(max(0.0, speech.now - answer.since))})"
    until = ""
    if answer.overdue:
        until = f", {_LONGER}"
    elif answer.until is not None:
        until = f", and should end {_in_about(answer.until, speech)}"
    more = f", {answer.detail}" if answer.detail else ""
    verb = "has been running" if since else "is running"
    return f"{verb}{where}{since}{more}, attempt {answer.attempt}{until}"


def _needs(answer: Answer, speech: SentenceWriter, verb: str) -> str:
    """`waits for the task 'b', which waits for ...`."""
    chain, root = answer.chain, answer.root
    first = repr(speech.name(chain[0]))
    what = f"{answer.unfinished:,} unfinished tasks, among them" if answer.unfinished > 1 else "the task"
    text = f"{verb} {what} {first}"
    if len(chain) > 1:
        text += f", which {verb} {_path(chain[1:], answer.links - 1, speech, verb)}"
    if root is not None and root.cause is WaitCause.RUNNING:
        text += f"; {repr(speech.name(root.task)) if len(chain) > 1 else 'that'} {_running(root, speech)}"
    return text


def _path(chain: list[int], links: int, speech: SentenceWriter, verb: str) -> str:
    """`'b', which depends on 'c'`; only the ends of a long one. `chain` may lack the middle, `links` is its length."""
    names = [repr(speech.name(task)) for task in (chain if links <= _LONGEST_CHAIN else chain[:2] + chain[-2:])]
    if links > _LONGEST_CHAIN:
        left_out = links - 4
        return f"{names[0]}, which {verb} {names[1]}, and so on over {left_out:,} more to {names[-2]} and {names[-1]}"
    return f", which {verb} ".join(names)


def _expectation(answer: Answer, speech: SentenceWriter) -> str:
    if answer.starts is None or answer.cause is WaitCause.RETRY:
        return ""
    left, name = answer.starts - speech.now, repr(speech.name(answer.task))
    if left < _ANY_MOMENT:
        return f" {name} should start any moment."
    return f" {name} is expected to start at about {speech.moment(answer.starts)} (in {speech.seconds(left)})."


# ---- tasks that are over ---------------------------------------------------------------------------------------------


def _done(answer: Answer, speech: SentenceWriter) -> str:
    when = _ending(answer.tried, speech) if answer.tried is not None and answer.tried.outcome == "ok" else ""
    if answer.earlier:
        return f"is not part of this run: it was up to date when the run began{f': {when}' if when else ''}"
    return f"was {when}" if when else "is done"


def _failed(answer: Answer, speech: SentenceWriter) -> str:
    if answer.cancelled:
        return "was cancelled"
    if answer.tried is not None and answer.tried.outcome != "ok":
        return _ending(answer.tried, speech)
    return f"failed: {answer.detail}" if answer.detail else "failed or was cancelled"


def _ending(tried: LastAttempt, speech: SentenceWriter) -> str:
    """`done at 14:05:07 in 3.2 s`, or `failed at ...`."""
    when = speech.moment(tried.ended)
    wrote = "; 'shoal output' prints what it wrote" if tried.wrote else ""
    if tried.outcome == "ok":
        return f"done at {when} in {speech.seconds(tried.ended - tried.began)}"
    if tried.outcome == "cancelled":
        return f"was cancelled at {when}{wrote}"
    attempts = f" after {tried.number:,} attempts" if tried.number > 1 else ""
    return f"failed at {when}{attempts}: {tried.message}{wrote}"


def _lost(answer: Answer, speech: SentenceWriter) -> str:
    """`it depends on 'b', which failed: ...`."""
    if not answer.chain:
        return "a task that it depends on failed or was cancelled"
    root = answer.chain[-1]
    how = clause(answer.root, speech) if answer.root is not None else "failed or was cancelled"
    if answer.links == 1:
        return f"it depends on {speech.name(root)!r}, which {how}"
    return f"it depends on {_path(answer.chain, answer.links, speech, 'depends on')}; {speech.name(root)!r} {how}"


# ---- between two runs ------------------------------------------------------------------------------------------------


def _between_runs(answer: Answer, verdict: PlanVerdict, speech: SentenceWriter) -> str:
    """What became of the task in the last run, if it did not get that far; then what the next run would do with it."""
    name, tried = repr(speech.name(answer.task)), answer.tried
    known = f" It {'was ' if tried.outcome == 'ok' else ''}{_ending(tried, speech)}." if tried is not None else ""
    if answer.cause is WaitCause.TOO_LARGE:
        return f"{answer.detail}.{known}"
    before = ""
    if answer.chain:
        before = f"{name} did not run in the last run: {_lost(answer, speech)}. "
    elif answer.cancelled and (tried is None or tried.outcome != "cancelled"):
        before = f"{name} was cancelled in the last run. "
    if verdict.dependencies is not None:
        return f"{before}{name} runs no command; {_group(verdict, speech)}."
    if answer.cause is WaitCause.UP_TO_DATE:
        when = (
            f": {_ending(tried, speech)}, and since then {_unchanged(verdict)} not changed" if tried is not None else ""
        )
        return f"{before}{name} is up to date{when}.{_absent(verdict)}"
    if answer.cause is WaitCause.EXCLUDED:
        return f"{before}{name} would not run: no requested target needs it.{known}"
    return f"{before}{name} would run because {verdict.reason}.{_origin(verdict, speech)}{known}"


def _group(verdict: PlanVerdict, speech: SentenceWriter) -> str:
    number = verdict.dependencies
    if verdict.unmet:
        tasks = "1 task" if len(verdict.unmet) == 1 else f"{len(verdict.unmet):,} tasks"
        return f"it depends on {tasks} that would run: {_some([speech.name(task) for task in verdict.unmet])}"
    if not number:
        return "it has no dependencies"
    return "its dependency is up to date" if number == 1 else f"its {number:,} dependencies are up to date"


def _unchanged(verdict: PlanVerdict) -> str:
    """`its command, 2 input files and 1 output file have`; what the task has none of is left out."""
    numbers = (verdict.inputs, "input"), (verdict.outputs, "output")
    files = [f"{number:,} {kind} file{'s' * (number != 1)}" for number, kind in numbers if number]
    return f"{', '.join(['its command', *files[:-1]])} and {files[-1]} have" if files else "its command has"


def _absent(verdict: PlanVerdict) -> str:
    if not verdict.absent:
        return ""
    if len(verdict.absent) == 1:
        return (
            f" Its output {verdict.absent[0]!r} is not here: nothing needed it, so it stayed on a node or was removed."
        )
    names = _some(verdict.absent)
    return f" Its outputs {names} are not here: nothing needed them, so they stayed on nodes or were removed."


def _origin(verdict: PlanVerdict, speech: SentenceWriter) -> str:
    if verdict.origin is None:
        return ""
    if verdict.steps == 1:
        return f" That one runs because {verdict.origin_reason}."
    return f" The chain begins with {speech.name(verdict.origin)!r}, which runs because {verdict.origin_reason}."


def _some(names: Sequence[str]) -> str:
    """`'a', 'b', 'c' and 12 more`."""
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    return f"{shown} and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else shown


# ---- whole runs ------------------------------------------------------------------------------------------------------


def run_lines(answer: RunAnswer, speech: SentenceWriter) -> list[str]:
    """What is running, what is not, and for what reasons."""
    lines = [_headline(answer)]
    for group in answer.groups:
        lines.append(f"  {group.count:,}{_group_line(group, speech)}")
    if answer.waiting:
        lines.append(f"  {answer.waiting:,} {_verb(answer.waiting, 'waits', 'wait')} for unfinished dependencies")
    if answer.failed or answer.doomed:
        doomed = f"; {answer.doomed:,} cannot run because of that" if answer.doomed else ""
        lines.append(f"  {_failures(answer)}{doomed}")
    return lines + [f"  {note}" for note in answer.notes]


def record_lines(record: RunRecord, speech: SentenceWriter) -> list[str]:
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


def _failures(answer: RunAnswer) -> str:
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
    is_all = not any(group.cause is WaitCause.NODE_SILENT for group in answer.groups)
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
    WaitCause.RETRY: "the ready tasks wait for a retry",
    WaitCause.RESOURCES: "too little is free for the ready tasks",
    WaitCause.LOCALITY: "the ready tasks wait on the nodes that have their input files",
    WaitCause.LABEL: "no node has the label that the ready tasks ask for",
    WaitCause.TOO_LARGE: "no node can run the ready tasks",
    WaitCause.THROTTLE: "the throttle holds all ready tasks back",
    WaitCause.LARGER_FIRST: "the free room is reserved for larger tasks",
    WaitCause.TURN: "the scheduler is choosing the next tasks",
    WaitCause.STOPPING: "the run is stopping",
    WaitCause.FETCHING: "input files are being fetched",
    WaitCause.RECORDING: "results are being recorded",
    WaitCause.ARRIVING: "the ready tasks are being placed on nodes",
    WaitCause.NODE_LOST: "nodes are lost, and their tasks are being placed on others",
    WaitCause.NODE_SILENT: "the nodes that have tasks do not answer",
    WaitCause.NO_NODE: "the cluster has no node",
    WaitCause.STORE: "the cluster's store does not answer",
    WaitCause.ANOTHER_RUN: "the cluster serves another run first",
    WaitCause.RUNNING: "the nodes have not reported their running tasks yet",
    WaitCause.ENDING: "cancelled tasks are being terminated",
    WaitCause.BUNDLED: "the node has not reported its bundle of short tasks yet",
    WaitCause.NEEDS: "all tasks wait for dependencies",
}


def _group_line(group: WaitingGroup, speech: SentenceWriter) -> str:
    """` such as 'x': each waits for cores: ...`. The example has a number below 0 if no task of the group is known."""
    one = msgspec.structs.replace(group.example, ahead=None, queued=0)
    nowhere = (
        WaitCause.LABEL,
        WaitCause.TOO_LARGE,
        WaitCause.NODE_SILENT,
    )  # the node that keeps them is not the reason
    where = f" on {one.node}" if one.node and one.cause not in nowhere else ""
    name = repr(speech.name(one.task)) if one.task >= 0 else ""
    if one.cause is WaitCause.RETRY and one.until is not None:
        left = speech.seconds(max(0.0, one.until - speech.now))
        if group.count == 1:
            return f" ({name}{where}) waits for a retry, due in {left}"
        return f" wait for a retry; the first is {name}{where}, due in {left}"
    several = group.nodes > 1
    if one.cause is not WaitCause.NODE_SILENT:  # the node is named beside the example
        one.node = ""
    says = waits(one, speech, where if several else "")
    if not name:
        return f" {says}" if group.count == 1 else f": each {says}"
    if group.count == 1:
        return f" ({name}{where}) {says}"
    return f"{f' on {group.nodes:,} nodes,' if several else ''} such as {name}{where}: each {says}"
