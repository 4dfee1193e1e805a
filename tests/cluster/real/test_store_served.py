"""The store of a cluster without Redis: kills, damage, bad requests, repeated ones, and leases after a restart."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.cluster.stores.server import RemoteDirectory, RemoteStore, StoreServer
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.core.store.interface import ReadyBatch, Store, TaskStanding
from shoal.core.store.memory import MemoryStore
from shoal.core.work import Work
from shoal.errors import InputError, RunError
from shoal.sim.workloads.matrix import fan_out
from support.store_process import StoreProcess
from support.stores import NODES, PROFILES, RestlessServer, diamond, started, tasks
from support.strikes import Strikes

LARGEST_REQUEST = 8 << 20


class Direct:
    """A transport to a server at a time that the test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 100.0
        self.requests: list[bytes] = []
        self.server = StoreServer(str(path), lease=10.0)

    def ask(self, request: bytes) -> bytes:
        self.requests.append(request)
        return self.server.perform(request, self.now)

    def restart(self) -> None:
        self.server.close()
        self.server = StoreServer(str(self.path), lease=10.0)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Direct]:
    transport = Direct(tmp_path)
    yield transport
    transport.server.close()


def _play(store: Store, one_more_deed: Callable[[], None] = lambda: None) -> list[tuple[list[int], ReadyBatch]]:
    """Completes everything, one task at a time, and keeps all answers."""
    answers = []
    queue = started(store)
    for ticket in queue:  # grows while we walk it
        done = [(ticket.task, ticket.attempt + 1)]
        answers.append(store.complete(ticket.task % NODES, done, [b"%d" % ticket.task]))
        queue += answers[-1][1].tickets
        one_more_deed()
    return answers


def test_nothing_is_lost_or_done_twice_when_the_server_is_killed(tmp_path: Path) -> None:
    work = fan_out(1, 600)
    process = StoreProcess(tmp_path)
    strikes = Strikes(process, lambda: process.breaks, (100, 250, 400))
    try:
        directory = RemoteDirectory(process)
        directory.submit("r", b"about")
        store = RemoteStore.bring(process, "r", work, NODES)
        with strikes.striking():
            answers = _play(store, strikes.one_more_deed)
        model = MemoryStore(work, NODES)
        assert answers == _play(model)
        assert store.left == 0
        assert store.log(0, len(work)) == model.log(0, len(work))
        assert [info.about for info in directory.runs()] == [b"about"]
        assert process.breaks >= 3
    finally:
        process.kill()


# ---- journals ----------------------------------------------------------------------------------------------------


def _journal(path: Path) -> Path:
    (found,) = path.glob("run-*.journal")
    return found


def test_a_journal_that_is_cut_off_anywhere_leads_to_what_was_whole(transport: Direct, tmp_path: Path) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    started(store)
    ends, lefts = [_journal(tmp_path).stat().st_size], [4]
    for task in (0, 1, 2, 3):
        store.complete(0, [(task, 1)])
        ends.append(_journal(tmp_path).stat().st_size)
        lefts.append(store.left)
    whole = _journal(tmp_path).read_bytes()
    for size in range(ends[0], len(whole) + 1):
        transport.server.close()
        _journal(tmp_path).write_bytes(whole[:size])
        transport.server = StoreServer(str(tmp_path))
        assert store.left == lefts[max(at for at, end in enumerate(ends) if end <= size)]
    transport.server.close()
    _journal(tmp_path).write_bytes(whole[: ends[2] + 5] + bytes(100))
    transport.server = StoreServer(str(tmp_path))
    assert store.left == lefts[2]
    assert _journal(tmp_path).read_bytes() == whole[: ends[2]]


def test_damage_within_a_journal_is_reported_and_nothing_is_guessed(transport: Direct, tmp_path: Path) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    started(store)
    damaged = bytearray(_journal(tmp_path).read_bytes())
    store.complete(0, [(0, 1)])
    behind = _journal(tmp_path).read_bytes()[len(damaged) :]
    damaged[-1] ^= 1
    transport.server.close()
    _journal(tmp_path).write_bytes(bytes(damaged) + behind)
    transport.server = StoreServer(str(tmp_path))
    with pytest.raises(RunError, match="is damaged at byte"):
        store.complete(0, [(1, 1)])
    assert RemoteDirectory(transport).runs() == []  # others go on


