"""Estimated starts of tasks: only if a task can start, and consistent with the rest of its explanation."""

from __future__ import annotations

import pytest

from core.pure.test_explain_chain import Play, speech
from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, Cap, Shortage, WaitCause
from shoal.core.explain.scheduler_source import explain_held
from shoal.core.explain.sentences import SentenceWriter, paragraph
from shoal.core.explain.store_source import ClusterSource
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources
from shoal.core.scheduler import Lane
from shoal.core.scheduler_messages import CapsChanged, DrainRequested
from support.case import BrokerCase, lane, node
from support.graphs import graph_of

CHAIN = graph_of("a:\nb: a\nc: b")
STANDINGS = [TaskStatus.READY, TaskStatus.WAITING, TaskStatus.WAITING]


def behind(root: Answer, seconds: float = 5.0) -> Answer:
    """What is said at 100 of the last of three tasks, of which the first is as `root` says."""
    known = (CHAIN.predecessors_of, STANDINGS.__getitem__)
    return ClusterSource(100.0, *known, lambda task: root, lambda task: seconds).explain(2)


STUCK = {
    WaitCause.NO_NODE: Answer(0, WaitCause.NO_NODE),
    WaitCause.NODE_SILENT: Answer(0, WaitCause.NODE_SILENT, node="ash"),
    WaitCause.TOO_LARGE: Answer(0, WaitCause.TOO_LARGE),
    WaitCause.LABEL: Answer(0, WaitCause.LABEL, shortage=Shortage("site=x", 1, 0, 0)),
    WaitCause.STORE: Answer(0, WaitCause.STORE),
    WaitCause.STOPPING: Answer(0, WaitCause.STOPPING),
    WaitCause.THROTTLE: Answer(0, WaitCause.THROTTLE, cap=Cap("k", 0, 0)),
    WaitCause.LARGER_FIRST: Answer(0, WaitCause.LARGER_FIRST, larger="cores 2"),
    WaitCause.RESOURCES: Answer(0, WaitCause.RESOURCES, shortage=Shortage("cores", 1, 0, 1), queued=50_000),
    WaitCause.ENDING: Answer(0, WaitCause.ENDING, 1, since=99.0),
    WaitCause.ARRIVING: Answer(0, WaitCause.ARRIVING),
}


@pytest.mark.parametrize("cause", STUCK)
def test_no_start_is_promised_if_it_is_unknown_when_the_ancestor_starts(cause: WaitCause) -> None:
    answer = behind(STUCK[cause])
    assert answer.root is not None and answer.root.cause is cause
    assert answer.starts is None
    assert "start at" not in paragraph(answer, speech(CHAIN, 100.0))


def test_a_start_follows_from_that_of_the_ancestor() -> None:
    root = Answer(0, WaitCause.RESOURCES, shortage=Shortage("cores", 1, 0, 1), starts=130.0)
    assert behind(root).starts == pytest.approx(140.0)


def test_a_start_follows_from_the_end_of_the_running_ancestor() -> None:
    """It has run for most of its time: what its node says of its end counts."""
    root = Answer(0, WaitCause.RUNNING, 1, since=42.0, until=102.0, node="ash")
    assert behind(root, 60.0).starts == pytest.approx(162.0)
    known = Answer(0, WaitCause.RUNNING, 1, since=42.0, node="ash")
    assert behind(known, 60.0).starts == pytest.approx(162.0), "the mean is the client's own"


def test_no_start_is_promised_behind_a_task_that_runs_for_longer_than_it_should() -> None:
    root = Answer(0, WaitCause.RUNNING, 1, since=0.0, until=60.0, overdue=True, node="ash")
    assert behind(root, 60.0).starts is None
    assert behind(Answer(0, WaitCause.RUNNING, 1, since=0.0), 60.0).starts is None
    other_clock = Answer(0, WaitCause.RUNNING, 1, since=40.0, until=100.5, overdue=True, node="ash")
    assert behind(other_clock, 60.0).starts is None, "the node knows when it began, and its clock may be ahead"


def test_on_one_node_neither() -> None:
    play = Play("z:\na: z\nb: a\nc:\nd: a c", cores=2)
    play.now = 10.0
    play.end("z")
    play.now = 25.0  # a should have ended at 20
    answer = play.why("b")
    assert answer.starts is None and answer.root is not None and answer.root.overdue
    assert "any moment" not in play.said("b")
    assert "already longer than tasks of its category take on average" in play.said("b")
    assert play.why("d").starts is None, "whichever ancestor the chain goes to"


