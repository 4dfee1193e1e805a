"""What every directory promises (`shoal.core.store.directory`): numbers, leases, versions, and one beginner for each
run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.cluster.stores.redis import RedisDirectory
from shoal.core.resources import Resources
from shoal.core.store.directory import Beat, Directory, MemoryDirectory, NodeInfo, RunInfo, SubmittedRunState
from shoal.errors import InputError
from support.redis_servers import wait_until
from support.stores import KINDS, OpenedDirectory, opened_directories, within_a_lease

PHASES = [phase for phase in Phase if phase is not Phase.explain]  # explaining takes minutes with a server
LATER = 1.0


@pytest.fixture(params=KINDS, scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedDirectory]:
    with opened_directories(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def node(name: str, ends_at: float | None = None, incarnation: str = "") -> NodeInfo:
    resources, labels = Resources.parse({"cores": 2, "memory": "4G"}), {"site": "näher"}
    return NodeInfo(f"tcp://{name}:1", name, resources, labels, ends_at, f"tcp://{name}:2", "1.0", incarnation)


def versions(directory: Directory) -> tuple[int, int]:
    beat = directory.renew(10_000)
    return beat.nodes_version, beat.runs_version


# ---- nodes -------------------------------------------------------------------------------------------------------


def test_numbers_count_up_and_are_never_used_again(opened: OpenedDirectory) -> None:
    directory = opened()
    assert [directory.join(node(name)) for name in "abc"] == [0, 1, 2]
    directory.remove(2)
    directory.remove(0)
    assert directory.join(node("d")) == 3
    assert list(directory.nodes()) == [1, 3]
    for number in range(4, 12):
        assert directory.join(node(str(number))) == number
    assert list(directory.nodes()) == [1, *range(3, 12)]


def test_what_a_node_tells_of_itself_is_read_by_all(opened: OpenedDirectory) -> None:
    directory = opened()
    first, second = node("a"), node("b", 1e9 + 0.25)
    number = directory.join(first)
    directory.join(second)
    assert directory.nodes() == {0: first, 1: second}
    directory.update(number, node("a", 5.0))
    assert directory.nodes() == {0: node("a", 5.0), 1: second}
    directory.remove(number)
    directory.update(number, first)
    assert directory.nodes() == {1: second}


def test_a_node_is_alive_until_its_lease_ends_by_the_clock_of_the_directory(opened: OpenedDirectory) -> None:
    directory = opened()
    number = directory.join(node("a"))

    def renewed(now: float) -> tuple[bool, list[int]]:
        return directory.renew(number, now).alive, directory.expired(now)

    assert within_a_lease(lambda: renewed(0.0)) == (True, [])
    wait_until(lambda: directory.expired(LATER) == [number], "the lease ends")
    assert within_a_lease(lambda: renewed(LATER)) == (True, [])  # it was only slow
    wait_until(lambda: directory.expired(2 * LATER) == [number], "the lease ends again")
    directory.remove(number)
    assert directory.expired(2 * LATER) == []
    assert not directory.renew(number, 2 * LATER).alive
    assert directory.expired(9 * LATER) == []


def test_a_number_is_renewed_and_given_up_only_by_the_incarnation_that_has_it(opened: OpenedDirectory) -> None:
    directory = opened()
    number = directory.join(node("a", incarnation="of a"))
    for stranger in ("of b", ""):
        assert not directory.renew(number, note=b"a ghost", incarnation=stranger).alive
        directory.remove(number, stranger)
    assert (list(directory.nodes()), directory.notes()) == ([number], {})
    assert directory.renew(number, incarnation="of a").alive
    directory.remove(number, "of a")
    assert directory.nodes() == {}
    another = directory.join(node("b", incarnation="of b"))
    directory.remove(another)
    assert directory.nodes() == {}, "whoever buries a node need not know its incarnation"


def test_a_lease_that_a_stranger_tries_to_renew_ends_all_the_same(opened: OpenedDirectory) -> None:
    directory = opened()
    number = directory.join(node("a", incarnation="of a"))

    def has_ended() -> bool:
        directory.renew(number, LATER, incarnation="of b")
        return directory.expired(LATER) == [number]

    wait_until(has_ended, "the lease ends")


def test_a_number_is_above_those_that_the_node_has_heard_of(opened: OpenedDirectory) -> None:
    directory = opened()
    assert directory.join(node("a"), above=6) == 7
    assert directory.join(node("b"), above=3) == 8
    assert directory.join(node("c")) == 9


def test_a_node_says_with_its_beat_how_it_is_doing_and_the_last_word_stands(opened: OpenedDirectory) -> None:
    directory = opened()
    first, second = directory.join(node("a")), directory.join(node("b"))
    assert directory.notes() == {}
    directory.renew(second, note=b"idle\0\xff")
    directory.renew(first, note=b"busy")
    assert list(directory.notes().items()) == [(first, b"busy"), (second, b"idle\0\xff")]
    before = versions(directory)
    directory.renew(first, note=b"idle")
    directory.renew(second)
    assert directory.notes() == {first: b"idle", second: b"idle\0\xff"}
    assert versions(directory) == before, "how a node is doing is nothing that others must look at"
    directory.remove(first)
    assert not directory.renew(first, note=b"back").alive
    directory.renew(second, note=b"idle\0\xff")  # a served directory may have been started anew meanwhile
    assert directory.notes() == {second: b"idle\0\xff"}


def seen(beat: Beat) -> tuple[bool, int, int]:
    """All but the time."""
    return beat.alive, beat.nodes_version, beat.runs_version


def test_every_change_of_the_nodes_raises_their_version(opened: OpenedDirectory) -> None:
    directory = opened()
    assert versions(directory) == (0, 0)
    number = directory.join(node("a"))
    assert seen(directory.renew(number)) == (True, 1, 0)
    directory.update(number, node("a", 1.0))
    assert versions(directory) == (2, 0)
    directory.remove(number)
    assert seen(directory.renew(number)) == (False, 3, 0)
    directory.remove(number)
    directory.update(number, node("a"))
    assert versions(directory) == (3, 0)


def test_a_node_that_joins_once_is_there_once_however_often_it_is_sent(tmp_path: Path) -> None:
    with opened_directories("redis", tmp_path) as opened:
        directory = opened()
        assert isinstance(directory, RedisDirectory)
        assert directory.join(node("a")) == 0
        directory._sequence -= 1
        assert directory.join(node("a")) == 0
        assert list(directory.nodes()) == [0]
        directory.submit("r", b"")
        directory._sequence -= 1
        directory.submit("r", b"")
        assert directory.begin("r")
        directory._sequence -= 1
        assert directory.begin("r")
        directory.erase()
        assert (directory.nodes(), directory.runs()) == ({}, [])


# ---- runs --------------------------------------------------------------------------------------------------------


def test_runs_are_listed_in_the_order_of_submission_with_their_states(opened: OpenedDirectory) -> None:
    directory = opened()
    for run in ("zebra", "ärger", "middle"):
        directory.submit(run, run.encode() + b"\0\xff")
    directory.begin("ärger")
    directory.begin("middle")
    directory.end("middle", "done: läuft")
    assert directory.runs() == [
        RunInfo("zebra", SubmittedRunState.WAITING, b"zebra\0\xff"),
        RunInfo("ärger", SubmittedRunState.ACTIVE, "ärger".encode() + b"\0\xff"),
        RunInfo("middle", SubmittedRunState.ENDED, b"middle\0\xff", "done: läuft"),
    ]
    assert [info.state for info in directory.runs()] == ["waiting", "active", "ended"]


def test_exactly_one_caller_begins_a_run(opened: OpenedDirectory) -> None:
    directory = opened()
    assert not directory.begin("r")
    directory.submit("r", b"")
    assert [directory.begin("r") for _ in range(3)] == [True, False, False]
    directory.end("r", "done")
    assert not directory.begin("r")


def test_the_first_outcome_of_a_run_stays(opened: OpenedDirectory) -> None:
    directory = opened()
    directory.submit("r", b"about")
    directory.end("r", "cancelled")
    directory.end("r", "done")
    directory.end("unknown", "done")
    assert directory.runs() == [RunInfo("r", SubmittedRunState.ENDED, b"about", "cancelled")]


def test_a_name_is_free_again_when_its_run_is_forgotten(opened: OpenedDirectory) -> None:
    directory = opened()
    directory.submit("r", b"first")
    directory.submit("s", b"")
    with pytest.raises(InputError, match="has a run 'r' already"):
        directory.submit("r", b"second")
    directory.forget("r")
    directory.submit("r", b"third")
    assert [(info.run, info.about) for info in directory.runs()] == [("s", b""), ("r", b"third")]


def test_every_change_of_the_runs_raises_their_version(opened: OpenedDirectory) -> None:
    directory = opened()
    directory.submit("r", b"")
    directory.begin("r")
    directory.begin("r")
    assert versions(directory) == (0, 2)
    directory.end("r", "done")
    directory.end("r", "done")
    directory.forget("r")
    directory.forget("r")
    assert versions(directory) == (0, 4)


# ---- against the directory in memory -----------------------------------------------------------------------------

_steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "update", "remove", "submit", "begin", "end", "forget"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


def _perform(directory: Directory, kind: str, number: int) -> object:
    run = f"run {number}"
    calls: dict[str, Callable[[], object]] = {
        "join": lambda: directory.join(node(str(number))),
        "update": lambda: directory.update(number, node(f"new {number}")),
        "remove": lambda: directory.remove(number),
        "submit": lambda: directory.submit(run, bytes(number)),
        "begin": lambda: directory.begin(run),
        "end": lambda: directory.end(run, str(number)),
        "forget": lambda: directory.forget(run),
    }
    try:
        return calls[kind]()
    except InputError as error:
        return str(error)


@settings(
    max_examples=40,
    deadline=None,
    phases=PHASES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=_steps)
def test_every_directory_does_what_the_one_in_memory_does(
    opened: OpenedDirectory, steps: list[tuple[str, int]]
) -> None:
    directory, model = opened(), MemoryDirectory()
    for kind, number in steps:
        assert _perform(directory, kind, number) == _perform(model, kind, number)
    assert directory.nodes() == model.nodes()
    assert list(directory.nodes()) == list(model.nodes())
    assert directory.runs() == model.runs()
    assert versions(directory) == versions(model)
