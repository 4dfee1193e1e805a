"""A node that is idle beside tasks of a peer notices it, and tells of it only if that lasts."""

from __future__ import annotations

from shoal.cluster.agent.heartbeat import FIRST_LOOK, LONGEST_PAUSE, SLACK, BusyPeer, IdleWatch, idle_sentence
from shoal.cluster.agent.messages import ClusterNodeFacts
from shoal.core.explain.answer import RunAnswer
from shoal.core.explain.store_source import whole_cluster

ALLOWED = 1.5
BUSY = ClusterNodeFacts(running=1, shared=10, run="r", lanes=(0, 2))


class Watched:
    """An idle node that looks with every beat."""

    def __init__(self) -> None:
        self.idle = IdleWatch()
        self.now = 0.0
        self.looks: list[float] = []
        self.unable: tuple[int, ...] = ()
        self.declined: dict[int, float] = {}

    def watch(
        self, seconds: float, note: ClusterNodeFacts, *, is_searching: bool = True
    ) -> list[tuple[float, BusyPeer]]:
        found = []
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            if self.idle.is_time(self.now, is_searching=is_searching):
                self.looks.append(self.now)
                beside = self.idle.look(self.now, "r", ALLOWED, self.unable, {7: note}, self.declined)
                if beside is not None:
                    found.append((self.now, beside))
        return found


def test_an_idle_node_asks_first_and_complains_when_it_lasts() -> None:
    found = Watched().watch(20.0, BUSY)
    (first, asked), (second, lasting), *_ = found
    assert FIRST_LOOK < first <= FIRST_LOOK + 1.0
    assert (asked.peer, asked.shared, asked.lasts) == (7, 10, False)
    assert lasting.lasts and lasting.seconds == second - first > ALLOWED + SLACK
    said = idle_sentence("n2", "n1", lasting)
    assert said == "n2 has been idle for 5 s beside 10 queued tasks of n1, some of which it could run; it asks again"


def test_a_node_that_works_now_and_then_does_not_complain() -> None:
    watched = Watched()
    for _ in range(10):
        assert not any(beside.lasts for _, beside in watched.watch(FIRST_LOOK + 2.0, BUSY))
        watched.watch(1.0, BUSY, is_searching=False)


def test_tasks_of_other_runs_and_those_that_cannot_start_here_do_not_count() -> None:
    watched = Watched()
    assert watched.watch(100.0, ClusterNodeFacts(shared=10, run="another", lanes=(0,))) == []
    assert watched.watch(100.0, ClusterNodeFacts(running=1, run="r")) == []
    watched.unable = (0, 2)
    assert watched.watch(100.0, BUSY) == []
    watched.unable = (0,)
    assert watched.watch(100.0, BUSY)


def test_a_peer_that_gives_nothing_has_its_reasons() -> None:
    watched = Watched()
    for _ in range(30):
        watched.declined[7] = watched.now
        assert watched.watch(2.0, BUSY) == []


def test_the_others_are_looked_at_ever_more_seldom_while_there_is_nothing() -> None:
    watched = Watched()
    watched.watch(1000.0, ClusterNodeFacts(run="r"))
    pauses = [later - earlier for earlier, later in zip(watched.looks, watched.looks[1:], strict=False)]
    assert pauses == sorted(pauses) and pauses[-1] >= LONGEST_PAUSE
    assert len(watched.looks) < 25


def test_why_says_what_nodes_say_of_themselves() -> None:
    said = RunAnswer(running=1, notes=["n2 has been idle"])
    whole = whole_cluster(RunAnswer(ready=1), {0: "n1", 1: "n2"}, lambda node: said if node else RunAnswer())
    assert whole.notes == ["n2 has been idle"]
