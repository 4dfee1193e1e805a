"""A running net as a program sees it: put tokens, query places, wait for the result; and resuming interrupted runs."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as Late
from types import CodeType, FunctionType
from typing import Any

import msgspec

from shoal.errors import InputError, RunError
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.options import CallOptionValues
from shoal.execution.nets.driver import NetDriver, NetListener, NetTaskSender
from shoal.execution.nets.journal import NetJournal, PastNetRun, dumps, read_past, run_started
from shoal.extensions import load_extension
from shoal.ledger.cluster_notes import drop_net_note, may_have_remote_tasks, read_net_note, write_net_note
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.petri import Net, NetFlow, Place
from shoal.petri import records as r
from shoal.petri.transition import Transition

PLAIN = (str, int, float, complex, bool, bytes, type(None))
_DEEPEST = 8
"""Maximum depth of followed function calls."""


def digest_of(net: Net, words: Sequence[str] = ()) -> str:
    """Returns the digest of a net made with these command-line words; an interrupted run resumes only under the same
    digest."""
    seen: dict[int, None] = {}
    parts: list[object] = [net.name, net.keep_open, list(words)]
    for name, spec in net.places.items():
        parts += [name, repr(spec.type), [_plain(token) for token in spec.tokens]]
    for transition in net.transitions.values():
        parts += [_arcs(transition), [_function(function, seen) for function in _repeated(transition)]]
    return hashlib.sha256(repr(parts).encode(errors="replace")).hexdigest()[:16]


def _arcs(transition: Transition) -> list[object]:
    ports = zip(transition.port_names, transition.ports, strict=True)
    places = [transition.put, transition.within, transition.on_error]
    return [
        transition.name,
        transition.is_task,
        [(name, port.kind, port.place.name) for name, port in ports],
        [place.name if place is not None else "" for place in places],
        transition.priority,
        transition.once,
        transition.group,
    ]


def _repeated(transition: Transition) -> list[object]:
    """Returns the functions that resuming calls again."""
    functions: list[object] = [guard.function for guard in transition.guards]
    functions += [port.key for port in transition.ports if port.key is not None]
    functions += [transition.gives] if transition.gives is not None else []
    return functions if transition.is_task else [*functions, transition.function]


def _plain(value: object) -> object:
    """Returns the value if its representation is the same in every process."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return type(value).__qualname__


def _function(function: object, seen: dict[int, None], depth: int = 0) -> object:
    """Returns the code of a function, of those it calls, and the plain values that it refers to."""
    if not isinstance(function, FunctionType) or id(function) in seen or depth > _DEEPEST:
        return _plain(function)
    seen[id(function)] = None
    code = function.__code__
    found: list[object] = [_code(code), _plain(function.__defaults__)]
    around = [function.__globals__.get(name) for name in code.co_names]
    for cell in function.__closure__ or ():
        try:
            around.append(cell.cell_contents)
        except ValueError:  # a variable without a value
            continue
    return found + [_function(value, seen, depth + 1) for value in around]


def _code(code: CodeType) -> list[object]:
    constants = [_code(each) if isinstance(each, CodeType) else _plain(each) for each in code.co_consts]
    return [code.co_code, code.co_names, constants]


LAST_SECONDS = 20.0
"""Seconds to wait for the end of cancelled tasks on a cluster; an unresponsive node is declared lost earlier."""


class NetFailed(RunError):  # noqa: N818  # what happened, in the words users search for
    """A net ended without a result because something in it failed."""


class NetBegin(msgspec.Struct, frozen=True):
    """How a run of a net begins."""

    seed: int | None = None
    """The seed of random choices; None draws one."""
    afresh: bool = False
    """Begin anew where an earlier run was cut short."""
    words: Sequence[str] = ()
    """The parameters with which the net was made."""


