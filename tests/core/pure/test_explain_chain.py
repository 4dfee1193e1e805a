"""Explanations of tasks that wait for dependencies, and of runs: constructed situations with known answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from shoal.core.dependencies import DagFlow, TaskStatus
from shoal.core.explain.answer import Answer, RunAnswer, WaitCause, WaitingGroup
from shoal.core.explain.scheduler_source import DriverFacts, SingleNodeSource
from shoal.core.explain.sentences import SentenceWriter, paragraph, run_lines
from shoal.core.explain.store_source import ClusterSource, SilentError, explain_placed
from shoal.core.graph import Graph
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    DrainRequested,
    GiveUp,
    TaskResult,
    TasksEnded,
    TasksReady,
)
from shoal.core.store.interface import NOBODY
from support.case import lane, node
from support.graphs import graph_of


class Play:
    """A graph on one node of so many cores, driven by hand; every task takes one core."""

    def __init__(
        self,
        text: str,
        cores: int = 1,
        retries: int = 0,
        order: str = "",
        stopping: str = "",
        lanes: Sequence[Lane] = (),
        lane_of: Sequence[int] = (),
    ) -> None:
        self.graph = graph_of(text)
        self.flow = DagFlow(self.graph)
        columns = TaskColumns(list(lane_of) or [0] * len(self.graph))
        self.broker = Scheduler(node(cores=cores), columns, lanes or [lane(retries=retries)], order="fifo")
        self.order, self.stopping = order, stopping
        self.now = 0.0
        self.since: dict[int, float] = {}
        self.tell(TasksReady(self.flow.ready()))

    def tell(self, event: TasksReady | TasksEnded | CancelRequested | DrainRequested) -> None:
        commands = self.broker.handle(self.now, event)
        accepted = [command.task for command in commands if isinstance(command, Accept)]
        lost = [command.task for command in commands if isinstance(command, GiveUp)]
        for task in self.broker.running:
            self.since.setdefault(task, self.now)
        if lost:
            self.flow.fail(lost)
        if accepted:
            self.tell(TasksReady(self.flow.complete(accepted)))

    def end(self, name: str, outcome: AttemptOutcome = AttemptOutcome.OK) -> None:
        task = self.number(name)
        self.tell(TasksEnded([TaskResult(task, self.broker.attempt[task], outcome, self.now - self.since[task])]))

    def number(self, name: str) -> int:
        return self.graph.names.index(name)

    @property
    def source(self) -> SingleNodeSource:
        known = (self.graph, self.flow.status, self.broker, self.now)
        return SingleNodeSource(*known, driver=DriverFacts(self.since, order=self.order, stopping=self.stopping))

    def why(self, name: str) -> Answer:
        return self.source.explain(self.number(name))

    def said(self, name: str) -> str:
        return paragraph(self.why(name), speech(self.graph, self.now))

    def chain(self, name: str) -> list[str]:
        return [self.graph.names[task] for task in self.why(name).chain]


def speech(graph: Graph, now: float) -> SentenceWriter:
    def name(task: int) -> str:
        return graph.names[task]

    return SentenceWriter(name, lambda moment: f"{moment:g}", lambda seconds: f"{seconds:g} s", now)


def test_a_task_that_needs_a_running_one_is_explained_with_it() -> None:
    play = Play("a:\nb: a")
    answer = play.why("b")
    assert (answer.cause, answer.unfinished, play.chain("b")) == (WaitCause.NEEDS, 1, ["a"])
    assert answer.root is not None and answer.root.cause is WaitCause.RUNNING
    assert play.said("b") == "'b' waits for the task 'a'; that has been running since 0 (0 s), attempt 1."


def test_the_chain_goes_down_to_the_running_ancestor() -> None:
    play = Play("a:\nb: a\nc: b\nd: c")
    assert play.chain("d") == ["c", "b", "a"]
    assert play.said("d").startswith(
        "'d' waits for the task 'c', which waits for 'b', which waits for 'a'; 'a' has been running since 0 (0 s)"
    )


def test_a_long_chain_is_shown_by_its_ends() -> None:
    play = Play("t0:\n" + "\n".join(f"t{at}: t{at - 1}" for at in range(1, 40)))
    assert len(play.why("t39").chain) == 39
    text = play.said("t39")
    assert "'t38', which waits for 't37', which waits for 't36', and so on over 34 more to 't1' and 't0'" in text


def test_an_ancestor_that_waits_itself_is_explained_with_its_own_reason() -> None:
    play = Play("a:\nb:\nc: b")
    assert play.chain("c") == ["b"]
    assert "'b' is queued and waits for cores: it asks for 1, and 0 of 1 are free; held by 'a' (1)" in play.said("c")


def test_what_is_done_is_not_counted() -> None:
    play = Play("a:\nb:\nc:\nd: a b c", cores=3)
    play.now = 1.0
    play.end("a")
    assert play.why("d").unfinished == 2
    assert "waits for 2 unfinished tasks, among them" in play.said("d")


def test_the_branch_that_takes_longest_is_the_chain() -> None:
    play = Play("first:\nshort: first\nlong: first\nlonger: long\nend: short longer", cores=4)
    play.now = 2.0
    play.end("first")
    assert play.chain("end") == ["longer", "long"]


def test_without_any_durations_the_branch_furthest_from_running_is_the_chain() -> None:
    play = Play("a:\nb: a\nc: b\nd: a c", cores=2)
    assert play.chain("d") == ["c", "b", "a"]


def test_a_group_is_passed_through() -> None:
    play = Play("a:\n(all): a\nb: all")
    assert play.chain("b") == ["all", "a"]


def test_it_is_expected_to_start_when_the_longest_branch_is_done() -> None:
    play = Play("z:\na: z\nb: a\nc: b", cores=2)
    play.now = 10.0
    play.end("z")  # a runs from now on, and takes ten seconds like z
    play.now = 14.0
    assert play.why("b").starts == pytest.approx(20.0)
    assert play.why("c").starts == pytest.approx(30.0)
    assert play.said("c").endswith("'c' is expected to start at about 30 (in 16 s).")


def test_more_work_than_cores_is_expected_to_take_longer_than_its_longest_branch() -> None:
    rows = "\n".join(f"p{at}: z" for at in range(10))
    needs = " ".join(f"p{at}" for at in range(10))
    play = Play(f"z:\n{rows}\nend: {needs}", cores=2)
    play.now = 10.0
    play.end("z")
    assert play.why("end").starts == pytest.approx(60.0)


def test_nothing_is_expected_before_a_task_has_ended() -> None:
    assert Play("a:\nb: a").why("b").starts is None


def test_what_needs_a_failed_task_cannot_run_any_more() -> None:
    play = Play("a:\nb: a\nc: b")
    play.end("a", AttemptOutcome.FAILED)
    answer = play.why("c")
    assert (answer.cause, play.chain("c")) == (WaitCause.DOOMED, ["b", "a"])
    said = "'c' cannot run: it depends on 'b', which depends on 'a'; 'a' failed or was cancelled."
    assert play.said("c") == said
    assert play.said("b") == "'b' cannot run: it depends on 'a', which failed or was cancelled."


def test_what_failed_is_explained_with_its_message_if_that_is_known() -> None:
    text = paragraph(Answer(0, WaitCause.FAILED, detail="exit status 3"), speech(graph_of("a:"), 0.0))
    assert text == "'a' failed: exit status 3."


def test_what_is_over_is_explained() -> None:
    play = Play("a:\nb:", cores=1)
    play.now = 1.0
    play.end("a")
    assert play.said("a") == "'a' is done."
    play.flow.status[play.number("b")] = TaskStatus.EXCLUDED
    assert play.said("b") == "'b' is not part of this run: no target needs it."


def test_a_task_whose_ancestor_rests_waits_for_its_next_attempt() -> None:
    play = Play("a:\nb: a", retries=2)
    play.end("a", AttemptOutcome.FAILED)
    play.end("a", AttemptOutcome.FAILED)
    answer = play.why("b")
    assert answer.root is not None and answer.root.cause is WaitCause.RETRY
    assert "'a' waits for a retry: attempt 2 failed; the next attempt is due in" in play.said("b")


def test_the_order_is_named_where_it_matters() -> None:
    play = Play("a:\nb:\nc:", order="lifo")
    assert "(order 'lifo')" in play.said("c")


def test_a_stopping_run_says_why_it_stops() -> None:
    play = Play("a:\nb:", stopping="received SIGTERM")
    play.tell(DrainRequested())
    assert play.said("b") == "'b' is ready and will not start: received SIGTERM."


def test_a_task_that_the_scheduler_has_not_got_yet_is_on_its_way() -> None:
    play = Play("a:\nb: a")
    play.broker.handle(0.0, TasksEnded([TaskResult(0, 1, AttemptOutcome.OK, 1.0)]))
    play.flow.complete([0])
    assert play.why("b").cause is WaitCause.ARRIVING
    assert [(group.cause, group.count) for group in play.source.whole().groups] == [(WaitCause.ARRIVING, 1)]


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_is_shown_by_what_runs_and_what_waits() -> None:
    play = Play("a:\nb:\nc:\nd: a\ne: d", cores=1)
    whole = play.source.whole()
    assert (whole.running, whole.ready, whole.waiting) == (1, 2, 2)
    lines = run_lines(whole, speech(play.graph, 0.0))
    assert lines[0] == "1 running, 2 ready, 2 waiting for dependencies."
    assert lines[1].startswith("  2 such as 'b': each waits for cores: it asks for 1, and 0 of 1 are free")
    assert lines[2] == "  2 wait for unfinished dependencies"


def test_why_nothing_runs_is_shown_first() -> None:
    play = Play("a:\nb: a", retries=2)
    play.end("a", AttemptOutcome.FAILED)
    play.end("a", AttemptOutcome.FAILED)
    lines = run_lines(play.source.whole(), speech(play.graph, 0.0))
    assert lines[0] == "Nothing is running: the ready tasks wait for a retry."
    assert lines[1].startswith("  1 ('a') waits for a retry, due in ")


def test_a_run_with_nothing_left_says_so() -> None:
    play = Play("a:\nb: a")
    play.end("a", AttemptOutcome.FAILED)
    lines = run_lines(play.source.whole(), speech(play.graph, 0.0))
    lost = "  1 failed or was cancelled; 1 cannot run because of that"
    assert lines == ["Nothing is left to run: 0 tasks are done.", lost]


def test_a_run_without_a_node_says_what_the_batch_system_says() -> None:
    note = "2 requested nodes of group 'main': waiting: the nodes are busy with other jobs (Resources)"
    whole = RunAnswer(ready=5, groups=[WaitingGroup(WaitCause.NO_NODE, 5, Answer(0, WaitCause.NO_NODE))], notes=[note])
    lines = run_lines(whole, speech(graph_of("a:"), 0.0))
    assert lines[0] == "Nothing is running: the cluster has no node."
    assert lines[-1] == f"  {note}"


@pytest.mark.parametrize("cause", [cause for cause in WaitCause if not cause.is_over])
def test_every_reason_for_which_nothing_runs_can_be_said(cause: WaitCause) -> None:
    whole = RunAnswer(ready=1, groups=[WaitingGroup(cause, 1, Answer(0, WaitCause.ARRIVING))])
    begins = "It is not known what is running: " if cause is WaitCause.NODE_SILENT else "Nothing is running: "
    assert run_lines(whole, speech(graph_of("a:"), 0.0))[0].startswith(begins)


# ---- a cluster -------------------------------------------------------------------------------------------------------

NODES = {1: "ash", 2: "birch"}


def asked(node: int, task: int) -> Answer | None:
    """Node 1 has the task, node 2 does not answer."""
    if node == 2:
        raise SilentError
    return Answer(task, WaitCause.RUNNING, 1)


@pytest.mark.parametrize(
    ("owner", "nodes", "cause", "where"),
    [
        (1, NODES, WaitCause.RUNNING, "ash"),
        (2, NODES, WaitCause.NODE_SILENT, "birch"),
        (3, NODES, WaitCause.NODE_LOST, ""),
        (NOBODY, NODES, WaitCause.ARRIVING, ""),
        (1, {}, WaitCause.NO_NODE, ""),
    ],
)
def test_a_ready_task_is_explained_by_its_node(owner: int, nodes: dict[int, str], cause: WaitCause, where: str) -> None:
    answer = explain_placed(7, owner, nodes, asked)
    assert (answer.task, answer.cause, answer.node) == (7, cause, where)


def test_a_task_that_its_owner_has_not_got_is_on_its_way_to_it() -> None:
    answer = explain_placed(7, 1, NODES, lambda node, task: None)
    assert (answer.cause, answer.node) == (WaitCause.ARRIVING, "ash")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Answer(0, WaitCause.NO_NODE, detail="a node waits: Priority"),
            "waits for a node: the cluster has none (a node",
        ),
        (Answer(0, WaitCause.ANOTHER_RUN, detail="x.py"), "the cluster serves an earlier run first (x.py)"),
        (Answer(0, WaitCause.NODE_LOST), "is being placed on another node: its node is lost"),
        (
            Answer(0, WaitCause.NODE_SILENT, node="ash"),
            "'a' is on ash, which does not answer, and may be running there;",
        ),
        (Answer(0, WaitCause.STORE, detail="connection refused"), "the cluster's store does not answer (connection"),
        (Answer(0, WaitCause.FETCHING, node="ash"), "is ready on ash and waits for its input files, which are"),
        (Answer(0, WaitCause.TOO_LARGE, detail="no node has 64 cores"), "no current node can (no node has 64 cores)"),
        (Answer(0, WaitCause.RECORDING, node="ash"), "has run on ash; its result is being recorded"),
        (Answer(0, WaitCause.ARRIVING), "is being placed"),
        (Answer(0, WaitCause.TURN), "is queued and waits for the scheduler's next decision"),
    ],
)
def test_trouble_of_a_cluster_is_explained_in_words(answer: Answer, words: str) -> None:
    assert words in paragraph(answer, speech(graph_of("a:"), 0.0))


def test_a_chain_over_a_cluster_ends_with_what_the_node_says() -> None:
    graph = graph_of("a:\nb: a\nc: b")
    statuses = [TaskStatus.READY, TaskStatus.WAITING, TaskStatus.WAITING]
    looked: list[int] = []

    def needs(task: int) -> Iterable[int]:
        looked.append(task)
        return graph.predecessors_of(task)

    source = ClusterSource(0.0, needs, statuses.__getitem__, lambda task: explain_placed(task, 1, NODES, asked))
    text = paragraph(source.explain(2), speech(graph, 0.0))
    assert text == "'c' waits for the task 'b', which waits for 'a'; 'a' is running on ash, attempt 1."
    assert 0 not in looked, "nobody asks what a running task needs"


def test_only_so_many_ancestors_are_asked_for_to_foresee_a_start() -> None:
    rows = "\n".join(f"t{at}: t{at - 1}" for at in range(1, 50))
    graph = graph_of(f"t0:\n{rows}")
    statuses = [TaskStatus.READY] + [TaskStatus.WAITING] * 49

    def source(horizon: int) -> ClusterSource:
        held = Answer(0, WaitCause.RUNNING, 1)
        found = statuses.__getitem__
        return ClusterSource(0.0, graph.predecessors_of, found, lambda task: held, lambda task: 1.0, horizon=horizon)

    assert source(100).explain(49).starts == pytest.approx(49.0)
    assert source(10).explain(49).starts is None
    assert len(source(10).explain(49).chain) == 49


def test_an_attempt_that_was_handed_back_before_it_began_does_not_count() -> None:
    play = Play("a:")
    play.end("a", AttemptOutcome.UNBEGUN)
    assert play.broker.attempt[0] == 2
    known = (play.graph, play.flow.status, play.broker, play.now)
    assert SingleNodeSource(*known, {0: 1}).explain(0).attempt == 1


def test_a_task_is_not_expected_before_what_it_needs_and_waits_far_back_in_the_queue() -> None:
    others = [f"t{at}:" for at in range(8)]
    play = Play("\n".join([*others, "near:", "far:", "both: near far"]))
    play.now = 2.0
    play.end("t0")
    far, both = play.why("far"), play.why("both")
    assert far.starts == pytest.approx(2.0 + 2.0 * 8)
    assert both.chain == [far.task], "it is the one that takes longest"
    assert both.starts == pytest.approx(2.0 + 2.0 * 9)


def test_the_start_is_unknown_of_a_task_that_needs_one_for_which_there_is_no_room() -> None:
    long, large = lane(), lane(cores=2)
    text = "slow:\nquick:\nlong:\nlarge:\nlast: long large"
    play = Play(text, cores=2, lanes=[lane(), long, large], lane_of=[0, 0, 1, 2, 0])
    play.now = 1.0
    play.end("quick")
    long.mean_duration, large.mean_duration = 10.0, 1.0
    play.now = 5.0
    assert play.why("large").starts is None, "'slow' runs for longer than its kind does"
    last = play.why("last")
    assert (last.starts, last.chain) == (None, [play.number("large")])