def test_the_chain_goes_to_what_has_run_for_the_shorter_time() -> None:
    play = Play("z:\na: z\nb: z\nc: a b", cores=2)
    play.now = 10.0
    play.end("z")
    play.since[play.number("b")] = 14.0
    play.now = 15.0
    assert play.chain("c") == ["b"] and play.why("c").starts == pytest.approx(24.0)


def test_what_should_have_ended_ends_now_at_the_earliest() -> None:
    play = Play("z:\na: z\nb: z\nc: a\nend: c b", cores=3)
    play.now = 10.0
    play.end("z")
    play.now = 25.0
    play.since[play.number("b")] = 22.0  # until 32; a should have ended at 20, and c takes ten seconds
    assert play.chain("end") == ["c", "a"]


def test_an_ancestor_that_is_late_counts_though_the_chain_goes_elsewhere() -> None:
    play = Play("z:\na: z\nb: z\nend: b a", cores=2)
    play.now = 10.0
    play.end("z")
    play.now = 25.0
    play.since[play.number("b")] = 22.0
    assert play.chain("end") == ["b"] and play.why("end").starts is None


def test_a_group_takes_no_time() -> None:
    play = Play("y:\nz:\n(all): z\nend: all")
    play.now = 10.0
    play.end("y")
    assert play.why("end").starts == pytest.approx(20.0)


def test_of_holders_whose_end_is_not_known_the_largest_is_named_first() -> None:
    case = BrokerCase(node(cores=4), [lane(cores=1), lane(cores=3)], [0, 1, 0])
    case.ready(0, 1, 2)
    short = explain_held(case.broker, 2, 0.0).shortage
    assert short is not None and [holder.task for holder in short.holders] == [1, 0]


def test_a_holder_that_is_late_is_explained() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(0, 1, 2, 3)
    case.end(0, duration=10.0)
    answer = explain_held(case.broker, 3, 15.0, since={1: 0.0, 2: 9.0})
    assert answer.shortage is not None
    assert [(each.task, each.overdue) for each in answer.shortage.holders] == [(2, False), (1, True)]
    late = "already longer than tasks of its category take on average"
    assert f"held by 't2' (1, ends in about 4 s), 't1' (1, {late})" in paragraph(answer, plain(15.0))


def test_a_queued_task_is_not_promised_what_an_overdue_one_holds() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(0, 1, 2, 3, 4)
    case.now = 10.0
    case.end(0, duration=10.0)  # 1 has run for as long, 2 begins
    case.now = 15.0
    since = {1: 0.0, 2: 10.0}
    answer = explain_held(case.broker, 3, 15.0, since=since)
    assert answer.starts == 20.0
    case.now = 25.0
    assert explain_held(case.broker, 3, 25.0, since=since).starts is None


def test_whether_a_task_is_overdue_is_found_out_by_one_clock() -> None:
    """Who asks has looked at the clock before the run did."""
    case = BrokerCase(node(cores=1))
    case.ready(0, 1, 2)
    case.end(0, duration=1.0)

    def told(at: float, heard: float) -> str:
        return paragraph(explain_held(case.broker, 1, at, since={1: 0.0}), plain(heard))

    assert "already longer" in told(1.5, 0.9)
    assert "should end any moment" in told(0.99, 0.99)
    short = BrokerCase(node(cores=1))
    short.ready(0, 1)
    short.end(0, duration=0.01)
    for at, is_late in ((0.001, False), (0.05, False), (1.0, True)):
        said = paragraph(explain_held(short.broker, 1, at, since={1: 0.0}), plain(at))
        assert ("already longer" in said) is is_late, "who runs for a moment longer is not called late"


def plain(now: float) -> SentenceWriter:
    return SentenceWriter(lambda task: f"t{task}", lambda moment: f"{moment:g}", lambda s: f"{s:g} s", now)


def test_in_a_stopping_run_what_needs_others_will_not_start() -> None:
    play = Play("z:\na: z\nb: a\nc: b", stopping="received SIGTERM")
    play.now = 10.0
    play.end("z")
    play.tell(DrainRequested())
    answer = play.why("c")
    assert (answer.cause, answer.starts, play.chain("c")) == (WaitCause.STOPPING, None, ["b", "a"])
    assert play.said("c") == (
        "'c' will not start: received SIGTERM; it depends on the task 'b', which depends on 'a';"
        " 'a' has been running since 10 (0 s), attempt 1, and should end in about 10 s."
    )