class NetRun:
    """One run of a net. All methods may be called from any thread."""

    def __init__(
        self,
        net: Net,
        client: ExecutorClient,
        begin: NetBegin,
        *,
        workspace: Workspace | None = None,
        directory: str | None = None,
        listener: NetListener | None = None,
        defaults: CallOptionValues | None = None,
    ) -> None:
        """With a workspace the run writes its ledger there, and resumes a run that was cut short.

        `defaults` are the options of tasks that do not set their own.
        """
        self.net = net
        self.resumed = False
        """Whether it resumes an earlier run that was interrupted or had failed."""
        self.ended_on = ""
        """The cluster where tasks of a killed client were cancelled first."""
        self._client = client
        self._workspace = workspace
        words = self._words = list(begin.words)
        sender = NetTaskSender(net, client, directory, defaults)
        identity = os.urandom(6).hex()
        journal = None
        if workspace is not None:
            workspace.make()
            workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, identity, time.time()), ending=True)
        try:
            if workspace is not None:
                self.ended_on = self._cancel_former_tasks(workspace)
                past = PastNetRun() if begin.afresh else past_of(net, workspace, words)
                self.resumed = past.begun is not None
                started = run_started(identity, words, client.node.amounts)
                journal = NetJournal(workspace, net.name, started, past.done)
                flow = self._resume(past, journal) if self.resumed else self._begun(begin.seed, journal)
                self._record_cluster(workspace)
            else:
                flow = NetFlow(net, begin.seed)
        except BaseException as error:
            if journal is not None:
                journal.give_up(str(error), 0)
            if workspace is not None:
                workspace.release()
            raise
        self._driver = NetDriver(flow, sender, journal, listener)
        self._thread = threading.Thread(target=self._drive, name=f"shoal-net-{net.name}", daemon=True)
        self._thread.start()

    def _cancel_former_tasks(self, workspace: Workspace) -> str:
        """Cancels tasks that a killed client left on a cluster; otherwise they would run beside ours."""
        note = read_net_note(workspace) if may_have_remote_tasks(workspace) else None
        if note is None:
            return ""
        if note == self._client.note and not self._client.is_over():
            raise InputError(
                f"cancelled tasks of the last run of the net {self.net.name!r} have not ended on the cluster yet",
                remedy="start it with another executor",
            )
        return str(load_extension("end_farmed")(workspace))

    def _record_cluster(self, workspace: Workspace) -> None:
        """Records the cluster before the first task is submitted, so that a later client finds it."""
        if self._client.note is None:
            return
        try:
            write_net_note(workspace, self._client.note)
        except OSError as error:
            raise InputError(
                f"cannot record in {workspace.net_note!r} on which cluster the net runs: {error.strerror}",
                remedy="free some space there, or make it writable",
            ) from None

    def _begun(self, seed: int | None, journal: NetJournal) -> NetFlow:
        flow = NetFlow(self.net, seed, journal.note)
        journal.begin(digest_of(self.net, self._words), seed, flow.state())
        return flow

    def _resume(self, past: PastNetRun, journal: NetJournal) -> NetFlow:
        flow = replayed(self.net, past, journal.note)
        if past.outcome == "failed":
            flow.retry()
        return flow

    def _drive(self) -> None:
        try:
            self._driver.run()
        finally:
            if self._workspace is not None:
                if self._client.note is not None and self._is_ended():
                    drop_net_note(self._workspace)
                self._workspace.release()

    def _is_ended(self) -> bool:
        """Returns whether none of our tasks runs any more; a node kills a cancelled task when it receives the
        message."""
        if not self._driver.dropped and self._driver.over.exception() is None:
            return True
        try:
            self._client.when_ended(self._driver.dropped).result(LAST_SECONDS)
        except (Late, CancelledError):
            return False  # the next run cancels them
        return True

    # ---- operations ----------------------------------------------------------------------------------------------

    def put(self, place: Place | str, *tokens: object) -> None:
        """Puts tokens on a place, all or none; raises `InputError` for a place or a token that the net does not
        accept."""
        if self._driver.journal is not None:
            dumps(tokens)  # tokens that cannot be written are refused here, while the caller can react
        self._driver.ask(lambda: self._driver.flow.put(place, *tokens), changes=True)

    def close(self) -> None:
        """Declares that no more tokens come from outside: the net ends when nothing is left to do."""
        try:
            self._driver.ask(self._driver.flow.close, changes=True)
        except InputError:
            pass  # it has already ended

    def cancel(self, task: int) -> None:
        """Drops a task, by its number, with the tokens it took; ignores one that has ended."""
        self._driver.ask(lambda: self._driver.cancel(task), changes=True)

    def tokens(self, place: Place | str) -> list[Any]:
        """Returns the tokens on a place, oldest first, without those that running tasks have taken."""
        found: list[Any] = self._driver.ask(lambda: self._driver.flow.tokens(place))
        return found

    def marking(self) -> dict[str, int]:
        """Returns the number of tokens on each place."""
        found: dict[str, int] = self._driver.ask(self._driver.flow.marking)
        return found

    def done_tasks(self) -> dict[str, int]:
        """Returns the number of finished tasks per transition."""
        found: dict[str, int] = self._driver.ask(lambda: dict(self._driver.done))
        return found

    def state(self) -> r.NetState:
        """Returns the whole marking and the open tasks, as plain data."""
        found: r.NetState = self._driver.ask(self._driver.flow.state)
        return found

    def problems(self) -> list[str]:
        """Returns a sentence for each failure so far."""
        found: list[str] = self._driver.ask(self._driver.flow.problems)
        return found

    def done(self) -> bool:
        """Returns whether it has ended."""
        return self._driver.over.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended; returns False on timeout."""
        try:
            self._driver.over.exception(timeout)
        except Late:
            return False
        self._thread.join()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Returns the result of the net, or None; raises `NetFailed` if there is none because something failed."""
        if not self.wait(timeout):
            raise TimeoutError(f"net {self.net.name!r} has no result after {timeout:g} s")
        self._driver.over.result()
        flow = self._driver.flow
        if self.stopped:
            raise RunError(f"net {self.net.name!r} was stopped: {self.stopped}")
        problems = problem_summary(flow.problems())
        if not flow.has_result and problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise NetFailed(f"{problems[0]}{more}")
        return flow.result

    @property
    def has_result(self) -> bool:
        """Whether some transition returned a result, which may be None."""
        return self._driver.flow.has_result

    @property
    def stopped(self) -> str:
        """Why it was stopped before its end; empty if it was not."""
        return "" if self._driver.flow.is_finished else self._driver.stopped

    def stop(self, reason: str = "cancelled") -> None:
        """Ends it in its current state: running tasks are cancelled. With a ledger it can be resumed."""
        self._driver.stop(reason)


