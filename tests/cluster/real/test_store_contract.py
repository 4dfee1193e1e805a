"""What every store promises (`shoal.core.store.interface`): one suite over memory, a real Redis, a real cluster of it,
and a server that is made again from its journals between operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.cluster.stores.redis import RedisStore, key_of
from shoal.cluster.stores.server import RemoteStore
from shoal.core.peer_messages import ReadyTask
from shoal.core.store.interface import NOBODY, STRIDE, GoneError, ReadyBatch, Store, TaskStanding
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import unpack_files, unpack_rows
from shoal.core.work import EVERYWHERE, Work, assemble
from support.redis_servers import wait_until
from support.stores import (
    KINDS,
    NODES,
    PROFILES,
    Opened,
    RestlessServer,
    diamond,
    opened_stores,
    started,
    tasks,
    within_a_lease,
)

PHASES = [phase for phase in Phase if phase is not Phase.explain]  # explaining takes minutes with a server


@pytest.fixture(params=KINDS, scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_stores(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def test_a_store_that_has_lost_a_run_says_so_and_does_not_call_it_done(opened: Opened) -> None:
    store = opened(diamond())
    if isinstance(store, MemoryStore):
        return  # it is lost with the process that has it
    tickets = started(store)
    store.forget()
    for ask in (
        lambda: store.left,
        lambda: store.ready_count,
        lambda: store.standing_of(0),
        lambda: store.complete(0, [(tickets[0].task, 1)]),
        lambda: store.unowned(1),
    ):
        with pytest.raises(GoneError, match="no longer has this run"):
            ask()


# ---- results -----------------------------------------------------------------------------------------------------


def test_children_become_ready_with_the_places_of_their_inputs(opened: Opened) -> None:
    store = opened(diamond())
    assert tasks(store.begin()) == [0]
    assert store.complete(1, [(0, 1)]) == ([0], ReadyBatch([ReadyTask(1), ReadyTask(2)], [((1, 10),), ((1, 20),)]))
    store.complete(1, [(1, 1)])
    assert store.complete(2, [(2, 1)]) == ([2], ReadyBatch([ReadyTask(3)], [((1, 30), (2, 40))]))
    assert (store.left, store.ready_count) == (1, 1)
    store.complete(2, [(3, 1)])
    assert (store.left, store.ready_count) == (0, 0)


def test_a_result_counts_once(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.complete(0, [(0, 1), (0, 1)])[0] == [0]
    assert store.complete(0, [(0, 1), (0, 2)]) == ([], ReadyBatch([], []))
    assert store.left == 3


def test_parents_and_children_may_be_completed_in_one_batch(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    accepted, placeable = store.complete(0, [(1, 1), (2, 1)])
    assert accepted == [1, 2]
    assert tasks(placeable) == [3]


def test_tasks_that_run_nothing_are_completed_on_the_way(opened: Opened) -> None:
    work = assemble(
        *("empty", [1.0] * 3, [[], [0], [1]], [[0], [1], []], [5, 5]), category=[0, 1, 0], profiles=PROFILES
    )
    store = opened(work)
    started(store)
    assert store.complete(0, [(0, 1)]) == ([0], ReadyBatch([ReadyTask(2)], [()]))
    assert store.standing_of(1) is TaskStanding.DONE
    assert store.left == 1


def test_work_without_files_has_no_holdings(opened: Opened) -> None:
    work = diamond()
    for column in ("input_start", "inputs", "output_start", "outputs", "file_bytes", "file_home", "weight"):
        setattr(work, column, ())
    store = opened(work)
    started(store)
    assert store.complete(0, [(0, 1)]) == ([0], ReadyBatch([ReadyTask(1), ReadyTask(2)], []))
    assert store.holdings(3) == ()


def test_what_needs_a_failed_task_is_doomed(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    assert store.give_up(1, 3) == [3]
    assert store.give_up(1) == []
    assert [store.standing_of(task) for task in range(4)] == [2, 3, 1, 4]
    assert (store.left, store.ready_count) == (1, 1)


def test_cancelling_lists_the_tasks_of_schedulers(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.cancel([3, 0, 1]) == [0]
    assert store.left == 0


# ---- nodes -------------------------------------------------------------------------------------------------------


def test_tasks_of_a_lost_node_begin_a_new_generation(opened: Opened) -> None:
    store = opened(diamond())
    started(store, 1)
    assert store.lose(1, 2) == (ReadyBatch([ReadyTask(0, STRIDE)], [()]), {})
    assert store.complete(1, [(0, 1)]) == ([], ReadyBatch([], []))
    assert store.complete(2, [(0, STRIDE + 1)])[0] == [0]


def test_what_became_ready_is_found_if_its_taker_dies_at_once(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    again, _ = store.lose(0, 1)
    assert tasks(again) == [0]  # its files went with the node; the children wait for them
    assert tasks(store.complete(1, [(0, STRIDE + 1)])[1]) == [1, 2]


def test_tasks_without_an_owner_are_found_and_taken_once(opened: Opened) -> None:
    store = opened(diamond())
    store.begin()
    assert tasks(store.unowned(1)) == [0]
    assert tasks(store.unowned(2)) == []


def test_a_lost_node_is_given_nothing(opened: Opened) -> None:
    store = opened(diamond())
    store.begin()
    store.lose(1)
    store.owned([0], 1)
    assert store.lose(2, 1) == (ReadyBatch([], []), {})
    assert store.unowned(1) == ReadyBatch([], [])
    assert tasks(store.unowned(2)) == [0]


def test_a_parcel_is_recorded_once_and_refused_for_a_lost_node(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.moved([ReadyTask(0)], 0, 1, 7) == ReadyBatch([], [])
    assert store.recorded(0) == 7
    store.moved([ReadyTask(0)], 1, 0, 1)
    store.moved([ReadyTask(0)], 0, 1, 7)
    assert store.lose(1)[0].tickets == []
    assert store.moved([ReadyTask(0)], 0, 1, 8).tickets == [ReadyTask(0, STRIDE)]


def test_what_a_lost_node_was_about_to_give_is_claimed_by_its_receiver(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.moved([ReadyTask(0)], 0, 1, 1)
    assert store.lose(0) == (ReadyBatch([], []), {1: [ReadyTask(0)]})
    assert store.claim(2, [ReadyTask(0)]).tickets == []
    assert store.claim(1, [ReadyTask(0)]).tickets == [ReadyTask(0, STRIDE)]
    assert store.claim(1, [ReadyTask(0)]).tickets == []


def test_a_task_that_is_handed_back_gets_another_ticket(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.hand_back(ReadyTask(0, 2, 1, 0), 0) == ReadyTask(0, STRIDE, 1, 0)
    assert store.hand_back(ReadyTask(0, 2, 1, 0)) is None
    assert tasks(store.lose(0)[0]) == [0]


def test_a_lease_ends_by_the_clock_of_the_store(opened: Opened) -> None:
    store = opened(diamond())
    assert within_a_lease(lambda: (store.renew(1, 0.0), store.expired(0.0))) == (True, [])
    wait_until(lambda: store.expired(1.0) == [1], "the lease ends")
    store.lose(1)
    assert store.expired(1.0) == []
    assert not store.renew(1, 1.0)


# ---- files -------------------------------------------------------------------------------------------------------


def test_copies_count_as_places_of_inputs(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    store.copied(0, 2)
    store.copied(0, 2)
    assert store.copies(0) == [0, 2]
    assert store.holdings(1) == ((0, 10), (2, 10))
    store.dropped(0, 0)
    assert store.copies(0) == [2]
    assert store.holdings(1) == ((2, 10),)


def test_a_lost_file_with_a_copy_is_not_made_again(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    store.owned([1, 2], 1)
    for file in (0, 1):
        store.copied(file, 1)
    assert store.lose(0) == (ReadyBatch([], []), {})
    assert store.copies(0) == [1]


def test_a_task_waits_for_an_input_that_is_missing(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    store.dropped(0, 0)
    again = store.missing(ReadyTask(1, 1), 2)
    assert tasks(again) == [0]
    assert store.standing_of(1) is TaskStanding.WAITING
    assert tasks(store.complete(2, [(0, again.tickets[0].attempt + 1)])[1]) == [1]


def test_a_source_that_was_fetched_is_where_it_was_fetched_to(opened: Opened) -> None:
    store = opened(diamond())
    store.begin()
    store.copied(4, 1)
    assert store.copies(4) == [1]
    store.lose(1)
    assert store.copies(4) == []
    assert tasks(store.unowned()) == [0]


def test_what_comes_from_outside_is_not_made_again_by_a_task_that_runs_nothing(opened: Opened) -> None:
    work = assemble(*("outside", [1.0] * 2, [[], [0]], [[0], []], [5]), category=[1, 0], profiles=PROFILES)
    store = opened(work)
    assert tasks(store.begin()) == [1]
    store.owned([1], 0)
    store.copied(0, 1)
    assert store.lose(1) == (ReadyBatch([], []), {})
    assert store.standing_of(0) is TaskStanding.DONE
    assert (store.left, store.ready_count) == (1, 1)


# ---- against the store in memory ---------------------------------------------------------------------------------

_small = st.integers(0, 7)
_kinds = st.sampled_from(
    ["complete"] * 4 + ["copied"] * 3 + ["moved"] * 2 + ["lose", "missing", "dropped", "claim", "hand_back", "give_up"]
)
_operations = st.lists(st.tuples(_kinds, _small, _small, _small), min_size=15, max_size=50)
Step = tuple[str, int, int, int]


@st.composite
def _works(draw: st.DrawFn) -> Work:
    """Each task makes one or two files and reads some of those made before, or sources."""
    amount = draw(st.integers(2, 9))
    makes: list[list[int]] = []
    files = draw(st.integers(0, 2))
    sources = files
    reads: list[list[int]] = []
    for _ in range(amount):
        chosen = draw(st.lists(st.integers(0, files - 1), max_size=3, unique=True)) if files else []
        reads.append(chosen)
        made = draw(st.sampled_from([1, 1, 2, 0]))
        makes.append(list(range(files, files + made)))
        files += made
    home = [draw(st.integers(EVERYWHERE, 4)) if file < sources else EVERYWHERE for file in range(files)]
    category = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=amount, max_size=amount))
    return assemble(
        *("random", [1.0] * amount, reads, makes, [draw(st.integers(0, 9)) for _ in range(files)]),
        file_home=home,
        category=category,
        profiles=PROFILES,
    )


def _perform(store: Store, model: MemoryStore, step: Step) -> Any:
    """One step; the model, in which it has not happened yet, says what would make sense, and sometimes is not heard."""
    kind, one, two, three = step
    amount, files = len(model.work), len(model.work.file_bytes)
    ready = [task for task in range(amount) if model.standing[task] == TaskStanding.READY and three < 7] or [
        one % amount
    ]
    task, node, other = ready[one % len(ready)], two % 4, three % 4
    attempt = max(0, model.generation[task] - (three == 6)) * STRIDE + 1 + three
    owner = node if model.owner[task] == NOBODY else model.owner[task]
    there = [file for file in range(files) if model.location[file] >= 0] or list(range(files))
    tickets = [ReadyTask(each, max(0, model.generation[each] - (three == 5)) * STRIDE) for each in ready[: 1 + two % 4]]
    match kind:
        case "complete":
            several = [ticket.task for ticket in tickets] if three % 2 else [task]
            ended = [(each, model.generation[each] * STRIDE + 1) for each in several]
            entries = [b"done %d %d" % pair for pair in ended] if one % 3 else []
            return (store.complete(owner, ended, entries), store.seen_left, store.seen_ready)
        case "lose":
            return store.lose(node, other if other != node else NOBODY)
        case "moved":
            return store.moved(tickets, owner, other, max(0, one - 1))
        case "missing":
            return store.missing(ReadyTask(task, attempt), NOBODY if node in model.lost else node)
        case "copied" if there:
            return store.copied(there[one % len(there)], node)
        case "dropped" if there:
            return store.dropped(there[one % len(there)], node)
        case "claim":
            return (store.claim(owner, tickets), store.unowned(node if three > 3 else NOBODY))
        case "hand_back":
            return (
                store.hand_back(ReadyTask(task, attempt, one, two)),
                store.complete(node, [(one % amount, attempt)]),
            )
        case "give_up":
            if three > 5:
                return store.cancel([one % amount])
            doomed = store.give_up(task, attempt if three > 2 else None, b"failed %d" % task)
            return (doomed, store.seen_left, store.seen_ready)
    return None


def _same_books(store: Store, model: MemoryStore) -> None:
    assert (store.left, store.ready_count) == (model.left, model.ready_count)
    assert store.log(0) == model.log(0)
    if isinstance(store, RedisStore):
        rows, files = unpack_rows(store._column("rows")), unpack_files(store._column("files"))
        assert rows["standing"].tolist() == list(model.standing)
        assert rows["pending"].tolist() == list(model.pending)
        assert rows["generation"].tolist() == list(model.generation)
        assert rows["owner"].tolist() == list(model.owner)
        assert {task: giver for task, giver in enumerate(rows["giver"].tolist()) if giver >= 0} == model.giver
        assert files["location"].tolist() == list(model.location)
        assert {file for file, copied in enumerate(files["copied"].tolist()) if copied} == set(model.replicas)
        others = store._link.call("HKEYS", key_of(store._run, "replicas"))
        assert {int(file) for file in others} == set(model.replicas)
    elif isinstance(store, RemoteStore):
        transport = store._client._transport
        assert isinstance(transport, RestlessServer)
        transport.restart()
        assert store.left == model.left
        found = transport.server._runs[store._client.scope].store
        for name in ("standing", "pending", "generation", "owner", "giver", "location", "replicas", "lost"):
            assert getattr(found, name) == getattr(model, name), name
    for task in range(len(model.work)):
        assert store.holdings(task) == model.holdings(task)


@settings(
    max_examples=60,
    deadline=None,
    phases=PHASES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(work=_works(), steps=_operations)
def test_every_store_does_what_the_store_in_memory_does(opened: Opened, work: Work, steps: list[Step]) -> None:
    store, model = opened(work), MemoryStore(work, NODES)
    assert store.begin() == model.begin()
    for node in range(2):
        mine = [task for task in range(len(work)) if model.standing[task] == TaskStanding.READY][node::2]
        store.owned(mine, node)
        model.owned(mine, node)
    for step in steps:
        assert _perform(store, model, step) == _perform(model, model, step)
    _same_books(store, model)
