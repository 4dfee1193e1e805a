"""The remaining tasks of a run, read from the store at the cluster's head."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cluster.agent.messages import ClusterReply, ClusterRunFacts
from shoal.cluster.agent.run_description import LogEntry, encode
from shoal.cluster.agent.run_store import LocalTransport, ServedStores
from shoal.cluster.nodes.demand import CategoryDemand
from shoal.cluster.nodes.factory_process import SILENCE_SECONDS, SILENT_MEANS, Backlog
from shoal.cluster.stores.server import StoreServer
from shoal.core.resources import Resources
from shoal.core.store.interface import Store
from shoal.core.task import Profile
from shoal.core.work import Work

CPU, GPU = Resources.parse({"cores": 1}), Resources.parse({"cores": 1, "gpus": 1})
COUNT = 10


@pytest.fixture
def books(tmp_path: Path) -> Iterator[ServedStores]:
    server = StoreServer(str(tmp_path / "store"))
    yield ServedStores(LocalTransport(server, lambda: 0.0))
    server.close()


def brought(books: ServedStores) -> Store:
    """Ten tasks without edges, every other one for a GPU."""
    work = Work(
        "w",
        array("d", bytes(8 * COUNT)),
        array("i", [0, 1] * (COUNT // 2)),
        [Profile("cpu", CPU), Profile("gpu", GPU)],
        array("i", bytes(4 * COUNT)),
        array("i", bytes(4 * (COUNT + 1))),
        array("i"),
    )
    books.bring("r", work, {}, managed=False)
    store, _ = books.attach("r")
    store.owned(range(COUNT), 0)
    return store


def told(store: Store) -> ClusterReply:
    return ClusterReply({}, [ClusterRunFacts("r", "w", "active", COUNT, store.left, store.ready_count)])


def complete(store: Store, task: int, seconds: float) -> None:
    counted, _ = store.complete(0, [(task, 1)], [encode(LogEntry(task, 1, "done", "", "n", 0, 100.0, 100.0 + seconds))])
    assert counted == [task]


def test_ready_tasks_are_counted_by_resources_and_durations(books: ServedStores) -> None:
    clock = [0.0]
    store, backlog = brought(books), Backlog(lambda: books, lambda: clock[0])
    assert backlog.demands(told(store)) == [CategoryDemand(CPU, 5), CategoryDemand(GPU, 5)]
    complete(store, 0, 2.0)
    complete(store, 2, 4.0)
    clock[0] = 10.0
    assert backlog.demands(told(store)) == [CategoryDemand(CPU, 3, 3.0), CategoryDemand(GPU, 5)]
    complete(store, 1, 7.0)
    clock[0] = 20.0
    assert backlog.demands(told(store)) == [CategoryDemand(CPU, 3, 3.0), CategoryDemand(GPU, 4, 7.0)]
    clock[0] = 10.0 + SILENCE_SECONDS + SILENT_MEANS * 3.0 + 1.0
    assert backlog.demands(told(store)) == [CategoryDemand(CPU, 3), CategoryDemand(GPU, 4, 7.0)], (
        "what is left takes longer"
    )


def test_between_two_reads_the_store_gets_no_request(books: ServedStores) -> None:
    store, backlog = brought(books), Backlog(lambda: books, lambda: 0.0)
    backlog.demands(told(store))
    for task in (0, 2, 4, 6, 8):
        complete(store, task, 1.0)
    assert backlog.demands(told(store)) == [CategoryDemand(CPU, 2), CategoryDemand(GPU, 2)], (
        "the counts of the last look, in proportion"
    )


def test_tasks_of_a_run_that_the_store_has_lost_fit_any_node(books: ServedStores) -> None:
    store, backlog = brought(books), Backlog(lambda: books, lambda: 0.0)
    found = told(store)
    store.forget()
    assert backlog.demands(found) == [CategoryDemand(Resources(), COUNT)]


def test_without_a_run_there_is_nothing_to_do(books: ServedStores) -> None:
    backlog = Backlog(lambda: books, lambda: 0.0)
    assert backlog.demands(ClusterReply({}, [])) == []
    assert backlog.demands(ClusterReply({}, [ClusterRunFacts("r", "w", "ended", 9, 0, 0)])) == []