def past_of(net: Net, workspace: Workspace, words: Sequence[str] = ()) -> PastNetRun:
    """Returns the run to resume; an empty one if there is none, or the last run was successful."""
    past = read_past(workspace)
    if past.begun is None or past.outcome == "ok":
        return PastNetRun()
    if past.begun.digest != digest_of(net, words):
        how = "failed" if past.outcome == "failed" else "was interrupted"
        raise InputError(
            f"the net {net.name!r} has changed since its run {how}: its places, steps, guards, initial tokens or "
            "parameters differ",
            remedy="undo the change to resume it, or start again with --force (afresh=True)",
        )
    return past


def replayed(net: Net, past: PastNetRun, record: Callable[[r.Record], None] | None = None) -> NetFlow:
    """Rebuilds the net's state from a ledger."""
    assert past.begun is not None, "there is nothing to go on from"
    try:
        return NetFlow.resume(net, past.state, past.records, seed=past.begun.seed, record=record)
    except InputError as error:
        if not past.damaged:
            raise
        raise InputError(
            f"the ledger of the net {net.name!r} is damaged, so its run cannot be resumed",
            remedy="start again with --force (afresh=True)",
        ) from error


def start(
    net: Net,
    client: ExecutorClient,
    *,
    ledger: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    afresh: bool = False,
    defaults: CallOptionValues | None = None,
) -> NetRun:
    """Starts a run; `ledger` is the name under which it is kept in the directory `.shoal`."""
    if not isinstance(net, Net):
        raise InputError(f"only a net can be started, not {net!r}")
    name = os.fspath(ledger) if isinstance(ledger, os.PathLike) else ledger
    if name is not None and (not isinstance(name, str) or not name or name[0] == "." or {os.sep, "\0"} & set(name)):
        raise InputError(f"{name!r} cannot be the name of a ledger", remedy="use a plain file name")
    workspace = Workspace(name) if name is not None else None
    return NetRun(net, client, NetBegin(seed, afresh), workspace=workspace, defaults=defaults)


def problem_summary(problems: Sequence[str]) -> list[str]:
    """Returns each sentence once, with its number of occurrences."""
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem] = counts.get(problem, 0) + 1
    return [f"{problem} ({count} times)" if count > 1 else problem for problem, count in counts.items()]
