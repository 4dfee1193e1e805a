"""What every store promises (`shoal.store.base`): one suite over memory, a real Redis and a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.broker.peers import Ticket
from shoal.errors import InputError, RunError
from shoal.model.resources import Resources
from shoal.model.task import Profile
from shoal.model.work import EVERYWHERE, Work, assemble
from shoal.sim.workloads.matrix import fan_out
from shoal.store.base import NOBODY, STRIDE, Placeable, Standing, Store
from shoal.store.columns import unpack_files, unpack_rows
from shoal.store.link import Link
from shoal.store.memory import MemoryStore
from shoal.store.redis import RedisStore, key_of, worries
from support.redis_servers import CAREFUL, RedisServer, cluster_of_three, one_server, wait_until

PROFILES = [Profile("task", Resources.parse({"cores": 1})), Profile("nothing", Resources())]
NODES = 3
PHASES = [phase for phase in Phase if phase is not Phase.explain]  # explaining takes minutes with a server
_numbers = count(1)

Opened = Callable[[Work], Store]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with one_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with cluster_of_three(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(params=["memory", "redis", "cluster"], scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Makes a store of one kind around some work."""
    if request.param == "memory":
        yield lambda work: MemoryStore(work, NODES, lease=0.05)
        return
    if request.param == "redis":
        addresses = [request.getfixturevalue("server").address]
    else:
        addresses = [server.address for server in request.getfixturevalue("cluster")]
    stores: list[RedisStore] = []

    def bring(work: Work) -> Store:
        run = f"run-{next(_numbers)}"
        stores.append(RedisStore.bring(Link(addresses, key_of(run, "rows")), run, work, NODES, lease=0.05))
        return stores[-1]

    yield bring
    for store in stores:
        store.close()


def diamond() -> Work:
    """0 makes two files, of which 1 and 2 read one each; 3 reads what these make."""
    return assemble("diamond", [1.0] * 4, [[4], [0], [1], [2, 3]], [[0, 1], [2], [3], []], [10, 20, 30, 40, 50])


def started(store: Store, node: int = 0) -> list[Ticket]:
    """Begins, and gives everything to a node."""
    tickets = store.begin().tickets
    store.owned([ticket.task for ticket in tickets], node)
    return tickets


def tasks(placeable: Placeable) -> list[int]:
    return [ticket.task for ticket in placeable.tickets]


# ---- results -----------------------------------------------------------------------------------------------------


def test_children_become_ready_with_the_places_of_their_inputs(opened: Opened) -> None:
    store = opened(diamond())
    assert tasks(store.begin()) == [0]
    assert store.complete(1, [(0, 1)]) == ([0], Placeable([Ticket(1), Ticket(2)], [((1, 10),), ((1, 20),)]))
    store.complete(1, [(1, 1)])
    assert store.complete(2, [(2, 1)]) == ([2], Placeable([Ticket(3)], [((1, 30), (2, 40))]))
    assert (store.left, store.ready_count) == (1, 1)
    store.complete(2, [(3, 1)])
    assert (store.left, store.ready_count) == (0, 0)


