"""`shoal run` of a net: displays, signals, requests and the final report; `shoal status` and `shoal why` of nets."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from types import FrameType
from typing import Any

from shoal.core.quantities import count, show_cores, show_seconds
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import STRICT
from shoal.errors import InputError
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.executor import cluster_client
from shoal.execution.nets.journal import read_past
from shoal.execution.nets.run import NetBegin, NetRun, digest_of, problem_summary, replayed
from shoal.execution.processes.shell import NO_BASH, program
from shoal.execution.processes.wakeup import catchable
from shoal.execution.requests import answer, names_to_cancel, take_puts, why_stopped
from shoal.ledger.records import NetMarked, decodable, decodable_parts
from shoal.ledger.status import Follower, RunPhase, RunStatus
from shoal.ledger.workspace import Workspace
from shoal.petri import Net
from shoal.petri.net import Arc, NetShown, TransitionShown
from shoal.petri.records import Task
from shoal.ui.cli.screen import Screen
from shoal.ui.cli.status_tables import damage_line, run_as_data, show_moment
from shoal.ui.cli.text import cut, printable, printable_lines, table

REDRAW_SECONDS = 0.2
PLAIN_SECONDS = 10.0
NAMED_FAILURES = 20
MOST_NAMED = 6


def numbered(counts: Mapping[str, int], nothing: str = "none") -> str:
    """`expand 12, improve 3`, the largest first."""
    some = sorted(((name, number) for name, number in counts.items() if number), key=lambda pair: -pair[1])
    shown = [f"{name} {number:,}" for name, number in some[:MOST_NAMED]]
    if len(some) > MOST_NAMED:
        shown.append(f"{len(some) - MOST_NAMED} others")
    return ", ".join(shown) or nothing


def as_json(value: object) -> Any:
    """Converts the value to JSON data; values without a JSON form become their Python representation."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


class NetDisplay:
    """Shows failures only. The other displays extend it."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.mark = NetMarked(time.time(), {}, {}, {}, [])
        self.began = time.monotonic()
        self._ended: deque[dict[str, Any]] = deque()
        self._marks: deque[NetMarked] = deque()
        self._printed: deque[str] = deque()
        self._failures = 0

    # ---- called in the net's thread

    def task_over(self, task: Task, started: float, ended: float, cpu: float, problem: str) -> None:
        task_facts = {"time": ended, "name": f"{task.transition.name} {task.id}", "transition": task.transition.name}
        times = {"seconds": round(ended - started, 6), "cpu": round(cpu, 6)}
        verdict = "done" if not problem else "failed" if task.transition.on_error is None else "caught"
        self._ended.append({**task_facts, "attempt": task.attempt, "verdict": verdict, **times, "message": problem})

    def marked(self, mark: NetMarked) -> None:
        self._marks.append(mark)

    def printed(self, text: str) -> None:
        self._printed.append(text)

    # ---- called in the main thread

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        """Called when the net has been started."""

    def show(self) -> None:
        """Shows what happened since the last call."""
        pieces = [self._printed.popleft() for _ in range(len(self._printed))]
        if text := "".join(pieces).rstrip("\n"):
            self.show_printed(text)
        while self._ended:
            self.show_task(self._ended.popleft())
        while self._marks:
            self.mark = self._marks.popleft()
            self.show_mark()
        self.tick(time.monotonic())

    def show_task(self, task: dict[str, Any]) -> None:
        if task["verdict"] == "failed":
            self._failures += 1
            if self._failures <= NAMED_FAILURES:
                self.screen.say(self.screen.paint(printable_lines(f"failed: {task['name']}: {task['message']}"), "red"))
            if self._failures == NAMED_FAILURES:
                self.screen.say("shoal: further failures are only counted; 'shoal status' lists them")

    def show_printed(self, text: str) -> None:
        """Shows text that the net's functions printed."""
        self.screen.say(text)

    def show_mark(self) -> None:
        """Called when the marking is new."""

    def tick(self, now: float) -> None:
        """Called about ten times a second."""

    def note(self, text: str) -> None:
        self.screen.say(printable_lines(f"shoal: {text}"))

    def end(self, result: dict[str, Any]) -> None:
        """Called when the run is over; `told` is its result as data."""
        self.screen.erase()

    def state_lines(self) -> list[str]:
        """The state of the net in two lines."""
        mark = self.mark
        done, running = sum(mark.done.values()), sum(mark.running.values())
        took = show_seconds(time.monotonic() - self.began)
        failed = f", {count(len(mark.problems), 'problem')}" if mark.problems else ""
        return [
            f"{done:,} done, {running:,} running ({numbered(mark.running)}){failed}, {took}",
            f"tokens: {numbered(mark.tokens)}",
        ]


