"""A cluster over time, as its page shows it: who is there, who falls silent, what is missing, and what is run."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import __version__
from shoal.cluster.agent.messages import ClusterNodeFacts, ClusterReply, ClusterRunFacts
from shoal.core.resources import Resources
from shoal.core.store.directory import UNSHOWN, NodeInfo, places_of
from shoal.ui.web.cluster_page import (
    MOST_DEPARTED,
    SILENT_SECONDS,
    Facts,
    GroupState,
    Missing,
    Presence,
    StoreStatus,
    cluster_parts,
)
from shoal.ui.web.cluster_watch import cluster_metrics
from support.openmetrics import samples

BEGAN = 5000.0


def node(name: str, ends_at: float | None = None, version: str = __version__, **labels: str) -> NodeInfo:
    offers = Resources.parse({"cores": 4, "memory": "8GiB"})
    return NodeInfo(f"tcp://{name}:1", name, offers, {"group": "main", **labels}, ends_at, "", version)


def seen(*moments: tuple[float, ClusterReply]) -> Presence:
    presence = Presence()
    for after, told in moments:
        presence.update(BEGAN + after, told)
    return presence


def note(up: float, **more: Any) -> ClusterNodeFacts:
    return ClusterNodeFacts(up_seconds=up, **more)


def rows(presence: Presence, after: float, **more: Any) -> dict[str, dict[str, Any]]:
    parts = cluster_parts(Facts("lab", presence, BEGAN + after, **more))
    return {row["name"]: row for row in parts["nodes"]}


def test_a_node_is_shown_with_what_it_runs_and_its_queues() -> None:
    busy = note(7.0, running=3, shared=5, local=2, held=10, run="r1", places=3, cores_held=30_000, doing=(("mix", 3),))
    found = rows(seen((0, ClusterReply({0: node("a", site="x")}, [], {0: busy}))), 0)["a"]
    assert (found["state"], found["running"], found["local"], found["shared"]) == ("busy", 3, 2, 5)
    assert (found["cores"], found["cores_held"], found["doing"], found["run"]) == (4, 3.0, [["mix", 3]], "r1")
    assert (found["since"], found["labels"], found["group"], found["trouble"]) == (BEGAN - 7, {"site": "x"}, "main", [])


def test_a_node_with_nothing_to_do_is_idle_since_then() -> None:
    told = [
        (after, ClusterReply({0: node("a")}, [], {0: note(9.0 + after, idle_seconds=4.0 + after)})) for after in (0, 1)
    ]
    found = rows(seen(*told), 1)["a"]
    assert (found["state"], found["idle_since"], found["since"]) == ("idle", BEGAN - 4, BEGAN - 9)


def test_a_node_that_beats_no_more_is_silent_and_then_lost() -> None:
    same = ClusterReply({0: node("a"), 1: node("b")}, [], {0: note(9.0), 1: note(9.0)})
    later = ClusterReply({0: node("a"), 1: node("b")}, [], {0: note(9.0), 1: note(15.0)})
    presence = seen((0, same), (SILENT_SECONDS - 0.5, later))
    assert rows(presence, SILENT_SECONDS - 0.5)["a"]["state"] == "busy"
    presence.update(BEGAN + 6, later)
    found = rows(presence, 6)
    assert (found["a"]["state"], found["b"]["state"]) == ("silent", "busy")
    assert found["a"]["trouble"] == ["no heartbeat for 6 s; after 10 s it counts as lost"]
    presence.update(BEGAN + 11, ClusterReply({1: node("b")}, [], {1: note(20.0)}))
    lost = rows(presence, 30)["a"]
    assert (lost["state"], lost["left"], lost["running"]) == ("lost", True, None)
    assert lost["trouble"] == ["sent no heartbeat for 11 s and counts as lost; its tasks run on other nodes"]


def test_a_node_that_goes_without_a_silence_has_left() -> None:
    first = ClusterReply({0: node("a")}, [], {0: note(9.0, draining=True)})
    assert rows(seen((0, first)), 0)["a"]["state"] == "ending"
    found = rows(seen((0, first), (1, ClusterReply({}, []))), 1)["a"]
    assert (found["state"], found["trouble"]) == ("left", [])


def test_not_all_nodes_that_have_ever_been_there_are_remembered() -> None:
    presence = Presence()
    for number in range(MOST_DEPARTED + 20):
        presence.update(BEGAN + number, ClusterReply({number: node(f"n{number}")}, [], {number: note(1.0)}))
    found = presence.nodes()
    assert len(found) == MOST_DEPARTED + 1
    assert [each.info.name for each in found[:2]] == [f"n{MOST_DEPARTED + 19}", f"n{MOST_DEPARTED + 18}"]


@pytest.mark.parametrize(
    ("info", "said", "sentence"),
    [
        (node("a"), note(1.0, ahead=-12.0), "its clock is 12 s behind the cluster's; synchronise it with NTP"),
        (node("a", version="0.0.1"), note(1.0), f"it runs Shoal 0.0.1, this server {__version__}"),
        (node("a", ends_at=BEGAN + 40), note(1.0), "its time limit ends in 40 s"),
    ],
)
def test_what_is_wrong_with_a_node_is_said_in_a_sentence(info: NodeInfo, said: ClusterNodeFacts, sentence: str) -> None:
    presence = seen((0, ClusterReply({0: info}, [], {0: said})))
    assert rows(presence, 0)["a"]["trouble"] == [sentence]
    assert cluster_parts(Facts("lab", presence, BEGAN))["troubles"] == [f"a: {sentence}"]


def test_a_run_has_its_progress_and_how_fast_it_goes() -> None:
    def told(left: int) -> ClusterReply:
        return ClusterReply(
            {0: node("a")}, [ClusterRunFacts("r1", "flow.py", "active", 100, left, 7)], {0: note(1.0, run="r1")}
        )

    presence = seen((0, told(80)), (5, told(60)), (10, told(40)))
    (run,) = cluster_parts(Facts("lab", presence, BEGAN + 10))["runs"]
    assert (run["over"], run["tasks"], run["ready"], run["nodes"]) == (60, 100, 7, 1)
    assert (run["rate"], run["left"]) == (4.0, 10.0)
    assert presence.rate("another") is None


def test_what_is_missing_is_told_with_its_reason() -> None:
    presence = seen((0, ClusterReply({0: node("a")}, [], {0: note(1.0)})))
    waits = Missing("x-1", "waiting", "job 17", "jobs of higher priority come first")
    groups = (GroupState("main", "local"), GroupState("gpu", "slurm", factory="from 0 to 2 nodes", missing=(waits,)))
    parts = cluster_parts(Facts("lab", presence, BEGAN, groups=groups))
    main, gpu = parts["groups"]
    assert (main["nodes"], main["cores"], gpu["nodes"], gpu["factory"]) == (1, 4, 0, "from 0 to 2 nodes")
    assert list(gpu["missing"]) == [
        {"phase": "waiting", "which": "job 17", "reason": "jobs of higher priority come first"}
    ]
    assert parts["cluster"]["missing"] == 1
    assert parts["troubles"] == ["a node of group gpu is missing (job 17, waiting): jobs of higher priority come first"]


def test_a_node_that_has_come_is_not_missing_any_more() -> None:
    presence = seen((0, ClusterReply({0: node("a", node="x-1")}, [], {0: note(1.0)})))
    late = (Missing("x-1", "waiting", "job 17", "busy"), Missing("x-2", "running", "job 18", ""))
    parts = cluster_parts(Facts("lab", presence, BEGAN, groups=(GroupState("main", "slurm", missing=late),)))
    assert parts["cluster"]["missing"] == 1
    assert parts["troubles"] == [
        "a node is missing (job 18, running): it has not joined, or cannot reach the other nodes"
    ]


def test_a_cluster_that_does_not_answer_says_why_and_nothing_of_its_nodes_is_taken_for_true() -> None:
    presence = seen((0, ClusterReply({0: node("a")}, [], {0: note(1.0, running=2, run="r", places=2)})))
    store = StoreStatus("redis", "host:6379", "no Redis server replies at host:6379", ("It forgets data.",))
    parts = cluster_parts(Facts("lab", presence, BEGAN + 60, "nobody answers at 10.0.0.1:7", store=store))
    assert (parts["cluster"]["live"], parts["nodes"][0]["state"], parts["nodes"][0]["running"]) == (
        False,
        "not known",
        None,
    )
    assert parts["troubles"] == [
        "nobody answers at 10.0.0.1:7",
        "no Redis server replies at host:6379",
        "It forgets data.",
    ]


def test_metrics_of_a_cluster_count_nodes_by_state_and_tasks_by_run() -> None:
    told = ClusterReply(
        {0: node("a")},
        [ClusterRunFacts("r1", "flow.py", "active", 10, 4, 2)],
        {0: note(1.0, running=1, places=1, run="r1")},
    )
    text = cluster_metrics(cluster_parts(Facts("lab", seen((0, told)), BEGAN)))
    found = samples(text)
    assert found["shoal_cluster_nodes"][("state", "busy"),] == 1
    assert found["shoal_cluster_run_tasks"][("run", "r1"), ("state", "over"), ("workflow", "flow.py")] == 6
    assert found["shoal_node_running_tasks"][("node", "a"),] == 1


def test_all_nodes_of_a_large_cluster_are_counted() -> None:
    many = range(1001)
    told = ClusterReply({at: node(f"n{at}") for at in many}, [], {at: note(1.0, running=1, places=1) for at in many})
    parts = cluster_parts(Facts("lab", seen((0, told)), BEGAN))
    assert (parts["cluster"]["nodes"], parts["cluster"]["cores"], parts["cluster"]["running"]) == (1001, 4004, 1001)
    assert parts["groups"][0]["nodes"] == 1001
    assert samples(cluster_metrics(parts))["shoal_cluster_nodes"][("state", "busy"),] == 1001


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:6379", "host:6379"),
        ("rediss://name:secret@host:6379/0?password=secret&ssl_ca_certs=x", "host:6379"),
        ("redis://:a@one:1,redis://:b@two:2", "one:1, two:2"),
        ("unix://:secret@/run/redis.sock?password=secret", "/run/redis.sock"),
        ("unix:///run/redis.sock?password=secret", "/run/redis.sock"),
        ("redis://:sec@ret@host:6379", "host:6379"),
        ("redis://[::1]:6379", "[::1]:6379"),
        ("redis://user:se,cret@host", "host"),
        ("redis://:se/cret@host", UNSHOWN),
        ("redis://:se?cret@host", UNSHOWN),
        ("redis://:se#cret@host", UNSHOWN),
        ("redis://host/?password=se@cret", UNSHOWN),
        ("redis://user:5,redis://cret@host", f"{UNSHOWN}, host"),
        ("redis://:secret", UNSHOWN),
        ("redis://[secret", UNSHOWN),
        ("unix://:se/cret@/run/redis.sock", UNSHOWN),
        ("secret", UNSHOWN),
    ],
)
def test_the_place_of_a_store_is_shown_without_its_password(url: str, shown: str) -> None:
    assert places_of(url) == shown