def test_in_a_stopping_run_no_attempt_follows_one_that_failed() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=2)])
    case.ready(0)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.drain()
    answer = explain_held(case.broker, 0, case.now)
    assert (answer.cause, answer.starts, answer.until) == (WaitCause.STOPPING, None, None)


def test_a_fan_out_that_has_not_begun_is_reckoned_with_all_that_the_node_can_hold() -> None:
    rows = "\n".join(f"p{at}: y" for at in range(80))
    needs = " ".join(f"p{at}" for at in range(80))
    play = Play(f"z:\ny: z\n{rows}\nend: {needs}", cores=8)
    play.now = 10.0
    play.end("z")
    assert play.why("end").starts == pytest.approx(120.0), "y until 20, then 80 of 10 s, 8 at a time"


def test_a_fan_out_whose_category_may_not_run_has_no_start() -> None:
    lanes = [lane(), Lane(Resources.parse({"cores": 1}), cap="held")]
    play = Play("z:\ny: z\np: y\nend: p", cores=8, lanes=lanes, lane_of=[0, 0, 1, 0])
    play.now = 10.0
    play.end("z")
    play.broker.lanes[1].mean_duration = 5.0
    assert play.why("end").starts == pytest.approx(25.0)
    play.broker.handle(play.now, CapsChanged({"held": 0}))
    assert play.why("end").starts is None


def test_the_root_starts_when_those_before_it_are_done() -> None:
    play = Play("z:\na:\nb:\nc: b")
    play.now = 10.0
    play.end("z")  # a runs until 20, b until 30
    assert play.why("b").starts == pytest.approx(20.0)
    assert play.why("c").starts == pytest.approx(30.0)


def test_a_task_of_an_unknown_kind_before_it_leaves_the_start_open() -> None:
    case = BrokerCase(node(cores=1), [lane(), Lane(Resources.parse({"cores": 1}), 1)], [0, 0, 1, 0])
    case.ready(0, 1, 2, 3)
    case.end(0, duration=10.0)
    assert explain_held(case.broker, 2, 0.0, since={1: 0.0}).starts == 10.0
    assert explain_held(case.broker, 3, 0.0, since={1: 0.0}).starts is None


def test_what_is_seconds_away_is_not_any_moment() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1, 2)
    case.end(0, duration=2.0)
    text = paragraph(explain_held(case.broker, 2, 0.0, since={1: 0.0}), plain(0.0))
    assert text.endswith("'t2' is expected to start at about 2 (in 2 s).")
    assert paragraph(Answer(0, WaitCause.TURN, starts=1.01), plain(1.0)).endswith("'t0' should start any moment.")


# ---- bundles ---------------------------------------------------------------------------------------------------------


def bundle_of_ten() -> BrokerCase:
    case = BrokerCase(node(cores=1), [lane(bundled=True, cores=1)])
    case.broker.lanes[0].mean_duration = 0.004
    case.ready(*range(40))
    assert list(case.broker.running)[:3] == [0, 1, 2]
    return case


def test_of_a_bundle_only_the_first_one_runs() -> None:
    case = bundle_of_ten()
    assert [explain_held(case.broker, task, 1.0).cause for task in (0, 1, 2)] == [
        WaitCause.RUNNING,
        WaitCause.BUNDLED,
        WaitCause.BUNDLED,
    ]
    first = explain_held(case.broker, 0, 1.0, since={0: 1.0})
    assert first.until == pytest.approx(1.004)
    third = explain_held(case.broker, 2, 1.0, since={0: 1.0})
    assert third.starts == pytest.approx(1.008)
    assert "is bundled with other short tasks and runs after them" in paragraph(third, plain(1.0))


def test_a_bundle_holds_its_part_until_the_last_of_it_has_ended() -> None:
    case = bundle_of_ten()
    size = len(case.broker.running)
    last = 39
    assert size > 1 and last not in case.broker.running
    short = explain_held(case.broker, last, 1.0, since={0: 1.0}).shortage
    assert short is not None and short.held_by == 1
    assert short.holders[0].until == pytest.approx(1.0 + 0.004 * size)