class PlainNetDisplay(NetDisplay):
    """Prints a line at the start and one every ten seconds."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        how = "continuing" if resumed else "running"
        self.screen.say(f"{how} net {net!r} on {show_cores(cores)}")
        self._next = self.began + PLAIN_SECONDS

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + PLAIN_SECONDS
            self.screen.say(printable("; ".join(self.state_lines())))


class LiveNetDisplay(NetDisplay):
    """Two lines that are redrawn in place."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        self._next = self.began + REDRAW_SECONDS

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + REDRAW_SECONDS
            width = self.screen.size()[0] - 1
            self.screen.draw([cut(printable(line), width) for line in self.state_lines()])


class JsonNetDisplay(NetDisplay):
    """Writes `run_started`, `task_ended`, `marked`, `printed`, `note` and `run_ended`, one object per line."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        self._emit("run_started", time=time.time(), net=net, resumed=resumed, cores=cores)

    def show_task(self, task: dict[str, Any]) -> None:
        self._emit("task_ended", **task)

    def show_mark(self) -> None:
        mark = self.mark
        marking = {"tokens": mark.tokens, "running": mark.running, "done": mark.done, "problems": mark.problems}
        self._emit("marked", time=mark.time, **marking)

    def show_printed(self, text: str) -> None:
        self._emit("printed", text=text)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def end(self, result: dict[str, Any]) -> None:
        self._emit("run_ended", **result)

    def _emit(self, event: str, **fields: Any) -> None:
        self.screen.say(json.dumps({"event": event, **fields}))


class Printing(io.TextIOBase):
    """Replaces standard output while a net runs: text that its functions print is displayed, and not mixed with the
    result."""

    def __init__(self, display: NetDisplay) -> None:
        self._display = display

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._display.printed(text)
        return len(text)


def choose_net_display(arguments: argparse.Namespace) -> NetDisplay:
    """Returns the display selected by the options, or the one that suits standard error."""
    if arguments.json:
        return JsonNetDisplay(Screen(sys.stdout))
    screen = Screen(sys.stderr)
    if arguments.quiet:
        return NetDisplay(screen)
    return PlainNetDisplay(screen) if arguments.plain or not screen.live else LiveNetDisplay(screen)


MOST_SHOWN = 10
_NEEDED = ("take", "read")
"""Arc kinds that need a token."""
NO_MARK = NetMarked(0.0, {}, {}, {}, [])


def net_headline(name: str, follower: Follower, phase: RunPhase, now: float) -> str:
    """One line: the net and the outcome of its latest run."""
    state = follower.state
    mark = state.mark or NO_MARK
    what = f"{name}: net {state.net.name!r}" if state.net is not None else name
    done = f"{count(sum(mark.done.values()), 'task')} done"
    began = state.start.time if state.start is not None else now
    if phase is RunPhase.RUNNING:
        who = follower.holder
        by = f" by process {who.pid} on {who.host}" if who and who.pid else ""
        return f"{what} running for {show_seconds(max(now, state.last_time) - began)}{by}, {done}"
    if state.end is None:
        return f"{what} killed at about {show_moment(state.last_time, now)}, {done}; 'shoal run' continues it"
    how = {"ok": "ended", "failed": "failed"}.get(state.end.outcome)
    if how is None:
        how = f"stopped ({state.end.outcome})"
        done += "; 'shoal run' continues it"
    took = show_seconds(state.last_time - began)
    return f"{what} {how} at {show_moment(state.last_time, now)} after {took}, {done}"


def describe_net(follower: Follower, phase: RunPhase, now: float, *, every: bool = False) -> list[str]:
    """The full text output: tokens by place, tasks by transition, problems."""
    state = follower.state
    mark = state.mark or NO_MARK
    lines = [net_headline(follower.workspace.workflow.rsplit("/", 1)[-1], follower, phase, now)]
    lines += damage_line(follower)
    if state.start is not None and state.start.targets:
        lines.append(f"asked for: {' '.join(map(decodable, state.start.targets))}")
    lines += table([("place", "tokens"), *((name, f"{number:,}") for name, number in mark.tokens.items())])
    running = mark.running if phase is RunPhase.RUNNING else {}
    names = list(dict.fromkeys([*mark.done, *running]))
    rows = [(name, f"{running.get(name, 0):,}", f"{mark.done.get(name, 0):,}") for name in names]
    if rows:
        lines += table([("task", "under way", "done"), *rows])
    problems = problem_summary(mark.problems)
    most = len(problems) if every else MOST_SHOWN
    if problems:
        lines += ["problems:", *(f"  {problem}" for problem in problems[:most])]
    if len(problems) > most:
        lines.append(f"  and {len(problems) - most:,} more ('shoal status --verbose' lists them)")
    return lines


def net_as_data(follower: Follower, phase: RunPhase) -> dict[str, Any]:
    """The same as data; times are seconds since the epoch."""
    state = follower.state
    mark = state.mark or NO_MARK
    return {
        "workflow": follower.workspace.workflow,
        "net": state.net.name if state.net is not None else None,
        "state": phase.value,
        **run_as_data(state),
        "targets": decodable_parts(state.start.targets) if state.start else [],
        "damaged_bytes": follower.damaged_bytes(),
        "marked": mark.time,
        "tokens": mark.tokens,
        "running": mark.running if phase is RunPhase.RUNNING else {},
        "done": mark.done,
        "problems": mark.problems,
    }


def why_nothing_runs(net: NetShown, state: RunStatus, phase: RunPhase, wanted: str | None) -> list[str]:
    """Why transitions do not fire: all of them, or the one named `wanted`."""
    known = [transition.name for transition in net.transitions]
    if wanted is not None and wanted not in known:
        raise InputError(
            f"the net {net.name!r} has no transition {wanted!r}", remedy=f"its transitions are {', '.join(known)}"
        )
    tokens = state.mark.tokens if state.mark is not None else {place.name: place.tokens for place in net.places}
    lines = []
    if wanted is None:
        lines.append(_of_the_whole(net, state, phase))
    for transition in net.transitions:
        if wanted in (None, transition.name):
            lines.append(f"{transition.name}: {_held_by(net, transition, state, phase, tokens)}")
    return lines


def _of_the_whole(net: NetShown, state: RunStatus, phase: RunPhase) -> str:
    if phase is RunPhase.NEVER:
        return f"the net {net.name!r} has not run yet; this is its initial marking"
    if _is_finished(state, phase):
        failed = state.end is not None and state.end.outcome == "failed"
        how = "failed, and 'shoal run' retries it" if failed else "has ended"
        return f"the net {net.name!r} {how}; this is its last marking"
    if phase is not RunPhase.RUNNING:
        return f"the net {net.name!r} is not running; this is its last marking"
    running = state.mark.running if state.mark is not None else {}
    return f"the net {net.name!r} is running; tasks: {numbered(running, 'none')}"


def _is_finished(state: RunStatus, phase: RunPhase) -> bool:
    """Whether the net has ended, so that `shoal run` does not continue it."""
    return phase is RunPhase.ENDED and state.end is not None and state.end.outcome in ("ok", "failed")


def _left_with(transition: TransitionShown, net: NetShown, state: RunStatus, tokens: dict[str, int]) -> str:
    """For an ended net: how many tasks a transition completed, and the tokens left on its places."""
    done = (state.mark or NO_MARK).done.get(transition.name)
    words = [f"{count(done, 'task')} done"] if done is not None else []
    places = dict.fromkeys(arc.place for arc in net.arcs if arc.transition == transition.name and arc.kind in _NEEDED)
    left = [f"{count(tokens[place], 'token')} on {place!r}" for place in places if tokens.get(place)]
    words.append(f"{' and '.join(left)} left" if left else "no token left")
    return f"has ended: {', '.join(words)}"


def _held_by(
    net: NetShown, transition: TransitionShown, state: RunStatus, phase: RunPhase, tokens: dict[str, int]
) -> str:
    mark = state.mark or NO_MARK
    running = mark.running.get(transition.name, 0) if phase is RunPhase.RUNNING else 0
    runs = f"{count(running, 'task')} running; " if running else ""
    aside = [problem for problem in mark.problems if f"the {transition.kind} {transition.name!r}" in problem]
    lacking = _lacking(transition.name, net.arcs, tokens)
    if _is_finished(state, phase):
        why = _left_with(transition, net, state, tokens)
    elif lacking:
        why = f"waits for {' and '.join(lacking)}"
    elif transition.guards:
        why = "has tokens on all its places; its guards and keys accept none of them yet"
    else:
        why = "has tokens on all its places; it waits for a free slot or for equal keys, or may no longer fire"
    return runs + why + (f"; {aside[0]}" if aside else "")


def _lacking(name: str, arcs: list[Arc], tokens: dict[str, int]) -> list[str]:
    wanted = Counter(arc.place for arc in arcs if arc.transition == name and arc.kind in _NEEDED)
    return [
        f"{count(number - tokens.get(place, 0), 'token')} on {place!r}"
        for place, number in wanted.items()
        if tokens.get(place, 0) < number
    ]


TICK_SECONDS = 0.1
MOST_PROBLEMS = 10
OK, FAILED, INTERRUPTED, TERMINATED = 0, 1, 130, 143
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MEANINGLESS = {
    "fail_fast": "--fail-fast",
    "keep_going": "--keep-going",
    "order": "--order",
    "throttle": "--throttle",
    "detach": "--detach",
    "explain": "--explain",
    "overwrite": "--overwrite",
    "series": "--series",
    "trace": "--trace",
    "paranoid": "--paranoid",
}
DEFAULTS = {"check": "time", "sizing": "max-throughput", "policy": "flds", "files": "shared", "to": "one"}
LOCAL = {"jobs": "--jobs", "memory": "--memory", "disk": "--disk", "resource": "--resource", "label": "--label"}


def run_net(
    net: Net,
    workspace: Workspace,
    words: Sequence[str],
    arguments: argparse.Namespace,
    node: Resources,
    cluster: str | None,
    open_page: Callable[[], None],
) -> int:
    """Runs the net until it ends or cannot continue, and returns the exit status. `open_page` is called before the
    start, and not for a net that is refused."""
    _refuse_meaningless(net, words, arguments)
    open_page()
    if not arguments.force and _is_over(net, workspace, words, arguments):
        return OK
    display = choose_net_display(arguments)
    client = cluster_client(cluster) if cluster else ExecutorClient(node)
    signals = Signals()
    try:
        with redirect_stdout(Printing(display)):
            run = NetRun(
                net,
                client,
                NetBegin(afresh=arguments.force, words=words),
                workspace=workspace,
                directory=workspace.base,
                listener=display,
            )
            display.begin(net.name, run.resumed, client.node.get("cores") / FRACTION)
            if run.ended_on:
                display.note(f"a killed client left tasks on the cluster {run.ended_on}; they were stopped")
            for note in _notes(net, is_here=not cluster):
                display.note(note)
            _attend(run, workspace, signals, display)
    finally:
        client.close(stop=True)
        client.join()
        signals.restore()
    display.show()
    return _report(run, workspace, signals.stopping, display, arguments)


def _refuse_meaningless(net: Net, words: Sequence[str], arguments: argparse.Namespace) -> None:
    for word in words:
        if "=" not in word:
            raise InputError(f"a net has no targets such as {word!r}", remedy="parameters are NAME=VALUE")
    refused = [option for name, option in MEANINGLESS.items() if getattr(arguments, name)]
    refused += [f"--{name}" for name, usual in DEFAULTS.items() if getattr(arguments, name) != usual]
    if refused:
        raise InputError(f"{refused[0]} has no effect on the net {net.name!r}", remedy="leave it out")
    if arguments.cluster:
        for name, option in LOCAL.items():
            if getattr(arguments, name):
                raise InputError(f"{option} applies to this machine, but the net runs on a cluster")


def _notes(net: Net, *, is_here: bool) -> Iterator[str]:
    """Settings of the net's tasks that have no effect."""
    tasks = [spec for spec in net.transitions.values() if spec.is_task]
    if any(spec.profile.resources.get("memory") > 0 for spec in tasks):
        yield "memory= of a net's tasks is reserved, but not enforced: a task that uses more is not killed"
    is_strict = any(spec.command is not None and spec.profile.shell == STRICT for spec in tasks)
    if is_here and is_strict and program("bash") is None:
        yield NO_BASH


