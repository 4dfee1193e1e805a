"""`shoal run` of a file that defines a net: starts it, minds signals and requests, tells how it ended."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from types import FrameType
from typing import Any

from shoal.core.quantities import count, show_seconds
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import STRICT
from shoal.errors import InputError
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.executor import cluster_client
from shoal.execution.nets.journal import read_past
from shoal.execution.nets.run import NetRun, digest_of, problems_in_words, replayed
from shoal.execution.processes.shell import NO_BASH, program
from shoal.execution.processes.wakeup import heeded
from shoal.execution.requests import answer, names_to_cancel, take_puts, why_stopped
from shoal.ledger.workspace import Workspace
from shoal.petri import Net
from shoal.ui.cli.net_display import NetDisplay, Printing, as_json, choose_net_display, numbered
from shoal.ui.cli.screen import Screen
from shoal.ui.cli.text import printable, printable_lines

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
    """Runs the net to its end, or as far as it comes, and returns the exit status; `open_page` is called before it
    begins, and not of one that is refused."""
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
                workspace=workspace,
                afresh=arguments.force,
                directory=workspace.base,
                words=words,
                listener=display,
            )
            display.begin(net.name, run.resumed, client.node.get("cores") / FRACTION)
            if run.ended_on:
                display.note(f"a killed client had left tasks on the cluster {run.ended_on}: they were ended")
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
            raise InputError(f"{word!r} is asked for, but a net has no targets", remedy="parameters are NAME=VALUE")
    refused = [option for name, option in MEANINGLESS.items() if getattr(arguments, name)]
    refused += [f"--{name}" for name, usual in DEFAULTS.items() if getattr(arguments, name) != usual]
    if refused:
        raise InputError(f"{refused[0]} means nothing for the net {net.name!r}", remedy="leave it out")
    if arguments.cluster:
        for name, option in LOCAL.items():
            if getattr(arguments, name):
                raise InputError(f"{option} is about this machine, and the net is to run on a cluster")


def _notes(net: Net, *, is_here: bool) -> Iterator[str]:
    """What is not as the net's tasks would have it."""
    tasks = [spec for spec in net.transitions.values() if spec.is_task]
    if any(spec.profile.resources.get("memory") > 0 for spec in tasks):
        yield "memory= of the tasks of a net is reserved and not held: one that takes more is not ended"
    is_strict = any(spec.command is not None and spec.profile.shell == STRICT for spec in tasks)
    if is_here and is_strict and program("bash") is None:
        yield NO_BASH


def _is_over(net: Net, workspace: Workspace, words: Sequence[str], arguments: argparse.Namespace) -> bool:
    """Whether the same net has ended well before; then that is told."""
    past = read_past(workspace)
    if past.begun is None or past.outcome != "ok" or past.begun.digest != digest_of(net, words):
        return False
    flow = replayed(net, past)
    how = f"net {net.name!r} has ended before, with {count(sum(past.done.values()), 'task')} done"
    if arguments.json:
        display = choose_net_display(arguments)
        display.note(how)
        display.end(ending(OK, "", past.done, flow.marking(), flow.problems(), flow.has_result, flow.result))
    else:
        _print_result(flow.has_result, flow.result, flow.marking(), f"{how}; --force runs it again", arguments.quiet)
    return True


class Signals:
    """What this process was sent; nothing is done before the main thread looks."""

    def __init__(self) -> None:
        self.stopping = 0
        self.knocked = False
        caught = heeded((*STOPPING, signal.SIGUSR1))
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
    """Until it is over: shows it, takes requests, stops it when asked to."""
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
    _take_requests(run, workspace)  # who put tokens too late is told so


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
    told = {"time": time.time(), "status": status, "stopped": stopped, "done": done, "tokens": tokens}
    return {**told, "problems": list(problems), "has_result": has_result, "result": as_json(result)}


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
    how = f"stopped ({run.stopped})" if run.stopped else "could not come to a result"
    lines = [f"net {run.net.name!r} {how}: {cost}", f"tokens: {numbered(tokens)}"]
    lines += _problem_lines(problems)
    lines.append(f"'shoal run {name}' {'goes on from there' if run.stopped else 'tries again what failed'}")
    Screen(sys.stderr if arguments.quiet else sys.stdout).say(printable_lines("\n".join(lines)))
    return status


def _problem_lines(problems: Sequence[str]) -> list[str]:
    found = problems_in_words(problems)
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
