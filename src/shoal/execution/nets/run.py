"""A net under way as a program holds it: put tokens, look at places, wait for the result."""

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
"""Functions that call functions are followed so far."""


def digest_of(net: Net, words: Sequence[str] = ()) -> str:
    """The digest of a net that was made with these words of a command line."""
    seen: dict[int, None] = {}
    told: list[object] = [net.name, net.keep_open, list(words)]
    for name, spec in net.places.items():
        told += [name, repr(spec.type), [_plain(token) for token in spec.tokens]]
    for transition in net.transitions.values():
        told += [_arcs(transition), [_function(function, seen) for function in _repeated(transition)]]
    return hashlib.sha256(repr(told).encode(errors="replace")).hexdigest()[:16]


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
    """The functions that going on calls again."""
    functions: list[object] = [guard.function for guard in transition.guards]
    functions += [port.key for port in transition.ports if port.key is not None]
    functions += [transition.gives] if transition.gives is not None else []
    return functions if transition.is_task else [*functions, transition.function]


def _plain(value: object) -> object:
    """The value, if it is one that says the same in every process."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return type(value).__qualname__


def _function(function: object, seen: dict[int, None], depth: int = 0) -> object:
    """The code of a function, of those it calls, and the plain values around it."""
    if not isinstance(function, FunctionType) or id(function) in seen or depth > _DEEPEST:
        return _plain(function)
    seen[id(function)] = None
    code = function.__code__
    found: list[object] = [_code(code), _plain(function.__defaults__)]
    around = [function.__globals__.get(name) for name in code.co_names]
    for cell in function.__closure__ or ():
        try:
            around.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    return found + [_function(value, seen, depth + 1) for value in around]


def _code(code: CodeType) -> list[object]:
    constants = [_code(each) if isinstance(each, CodeType) else _plain(each) for each in code.co_consts]
    return [code.co_code, code.co_names, constants]


LAST_SECONDS = 20.0
"""For the end of tasks on a cluster that were cancelled; a node that says nothing is lost before."""


class NetFailed(RunError):  # noqa: N818  # what happened, in the words users search for
    """A net ended without a result because something in it failed."""


class NetRun:
    """One run of a net. All methods may be called from any thread."""

    def __init__(
        self,
        net: Net,
        client: ExecutorClient,
        *,
        workspace: Workspace | None = None,
        seed: int | None = None,
        afresh: bool = False,
        directory: str | None = None,
        words: Sequence[str] = (),
        listener: NetListener | None = None,
        wishes: CallOptionValues | None = None,
    ) -> None:
        """With a workspace its ledger is kept there, and a run that was cut short is gone on with unless `afresh`.

        `words` are the parameters with which the net was made, `wishes` what tasks ask for that do not say so.
        """
        self.net = net
        self.resumed = False
        """Whether it goes on where an earlier one was cut short or had failed."""
        self.ended_on = ""
        """The cluster where tasks of a client that was killed were ended first."""
        self._client = client
        self._workspace = workspace
        self._words = list(words)
        sender = NetTaskSender(net, client, directory, wishes)
        identity = os.urandom(6).hex()
        journal = None
        if workspace is not None:
            workspace.make()
            workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, identity, time.time()), ending=True)
        try:
            if workspace is not None:
                self.ended_on = self._end_others(workspace)
                past = PastNetRun() if afresh else past_of(net, workspace, words)
                self.resumed = past.begun is not None
                begin = run_started(identity, words, client.node.amounts)
                journal = NetJournal(workspace, net.name, begin, past.done)
                flow = self._gone_on(past, journal) if self.resumed else self._begun(seed, journal)
                self._note_where(workspace)
            else:
                flow = NetFlow(net, seed)
        except BaseException as error:
            if journal is not None:
                journal.give_up(str(error), 0)
            if workspace is not None:
                workspace.release()
            raise
        self._driver = NetDriver(flow, sender, journal, listener)
        self._thread = threading.Thread(target=self._drive, name=f"shoal-net-{net.name}", daemon=True)
        self._thread.start()

    def _end_others(self, workspace: Workspace) -> str:
        """What a client left on a cluster that was killed would run beside our tasks."""
        note = read_net_note(workspace) if may_have_remote_tasks(workspace) else None
        if note is None:
            return ""
        if note == self._client.farmed and not self._client.is_over():
            raise InputError(
                f"cancelled tasks of the last run of the net {self.net.name!r} have not ended on the cluster yet",
                remedy="start it with another executor",
            )
        return str(load_extension("end_farmed")(workspace))

    def _note_where(self, workspace: Workspace) -> None:
        """Before the first task is handed out, so that whoever comes after us finds it."""
        if self._client.farmed is None:
            return
        try:
            write_net_note(workspace, self._client.farmed)
        except OSError as error:
            raise InputError(
                f"cannot note in {workspace.net_note!r} where the net runs: {error.strerror}",
                remedy="free some space there, or make it writable",
            ) from None

    def _begun(self, seed: int | None, journal: NetJournal) -> NetFlow:
        flow = NetFlow(self.net, seed, journal.note)
        journal.begin(digest_of(self.net, self._words), seed, flow.state())
        return flow

    def _gone_on(self, past: PastNetRun, journal: NetJournal) -> NetFlow:
        flow = replayed(self.net, past, journal.note)
        if past.outcome == "failed":
            flow.retry()
        return flow

    def _drive(self) -> None:
        try:
            self._driver.run()
        finally:
            if self._workspace is not None:
                if self._client.farmed is not None and self._is_ended():
                    drop_net_note(self._workspace)
                self._workspace.release()

    def _is_ended(self) -> bool:
        """Whether none of our tasks runs any more: a node is told that one is not wanted, and ends it then."""
        if not self._driver.dropped and self._driver.over.exception() is None:
            return True
        try:
            self._client.ends_of(self._driver.dropped).result(LAST_SECONDS)
        except (Late, CancelledError):
            return False  # the next run sees to it
        return True

    # ---- what can be done with it --------------------------------------------------------------------------------

    def put(self, place: Place | str, *tokens: object) -> None:
        """Put tokens on a place, all or none; raises `InputError` for a place or a token that the net does not take."""
        if self._driver.journal is not None:
            dumps(tokens)  # what cannot be written down is refused here, and not when it is too late
        self._driver.ask(lambda: self._driver.flow.put(place, *tokens), changes=True)

    def close(self) -> None:
        """Say that no more tokens will come from outside: the net ends when nothing is left to do."""
        try:
            self._driver.ask(self._driver.flow.close, changes=True)
        except InputError:
            pass  # it is over already

    def cancel(self, task: int) -> None:
        """Drop a task, by its number, with the tokens it took; one that is over is left alone."""
        self._driver.ask(lambda: self._driver.cancel(task), changes=True)

    def tokens(self, place: Place | str) -> list[Any]:
        """The tokens on a place now, oldest first; those that running tasks have taken are not there."""
        found: list[Any] = self._driver.ask(lambda: self._driver.flow.tokens(place))
        return found

    def marking(self) -> dict[str, int]:
        """How many tokens are on each place now."""
        found: dict[str, int] = self._driver.ask(self._driver.flow.marking)
        return found

    def done_tasks(self) -> dict[str, int]:
        """How many tasks of each transition are done."""
        found: dict[str, int] = self._driver.ask(lambda: dict(self._driver.done))
        return found

    def state(self) -> r.NetState:
        """The whole marking with what is under way, as plain data."""
        found: r.NetState = self._driver.ask(self._driver.flow.state)
        return found

    def problems(self) -> list[str]:
        """A sentence for everything that failed so far."""
        found: list[str] = self._driver.ask(self._driver.flow.problems)
        return found

    def done(self) -> bool:
        """Whether it is over."""
        return self._driver.over.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over; False if that takes longer."""
        try:
            self._driver.over.exception(timeout)
        except Late:
            return False
        self._thread.join()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """The value that the net gave, or None; raises `NetFailed` if it gave none because something failed."""
        if not self.wait(timeout):
            raise TimeoutError(f"net {self.net.name!r} has no result after {timeout:g} s")
        self._driver.over.result()
        flow = self._driver.flow
        if self.stopped:
            raise RunError(f"net {self.net.name!r} was stopped: {self.stopped}")
        problems = problems_in_words(flow.problems())
        if not flow.has_result and problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise NetFailed(f"{problems[0]}{more}")
        return flow.result

    @property
    def has_result(self) -> bool:
        """Whether some transition gave a result, which may be None."""
        return self._driver.flow.has_result

    @property
    def stopped(self) -> str:
        """Why it was stopped before its end; empty if it was not."""
        return "" if self._driver.flow.is_finished else self._driver.stopped

    def stop(self, reason: str = "cancelled") -> None:
        """End it as it stands: what runs is cancelled. With a ledger it can be gone on with."""
        self._driver.stop(reason)