def _is_over(net: Net, workspace: Workspace, words: Sequence[str], arguments: argparse.Namespace) -> bool:
    """Whether the same net has already ended successfully; if so, reports it."""
    past = read_past(workspace)
    if past.begun is None or past.outcome != "ok" or past.begun.digest != digest_of(net, words):
        return False
    flow = replayed(net, past)
    how = f"net {net.name!r} has already ended, with {count(sum(past.done.values()), 'task')} done"
    if arguments.json:
        display = choose_net_display(arguments)
        display.note(how)
        display.end(ending(OK, "", past.done, flow.marking(), flow.problems(), flow.has_result, flow.result))
    else:
        _print_result(flow.has_result, flow.result, flow.marking(), f"{how}; --force runs it again", arguments.quiet)
    return True


class Signals:
    """Records signals sent to this process. The main thread acts on them when it polls."""

    def __init__(self) -> None:
        self.stopping = 0
        self.knocked = False
        caught = catchable((*STOPPING, signal.SIGUSR1))
        self._old: dict[int, Any] = {number: signal.signal(number, self._note) for number in caught}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.knocked = True
        else:
            self.stopping = self.stopping or number

    def restore(self) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)


def _attend(run: NetRun, workspace: Workspace, signals: Signals, display: NetDisplay) -> None:
    """Until the run is over: shows it, handles requests, stops it on request."""
    asked_to_stop = False
    while not run.wait(TICK_SECONDS):
        if signals.knocked:
            signals.knocked = False
            _take_requests(run, workspace)
        if signals.stopping and not asked_to_stop:
            asked_to_stop = True
            reason = why_stopped(workspace, signals.stopping)
            display.note(f"stopping: {reason}")
            run.stop(reason)
        display.show()
    display.show()
    _take_requests(run, workspace)  # replies to late requests that the net is over