def test_a_result_counts_once(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.complete(0, [(0, 1), (0, 1)])[0] == [0]
    assert store.complete(0, [(0, 1), (0, 2)]) == ([], Placeable([], []))
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
    assert store.complete(0, [(0, 1)]) == ([0], Placeable([Ticket(2)], [()]))
    assert store.standing_of(1) is Standing.DONE
    assert store.left == 1


def test_work_without_files_has_no_holdings(opened: Opened) -> None:
    work = diamond()
    for column in ("input_start", "inputs", "output_start", "outputs", "file_bytes", "file_home", "weight"):
        setattr(work, column, ())
    store = opened(work)
    started(store)
    assert store.complete(0, [(0, 1)]) == ([0], Placeable([Ticket(1), Ticket(2)], []))
    assert store.holdings(3) == ()


def test_what_needs_a_failed_task_is_doomed(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    assert store.give_up(1, 3) == [3]
    assert store.give_up(1) == []
    assert [store.standing_of(task) for task in range(4)] == [2, 3, 1, 4]
    assert (store.left, store.ready_count) == (1, 1)


def test_cancelling_names_the_tasks_that_brokers_have(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.cancel([3, 0, 1]) == [0]
    assert store.left == 0


# ---- nodes -------------------------------------------------------------------------------------------------------


def test_tasks_of_a_lost_node_begin_a_new_generation(opened: Opened) -> None:
    store = opened(diamond())
    started(store, 1)
    assert store.lose(1, 2) == (Placeable([Ticket(0, STRIDE)], [()]), {})
    assert store.complete(1, [(0, 1)]) == ([], Placeable([], []))
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
    assert store.lose(2, 1) == (Placeable([], []), {})
    assert store.unowned(1) == Placeable([], [])
    assert tasks(store.unowned(2)) == [0]


def test_a_parcel_is_recorded_once_and_refused_for_a_lost_node(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.moved([Ticket(0)], 0, 1, 7) == Placeable([], [])
    assert store.recorded(0) == 7
    store.moved([Ticket(0)], 1, 0, 1)
    store.moved([Ticket(0)], 0, 1, 7)
    assert store.lose(1)[0].tickets == []
    assert store.moved([Ticket(0)], 0, 1, 8).tickets == [Ticket(0, STRIDE)]


def test_what_a_lost_node_was_about_to_give_is_claimed_by_its_receiver(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.moved([Ticket(0)], 0, 1, 1)
    assert store.lose(0) == (Placeable([], []), {1: [Ticket(0)]})
    assert store.claim(2, [Ticket(0)]).tickets == []
    assert store.claim(1, [Ticket(0)]).tickets == [Ticket(0, STRIDE)]
    assert store.claim(1, [Ticket(0)]).tickets == []


def test_a_task_that_is_handed_back_gets_another_ticket(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    assert store.hand_back(Ticket(0, 2, 1, 0), 0) == Ticket(0, STRIDE, 1, 0)
    assert store.hand_back(Ticket(0, 2, 1, 0)) is None
    assert tasks(store.lose(0)[0]) == [0]


def test_a_lease_ends_by_the_clock_of_the_store(opened: Opened) -> None:
    store = opened(diamond())
    assert store.renew(1, 0.0)
    assert store.expired(0.0) == []
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
    assert store.lose(0) == (Placeable([], []), {})
    assert store.copies(0) == [1]


def test_a_task_waits_for_an_input_that_is_missing(opened: Opened) -> None:
    store = opened(diamond())
    started(store)
    store.complete(0, [(0, 1)])
    store.dropped(0, 0)
    again = store.missing(Ticket(1, 1), 2)
    assert tasks(again) == [0]
    assert store.standing_of(1) is Standing.WAITING
    assert tasks(store.complete(2, [(0, again.tickets[0].attempt + 1)])[1]) == [1]


def test_a_source_that_was_fetched_is_where_it_was_fetched_to(opened: Opened) -> None:
    store = opened(diamond())
    store.begin()
    store.copied(4, 1)
    assert store.copies(4) == [1]
    store.lose(1)
    assert store.copies(4) == []
    assert tasks(store.unowned()) == [0]


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
    ready = [task for task in range(amount) if model.standing[task] == Standing.READY and three < 7] or [one % amount]
    task, node, other = ready[one % len(ready)], two % 4, three % 4
    attempt = max(0, model.generation[task] - (three == 6)) * STRIDE + 1 + three
    owner = node if model.owner[task] == NOBODY else model.owner[task]
    there = [file for file in range(files) if model.location[file] >= 0] or list(range(files))
    tickets = [Ticket(each, max(0, model.generation[each] - (three == 5)) * STRIDE) for each in ready[: 1 + two % 4]]
    match kind:
        case "complete":
            several = [ticket.task for ticket in tickets] if three % 2 else [task]
            return store.complete(owner, [(each, model.generation[each] * STRIDE + 1) for each in several])
        case "lose":
            return store.lose(node, other if other != node else NOBODY)
        case "moved":
            return store.moved(tickets, owner, other, max(0, one - 1))
        case "missing":
            return store.missing(Ticket(task, attempt), NOBODY if node in model.lost else node)
        case "copied" if there:
            return store.copied(there[one % len(there)], node)
        case "dropped" if there:
            return store.dropped(there[one % len(there)], node)
        case "claim":
            return (store.claim(owner, tickets), store.unowned(node if three > 3 else NOBODY))
        case "hand_back":
            return (store.hand_back(Ticket(task, attempt, one, two)), store.complete(node, [(one % amount, attempt)]))
        case "give_up":
            return store.cancel([one % amount]) if three > 5 else store.give_up(task, attempt if three > 2 else None)
    return None


def _same_books(store: Store, model: MemoryStore) -> None:
    assert (store.left, store.ready_count) == (model.left, model.ready_count)
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
    for task in range(len(model.work)):
        assert store.holdings(task) == model.holdings(task)


@settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=_works(), steps=_operations)
def test_every_store_does_what_the_store_in_memory_does(opened: Opened, work: Work, steps: list[Step]) -> None:
    store, model = opened(work), MemoryStore(work, NODES)
    assert store.begin() == model.begin()
    for node in range(2):
        mine = [task for task in range(len(work)) if model.standing[task] == Standing.READY][node::2]
        store.owned(mine, node)
        model.owned(mine, node)
    for step in steps:
        assert _perform(store, model, step) == _perform(model, model, step)
    _same_books(store, model)


# ---- outages -----------------------------------------------------------------------------------------------------


def _play(store: Store, progress: list[int]) -> list[tuple[list[int], Placeable]]:
    """Completes everything, one task at a time, and keeps all answers."""
    answers = []
    queue = started(store)
    for ticket in queue:  # grows while we walk it
        answers.append(store.complete(ticket.task % NODES, [(ticket.task, ticket.attempt + 1)]))
        queue += answers[-1][1].tickets
        progress[0] += 1
    return answers


def test_nothing_is_lost_or_done_twice_when_the_server_is_killed(tmp_path: Path) -> None:
    work = fan_out(1, 600)
    with one_server(tmp_path, *CAREFUL) as server:
        store = RedisStore.bring(Link([server.address], key_of("r", "rows")), "r", work, NODES)
        progress = [0]
        over = threading.Event()

        def strike() -> None:
            for moment in (100, 250, 400):
                wait_until(lambda moment=moment: progress[0] >= moment or over.is_set(), "progress")  # type: ignore[misc]
                server.kill()
                server.start()

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            answers = _play(store, progress)
        finally:
            over.set()
            striker.join()
        assert answers == _play(MemoryStore(work, NODES), [0])
        assert store.left == 0
        assert store._link.breaks >= 3
        store.close()


def test_an_operation_that_is_sent_again_gets_the_same_answer(server: RedisServer) -> None:
    store = RedisStore.bring(Link([server.address], key_of("twice", "rows")), "twice", diamond(), NODES)
    started(store)
    first = store.complete(0, [(0, 1)])
    store._sequence -= 1
    assert store.complete(0, [(0, 1)]) == first
    assert store.left == 3
    store.forget()
    store.close()


def test_a_request_that_was_overtaken_changes_nothing(server: RedisServer) -> None:
    store = RedisStore.bring(Link([server.address], key_of("late", "rows")), "late", diamond(), NODES)
    started(store)
    late = (store._client, store._sequence, "1", "cancel", b"\x91\x00")
    store.copied(4, 1)
    assert store._link.run(store._other, store._keys, *late) == b""
    assert store.left == 4
    store.forget()
    store.close()


def test_the_scripts_are_loaded_again_when_the_server_has_forgotten_them(server: RedisServer) -> None:
    store = RedisStore.bring(Link([server.address], key_of("sha", "rows")), "sha", diamond(), NODES)
    started(store)
    store._link.call("SCRIPT", "FLUSH")
    assert store.complete(0, [(0, 1)])[0] == [0]
    store.forget()
    store.close()


def test_in_a_cluster_runs_lie_on_all_masters(cluster: list[RedisServer]) -> None:
    addresses = [server.address for server in cluster]
    stores = []
    for number in range(12):
        link = Link(addresses, key_of(f"spread-{number}", "rows"))
        stores.append(RedisStore.bring(link, f"spread-{number}", diamond(), NODES))
    sizes = []
    for server in cluster:
        with redis.Redis(unix_socket_path=server.socket) as client:
            sizes.append(client.dbsize())
    assert min(sizes) > 0
    for store in stores:
        store.forget()
        store.close()


# ---- runs and servers --------------------------------------------------------------------------------------------


def test_whoever_joins_a_run_finds_its_work_and_its_state(server: RedisServer) -> None:
    address, work = [server.address], fan_out(3, 50)
    store = RedisStore.bring(Link(address, key_of("joined", "rows")), "joined", work, NODES)
    started(store)
    store.complete(0, [(0, 1)])
    other = RedisStore.attach(Link(address, key_of("joined", "rows")), "joined")
    found = other.work()
    for column in ("seconds", "category", "waits_for", "child_start", "children", "inputs", "outputs", "file_bytes"):
        assert list(getattr(found, column)) == list(getattr(work, column)), column
    assert found.profiles == work.profiles
    assert other.standings().count(Standing.DONE) == 1
    other.close()
    store.forget()
    with pytest.raises(InputError, match="no run 'joined'"):
        RedisStore.attach(store._link, "joined")
    store.close()


def test_a_run_is_brought_once(server: RedisServer) -> None:
    link = Link([server.address], key_of("same", "rows"))
    store = RedisStore.bring(link, "same", diamond(), NODES)
    with pytest.raises(InputError, match="has a run 'same' already"):
        RedisStore.bring(link, "same", diamond(), NODES)
    store.forget()
    store.close()


def test_an_address_where_nobody_answers_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Redis server answers at unix://"):
        Link([f"unix://{tmp_path}/none"], "{r}", patience=0.1)
    with pytest.raises(InputError, match="is not the address of a Redis server"):
        Link(["http://nowhere"], "{r}")


def test_a_wrong_password_is_told_at_once(tmp_path: Path) -> None:
    with one_server(tmp_path, "--requirepass", "right") as server:
        with pytest.raises(InputError, match="does not let us in"):
            Link([server.address], "{r}")
        Link([f"unix://:right@{server.socket}"], "{r}").close()


def test_a_server_that_may_forget_is_reported(tmp_path: Path) -> None:
    with one_server(tmp_path / "careful", *CAREFUL) as server:
        link = Link([server.address], "{r}")
        assert worries(link) == {}
        link.close()
    careless = ("--appendonly", "no", "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    with one_server(tmp_path, *careless) as other:
        link = Link([other.address], "{r}")
        found = worries(link)
        assert list(found) == ["appendonly", "maxmemory-policy", "maxmemory"]
        assert "appendonly yes" in found["appendonly"]
        link.call("CONFIG", "SET", "appendonly", "yes")
        assert "appendfsync always" in worries(link)["appendfsync"]
        link.close()


def test_full_memory_stops_the_run_and_changes_nothing(tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        store = RedisStore.bring(Link([server.address], key_of("full", "rows")), "full", diamond(), NODES)
        started(store)
        store._link.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(RunError, match="out of memory"):
            store.complete(0, [(0, 1)])
        store._link.call("CONFIG", "SET", "maxmemory", "0")
        assert store.left == 4
        assert store.complete(0, [(0, 1)])[0] == [0]
        store.close()


def test_a_server_that_lost_its_data_is_noticed(tmp_path: Path) -> None:
    with one_server(tmp_path, "--appendonly", "no") as server:
        store = RedisStore.bring(Link([server.address], key_of("gone", "rows")), "gone", diamond(), NODES)
        started(store)
        server.kill()
        server.start()
        with pytest.raises(RunError, match="does not know this run any more"):
            store.complete(0, [(0, 1)])
        store._link.close()
