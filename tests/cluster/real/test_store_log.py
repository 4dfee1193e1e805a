"""What every store promises of the log of a run and of its pieces: entries once, in order, and only of what counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cluster.stores.redis import RedisLink, RedisStore, key_of
from shoal.cluster.stores.server import RemoteStore
from shoal.core.store.interface import STRIDE, Store
from shoal.core.work import assemble
from shoal.errors import InputError
from support.redis_servers import RedisServer, one_server
from support.stores import KINDS, NODES, Opened, RestlessServer, diamond, opened_stores, started


@pytest.fixture(params=KINDS, scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_stores(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with one_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_a_result_that_counts_leaves_its_entry_and_others_leave_none(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1), (0, 1), (3, 1)], [b"first", b"twice", b"too early"])
    store.complete(0, [(0, 1)], [b"again"])
    store.complete(0, [(2, 1), (1, 1)], [b"two", b"one"])
    assert store.log(0) == [b"first", b"two", b"one"]


def test_an_entry_belongs_to_the_attempt_that_counts(opened: Opened) -> None:
    store = opened(diamond())
    started(store, 1)
    store.lose(1, 2)
    store.complete(2, [(0, 1), (0, STRIDE + 1), (0, STRIDE + 2)], [b"fenced", b"counts", b"late"])
    assert store.log(0) == [b"counts"]


def test_a_failure_leaves_an_entry_if_it_changes_something(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    store.give_up(1, 3, b"failed")
    store.give_up(1, 4, b"failed twice")
    store.give_up(2, None)
    store.note(b"said")
    store.note(b"said")
    assert store.log(0) == [b"failed", b"said", b"said"]


def test_the_log_is_read_by_numbers_from_any_place(opened: Opened) -> None:
    store = opened(diamond())
    written = [bytes([number]) * 200 for number in range(7)]
    for entry in written:
        store.note(entry)
    read: list[bytes] = []
    while found := store.log(len(read), 3):
        read += found
    assert read == written
    assert store.log(5, 1) == [written[5]]
    assert store.log(7) == []
    assert store.log(0, 0) == []


def test_a_large_batch_is_logged_wholly_and_in_order(opened: Opened) -> None:
    amount = 9000
    store = opened(assemble("wide", [1.0] * amount, [[]] * amount, [[]] * amount, []))
    started(store)
    entries = [b"%d" % task for task in range(amount)]
    assert len(store.complete(0, [(task, 1) for task in range(amount)], entries)[0]) == amount
    assert store.log(0, amount) == entries


def test_there_is_an_entry_for_each_result_or_none(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    with pytest.raises(ValueError, match="an entry for each result"):
        store.complete(0, [(0, 1)], [b"one", b"too many"])
    assert store.log(0) == []


def test_answers_tell_what_is_left_and_ready(opened: Opened) -> None:
    store = opened(diamond())
    assert (store.seen_left, store.size) == (4, 4)
    started(store)
    store.complete(0, [(0, 1)])
    assert (store.seen_left, store.seen_ready) == (3, 2)
    store.complete(0, [(0, 1)])
    assert (store.seen_left, store.seen_ready) == (3, 2)
    store.give_up(1)
    assert (store.seen_left, store.seen_ready) == (store.left, store.ready_count) == (1, 1)


def test_pieces_are_read_back_as_they_were_put(opened: Opened) -> None:
    store = opened(diamond())
    large = bytes(range(256)) * (36 << 10)
    assert store.get_piece("commands:0") is None
    store.put_piece("commands:0", large)
    store.put_piece("empty", b"")
    store.put_piece("twice", b"longer")
    store.put_piece("twice", b"new")
    assert store.get_piece("commands:0") == large
    assert store.get_piece("empty") == b""
    assert store.get_piece("twice") == b"new"
    assert store.get_piece("commands:1") is None


def test_forgetting_removes_log_and_pieces_from_redis(server: RedisServer) -> None:
    link = RedisLink([server.address], key_of("gone", "rows"))
    for _ in range(2):
        store = RedisStore.bring(link, "gone", diamond(), NODES)
        _use_and_forget(store)
    assert link.call("KEYS", "*gone*") == []
    link.close()


def test_forgetting_removes_log_and_pieces_from_the_server_with_their_journal(tmp_path: Path) -> None:
    transport = RestlessServer(tmp_path, 1.0)
    for _ in range(2):
        _use_and_forget(RemoteStore.bring(transport, "gone", diamond(), NODES))
    transport.restart()
    with pytest.raises(InputError, match="no run 'gone'"):
        RemoteStore.attach(transport, "gone")
    assert [path.name for path in tmp_path.glob("run-*")] == []
    transport.server.close()


def _use_and_forget(store: Store) -> None:
    assert store.log(0) == []
    assert store.get_piece("some") is None
    store.note(b"entry")
    store.put_piece("some", b"data")
    store.forget()


def test_a_request_that_is_sent_again_is_logged_once(server: RedisServer) -> None:
    store = RedisStore.bring(RedisLink([server.address], key_of("again", "rows")), "again", diamond(), NODES)
    started(store)
    first = store.complete(0, [(0, 1)], [b"entry"])
    store._sequence -= 1
    store.seen_left = store.seen_ready = 0
    assert store.complete(0, [(0, 1)], [b"entry"]) == first
    assert (store.seen_left, store.seen_ready) == (3, 2)
    store.note(b"noted")
    store._sequence -= 1
    store.note(b"noted")
    assert store.log(0) == [b"entry", b"noted"]
    store.forget()
    store.close()