def _take_requests(run: NetRun, workspace: Workspace) -> None:
    for path, asked in take_puts(workspace):
        problem = None
        try:
            if asked.place is not None:
                run.put(asked.place, *asked.values)
            if asked.close:
                run.close()
        except InputError as error:
            problem = error
        answer(path, problem)
    for name in names_to_cancel(workspace):
        number = name.rpartition(" ")[2]
        if number.isdigit():
            run.cancel(int(number))


def ending(
    status: int,
    stopped: str,
    done: dict[str, int],
    tokens: dict[str, int],
    problems: Sequence[str],
    has_result: bool,
    result: object,
) -> dict[str, Any]:
    """How a run ended, as data."""
    facts = {"time": time.time(), "status": status, "stopped": stopped, "done": done, "tokens": tokens}
    return {**facts, "problems": list(problems), "has_result": has_result, "result": as_json(result)}


def _report(
    run: NetRun, workspace: Workspace, stopping: int, display: NetDisplay, arguments: argparse.Namespace
) -> int:
    problems, done, tokens = run.problems(), run.done_tasks(), run.marking()
    status = FAILED if problems and not run.has_result else OK
    if run.stopped:
        status = INTERRUPTED if stopping == signal.SIGINT else TERMINATED if stopping else FAILED
    result = run.result() if status == OK else None
    display.end(ending(status, run.stopped, done, tokens, problems, run.has_result, result))
    if arguments.json:
        return status
    name = os.path.basename(workspace.workflow)
    took = show_seconds(time.monotonic() - display.began)
    cost = f"{count(sum(done.values()), 'task')} done ({numbered(done)}) in {took}"
    if status == OK:
        _print_result(run.has_result, result, tokens, f"net {run.net.name!r} ended: {cost}", arguments.quiet)
        return status
    how = f"stopped ({run.stopped})" if run.stopped else "could not complete"
    lines = [f"net {run.net.name!r} {how}: {cost}", f"tokens: {numbered(tokens)}"]
    lines += _problem_lines(problems)
    lines.append(f"'shoal run {name}' {'continues it' if run.stopped else 'retries what failed'}")
    Screen(sys.stderr if arguments.quiet else sys.stdout).say(printable_lines("\n".join(lines)))
    return status


def _problem_lines(problems: Sequence[str]) -> list[str]:
    found = problem_summary(problems)
    lines = [f"  {problem}" for problem in found[:MOST_PROBLEMS]]
    if len(found) > MOST_PROBLEMS:
        lines.append(f"  and {len(found) - MOST_PROBLEMS} more")
    return ["problems:", *lines] if lines else []


def _print_result(has_result: bool, result: object, tokens: dict[str, int], head: str, quiet: bool) -> None:
    screen = Screen(sys.stdout)
    if quiet:
        if has_result:
            screen.say(str(result))
        return
    screen.say(screen.paint(head, "green"))
    screen.say(f"result: {result}" if has_result else printable(f"tokens: {numbered(tokens)}"))