def test_a_full_disk_stops_the_run_and_changes_nothing(transport: Direct, tmp_path: Path) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    started(store)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_journal(tmp_path).stat().st_size + 10, before[1]))
    try:
        with pytest.raises(RunError, match="cannot write the journal"):
            store.complete(0, [(0, 1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.left == 4
    assert store.complete(0, [(0, 1)])[0] == [0]
    transport.restart()
    assert store.left == 3


def test_two_servers_do_not_share_a_directory(transport: Direct, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another server uses the store in"):
        StoreServer(str(tmp_path))


def test_a_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the store cannot use"):
        StoreServer(str(tmp_path / "file"))


# ---- requests ----------------------------------------------------------------------------------------------------


def test_a_request_that_is_sent_again_gets_the_same_answer_even_after_a_restart(transport: Direct) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    started(store)
    store.complete(0, [(0, 1)], [b"entry"])
    request = transport.requests[-1]
    answer = transport.server.perform(request, 0.0)
    transport.restart()
    assert transport.server.perform(request, 0.0) == answer
    assert (store.left, store.log(0)) == (3, [b"entry"])


def test_a_request_that_was_overtaken_changes_nothing(transport: Direct) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    store.note(b"first")
    late = transport.requests[-1]
    store.note(b"second")
    assert b"older than other requests" in transport.server.perform(late, 0.0)
    assert store.log(0) == [b"first", b"second"]


def test_a_server_that_does_not_answer_is_asked_again_until_patience_ends() -> None:
    asked: list[bytes] = []

    class Silent:
        def ask(self, request: bytes) -> bytes:
            asked.append(request)
            raise TimeoutError

    with pytest.raises(RunError, match=r"has not replied for 0\.1 s"):
        RemoteDirectory(Silent(), patience=0.1).submit("r", b"")
    assert len(asked) > 1
    assert len(set(asked)) == 1


def test_a_run_that_the_server_does_not_know_is_reported(transport: Direct) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    store.forget()
    with pytest.raises(RunError, match="no longer has this run"):
        store.complete(0, [(0, 1)])
    store.forget()
    store.close()


def _state(transport: Direct) -> object:
    store = transport.server._runs["r"].store
    assert store is not None
    books = [getattr(store, name) for name in ("standing", "pending", "generation", "owner", "location")]
    directory = transport.server._directory.directory
    return [bytes(book) for book in books], store.lost, store.left, store.log(0), directory.nodes(), directory.runs()


_plain: st.SearchStrategy[object] = st.recursive(
    st.none() | st.integers(-3, 1 << 40) | st.binary(max_size=9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
_operations = (
    *("complete", "give_up", "cancel", "note", "owned", "moved", "claim", "hand_back", "missing", "lose", "copied"),
    *("dropped", "unowned", "renew", "log", "standing", "put_piece", "put_column", "bring", "open", "join", "update"),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    scope=st.sampled_from(["r", "", "unknown"]),
    operation=st.sampled_from(_operations),
    sequence=st.integers(0, 1),
    numbers=st.lists(st.sampled_from([-5, 1 << 33]), min_size=1, max_size=5),
    other=_plain,
    cut=st.integers(0, 40),
    wrong=st.binary(max_size=3),
)
def test_requests_that_nobody_of_ours_sends_are_refused_and_change_nothing(
    transport: Direct,
    scope: str,
    operation: str,
    sequence: int,
    numbers: list[int],
    other: object,
    cut: int,
    wrong: bytes,
) -> None:
    if "r" not in transport.server._runs:
        started(RemoteStore.bring(transport, "r", diamond(), NODES))
    before = _state(transport)
    out_of_range = msgspec.msgpack.encode(("attacker", sequence, "r", operation, (numbers, [])))
    shapeless = msgspec.msgpack.encode(("attacker", sequence, scope, operation, other))
    torn = shapeless[:cut] + wrong + shapeless[cut + len(wrong) :]
    for request in (out_of_range, shapeless, torn[:-1], wrong):
        answer = msgspec.msgpack.decode(transport.server.perform(request, 0.0))
        assert answer[0] in ("run", "input") or request is not out_of_range
    assert _state(transport) == before


# ---- runs --------------------------------------------------------------------------------------------------------


def test_whoever_joins_a_run_finds_its_work_and_its_state(tmp_path: Path) -> None:
    transport, work = RestlessServer(tmp_path, 10.0), fan_out(3, 50)
    store = RemoteStore.bring(transport, "r", work, NODES)
    started(store)
    store.complete(0, [(0, 1)])
    other = RemoteStore.attach(transport, "r")
    found = other.work()
    for column in ("seconds", "category", "waits_for", "child_start", "children", "inputs", "outputs", "file_bytes"):
        assert list(getattr(found, column)) == list(getattr(work, column)), column
    assert found.profiles == work.profiles
    assert other.standings().count(TaskStanding.DONE) == 1
    assert (other.seen_left, other.size) == (store.left, len(work))
    with pytest.raises(InputError, match="no run 'other'"):
        RemoteStore.attach(transport, "other")
    other.close()
    transport.server.close()


def test_a_run_is_created_once(transport: Direct) -> None:
    RemoteStore.bring(transport, "same", diamond(), NODES)
    with pytest.raises(InputError, match="already has a run 'same'"):
        RemoteStore.bring(transport, "same", diamond(), NODES)


def test_a_large_run_is_sent_in_pieces(tmp_path: Path) -> None:
    amount = 900_000
    zeros = array("i", bytes(4 * amount))
    work = Work("large", array("d", bytes(8 * amount)), zeros, PROFILES, zeros, array("i", [0]) * (amount + 1), ())
    transport = Direct(tmp_path)
    store = RemoteStore.bring(transport, "large", work, 0, shared_files=True)
    assert max(len(request) for request in transport.requests) < LARGEST_REQUEST < 12 * amount
    transport.restart()
    assert (store.left, store.ready_count) == (amount, amount)
    assert len(RemoteStore.attach(transport, "large").work()) == amount
    transport.server.close()


def test_an_incomplete_run_is_replaced_by_the_next_client_that_creates_it(transport: Direct) -> None:
    class Dying(Direct):
        def __init__(self) -> None:
            self.left = 4

        def ask(self, request: bytes) -> bytes:
            self.left -= 1
            if not self.left:
                raise InterruptedError
            return transport.ask(request)

    with pytest.raises(InterruptedError):
        RemoteStore.bring(Dying(), "r", fan_out(3, 50), NODES)
    half = len(transport.requests)
    transport.restart()
    with pytest.raises(InputError, match="no run 'r'"):
        RemoteStore.attach(transport, "r")
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    assert b"already" in transport.server.perform(_next_of(transport.requests[half - 1]), 0.0)
    transport.restart()
    assert (store.left, tasks(store.unowned(1))) == (4, [0])


def _next_of(request: bytes) -> bytes:
    """The same again, as a new request."""
    client, sequence, *rest = msgspec.msgpack.decode(request)
    return msgspec.msgpack.encode([client, sequence + 1, *rest])


def test_of_two_clients_that_create_a_run_the_first_gets_an_error(transport: Direct) -> None:
    class Overtaken:
        def ask(self, request: bytes) -> bytes:
            if len(transport.requests) == 2:
                transport.ask(msgspec.msgpack.encode(("other", 1, "r", "open", ([], []))))
            return transport.ask(request)

    with pytest.raises(InputError, match="another client is submitting a run 'r'"):
        RemoteStore.bring(Overtaken(), "r", diamond(), NODES)
    overtaken = transport.server.perform(transport.requests[0], 0.0)  # a duplicate that was long on its way
    assert b"older than other requests" in overtaken
    assert transport.server._runs["r"]._bringer == "other"


# ---- leases ------------------------------------------------------------------------------------------------------


def test_leases_begin_anew_when_the_server_does_and_nobody_is_forgotten(transport: Direct) -> None:
    store = RemoteStore.bring(transport, "r", diamond(), NODES)
    for node in (1, 2, 2):
        assert store.renew(node)
    store.lose(2)
    transport.now = 105.0
    transport.restart()
    transport.now = 3.0  # another clock
    assert store.expired() == []
    transport.now = 12.9
    assert store.expired() == []
    transport.now = 13.1
    assert store.expired() == [1]
    assert not store.renew(2)


def test_nodes_of_the_directory_live_on_when_the_server_begins_anew(transport: Direct) -> None:
    directory = RemoteDirectory(transport)

    number = directory.join(NodeInfo("a", "a", Resources(), {}, None, "", ""))
    transport.now = 200.0
    assert directory.expired() == [number]
    transport.restart()
    transport.now = 3.0
    assert directory.expired() == []
    assert directory.renew(number).alive
    transport.now = 13.1
    assert directory.expired() == [number]