def past_of(net: Net, workspace: Workspace, words: Sequence[str] = ()) -> PastNetRun:
    """What a run of the net goes on from; nothing if there is nothing, or its last run has ended well."""
    past = read_past(workspace)
    if past.begun is None or past.outcome == "ok":
        return PastNetRun()
    if past.begun.digest != digest_of(net, words):
        how = "failed" if past.outcome == "failed" else "was cut short"
        raise InputError(
            f"the net {net.name!r} is another one than when its run {how}: its places, steps, guards, first tokens or "
            "parameters have changed",
            remedy="undo that to go on, or begin anew with --force (afresh=True)",
        )
    return past


def replayed(net: Net, past: PastNetRun, record: Callable[[r.Record], None] | None = None) -> NetFlow:
    """The flow as a ledger tells of it."""
    assert past.begun is not None, "there is nothing to go on from"
    try:
        return NetFlow.resume(net, past.state, past.records, seed=past.begun.seed, record=record)
    except InputError as error:
        if not past.damaged:
            raise
        raise InputError(
            f"the ledger of the net {net.name!r} is damaged, and its run cannot be gone on with",
            remedy="begin anew with --force (afresh=True)",
        ) from error


def start(
    net: Net,
    client: ExecutorClient,
    *,
    ledger: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    afresh: bool = False,
    wishes: CallOptionValues | None = None,
) -> NetRun:
    """Begin a run; `ledger` is the name under which it is kept in the directory `.shoal`."""
    if not isinstance(net, Net):
        raise InputError(f"only a net can be started, not {net!r}")
    name = os.fspath(ledger) if isinstance(ledger, os.PathLike) else ledger
    if name is not None and (not isinstance(name, str) or not name or name[0] == "." or {os.sep, "\0"} & set(name)):
        raise InputError(f"{name!r} cannot be the name of a ledger", remedy="use a plain file name")
    workspace = Workspace(name) if name is not None else None
    return NetRun(net, client, workspace=workspace, seed=seed, afresh=afresh, wishes=wishes)


def problems_in_words(problems: Sequence[str]) -> list[str]:
    """Each sentence once, with how often it was said."""
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem] = counts.get(problem, 0) + 1
    return [f"{problem} ({count} times)" if count > 1 else problem for problem, count in counts.items()]
