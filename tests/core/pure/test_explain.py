"""Explanations of tasks in a scheduler: constructed situations with known answers, and their sentences."""

from __future__ import annotations

from array import array
from random import Random

from shoal.core.explain.answer import Answer, WaitCause
from shoal.core.explain.scheduler_source import among_others, explain_held, groups_of
from shoal.core.explain.sentences import SentenceWriter, paragraph
from shoal.core.peer_messages import PeerMessageReceived, ReadyTask, Roster, TasksPlaced, TaskTransfer
from shoal.core.peer_scheduler import PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import CapsChanged, DrainRequested
from support.case import BrokerCase, lane, node


def why(case: BrokerCase, task: int, **known: object) -> Answer:
    return explain_held(case.broker, task, case.now, **known)  # type: ignore[arg-type]


def said(answer: Answer, now: float = 0.0) -> str:
    return paragraph(
        answer, SentenceWriter(lambda task: f"t{task}", lambda moment: f"{moment:g}", lambda s: f"{s:g} s", now)
    )


def test_a_task_the_scheduler_does_not_have_is_on_its_way() -> None:
    assert why(BrokerCase(node(cores=1)), 3).cause is WaitCause.ARRIVING


def test_a_running_task_is_explained_with_its_attempt() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    answer = why(case, 0)
    assert (answer.cause, answer.attempt, answer.until) == (WaitCause.RUNNING, 1, None)
    assert said(answer) == "'t0' is running, attempt 1."


def test_a_running_task_of_a_kind_that_is_known_is_explained_with_its_end() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    case.now = 4.0
    case.end(0, duration=4.0)
    case.now = 5.0
    answer = why(case, 1, since={1: 4.0})
    assert (answer.since, answer.until) == (4.0, 8.0)
    assert said(answer, 5.0) == "'t1' has been running since 4 (1 s), attempt 1, and should end in about 3 s."


def test_a_task_that_runs_for_longer_than_its_kind_is_explained() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    case.end(0, duration=1.0)
    case.now = 9.0
    assert "already longer than tasks of its category take on average" in said(why(case, 1, since={1: 0.0}), 9.0)


def test_a_cancelled_task_is_being_ended() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    case.cancel(0)
    answer = why(case, 0)
    assert answer.cause is WaitCause.ENDING
    assert said(answer) == "'t0' was cancelled and is being terminated."


def test_a_resting_task_is_explained_with_the_time_of_its_next_attempt() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=2)])
    case.ready(0)
    case.now = 10.0
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    answer = why(case, 0)
    assert (answer.cause, answer.attempt, answer.until, answer.starts) == (WaitCause.RETRY, 2, 10.5, 10.5)
    assert said(answer, 10.0) == "'t0' waits for a retry: attempt 2 failed; the next attempt is due in 0.5 s."


def test_a_task_that_waits_for_a_resource_shows_what_is_free_and_who_holds_it() -> None:
    case = BrokerCase(node(cores=8, memory="4G"), [lane(memory="3G", cores=1)])
    case.ready(0, 1)
    answer = why(case, 1)
    short = answer.shortage
    assert answer.cause is WaitCause.RESOURCES and short is not None
    assert (short.resource, short.asked, short.free, short.total) == ("memory", 3 << 30, 1 << 30, 4 << 30)
    assert [(holder.task, holder.amount) for holder in short.holders] == [(0, 3 << 30)]
    assert said(answer) == (
        "'t1' is queued and waits for memory: it asks for 3 GiB, and 1 GiB of 4 GiB is free; held by 't0' (3 GiB)."
    )


def test_the_resource_that_lacks_most_is_named() -> None:
    case = BrokerCase(node(cores=2, memory="4G"), [lane(cores=2, memory="1G"), lane(cores=1, memory="4G")], [0, 1])
    case.ready(0, 1)
    short = why(case, 1).shortage
    assert short is not None and short.resource == "cores", "no core is free, of the memory three parts of four"


def test_holders_that_end_first_are_named_first() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(0, 1, 2, 3)
    case.end(0, duration=10.0)
    short = why(case, 3, since={1: 0.0, 2: 5.0}).shortage
    assert short is not None
    assert [(holder.task, holder.until) for holder in short.holders] == [(1, 10.0), (2, 15.0)]


def test_many_holders_are_counted_and_a_few_are_named() -> None:
    case = BrokerCase(node(cores=50))
    case.ready(*range(51))
    answer = why(case, 50)
    assert answer.shortage is not None
    assert (answer.shortage.held_by, len(answer.shortage.holders)) == (50, 10)
    assert "and 47 more" in said(answer)


def test_a_gpu_that_another_task_has_is_waited_for() -> None:
    case = BrokerCase(node(cores=4, gpus=1), [lane(cores=1, gpus=1)])
    case.ready(0, 1)
    assert "waits for gpus: it asks for 1, and 0 of 1 are free; held by 't0' (1)" in said(why(case, 1))


def test_a_node_that_shrank_shows_nothing_free_rather_than_less_than_nothing() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(0, 1, 2)
    case.resize(node(cores=1))
    short = why(case, 2).shortage
    assert short is not None and (short.free, short.total) == (0, FRACTION)


def test_a_drain_is_the_reason_while_it_lasts() -> None:
    case = BrokerCase(node(cores=2))
    case.drain()
    case.ready(0)
    answer = why(case, 0)
    assert answer.cause is WaitCause.STOPPING
    assert said(answer) == "'t0' is ready and will not start: the run is stopping."


def test_a_drain_with_a_reason_is_explained_with_it() -> None:
    answer = Answer(0, WaitCause.STOPPING, detail="the disk is full")
    assert said(answer) == "'t0' is ready and will not start: the disk is full."


def test_after_a_drain_it_is_the_resource_again() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    case.drain()
    case.end_drain()
    assert why(case, 1).cause is WaitCause.RESOURCES


def test_a_task_kept_back_for_larger_ones_is_explained() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=2)], [0, 0, 1] + [0] * 50, patience=2)
    case.ready(*range(20))
    while len(case.running) == 2:
        case.end(case.running[0])
    answer = why(case, 19)
    assert (answer.cause, answer.larger, answer.first) == (WaitCause.LARGER_FIRST, "cores 2", 2)
    assert "the free room is reserved for larger tasks that waited too long, such as 't2' (cores 2)" in said(answer)


def capped(cores: int, caps: dict[str, int | None]) -> BrokerCase:
    """Tasks 0, 2, 4... are under the cap `even`, the others under `odd`."""
    lanes = [Lane(Resources.parse({"cores": 1}), cap=name) for name in ("even", "odd")]
    case = BrokerCase(node(cores=cores), lanes, [task % 2 for task in range(100)])
    case.tell(CapsChanged(caps))
    return case


def test_the_throttle_is_named_with_what_runs_under_it_and_its_reason() -> None:
    case = capped(8, {"even": 1})
    case.ready(0, 2)
    answer = why(case, 2, reasons={"even": "the disk is busy"})
    assert answer.cause is WaitCause.THROTTLE and answer.cap is not None
    assert (answer.cap.category, answer.cap.most, answer.cap.running) == ("even", 1, 1)
    expected = "'t2' is queued and is held back by the throttle while 1 of its category runs: the disk is busy."
    assert said(answer) == expected


def test_a_throttle_without_a_reason_is_shown_by_its_number() -> None:
    case = capped(8, {"even": 2})
    case.ready(0, 2, 4)
    assert "at most 2 of them may run at the same time" in said(why(case, 4))


def test_a_throttle_of_another_category_is_no_reason() -> None:
    case = capped(1, {"even": 1, "odd": 5})
    case.ready(0, 1)
    assert why(case, 1).cause is WaitCause.RESOURCES


def test_a_throttle_that_was_lifted_is_no_reason() -> None:
    case = capped(8, {"even": 1})
    case.ready(0, 2)
    case.tell(CapsChanged({"even": None}))
    assert why(case, 2).cause is WaitCause.RUNNING


def test_while_what_becomes_ready_is_being_found_out_it_is_explained() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    case.broker.awaiting_ready = True
    assert why(case, 1).cause is WaitCause.TURN


def test_the_place_in_the_queue_is_that_of_the_order() -> None:
    for order, ahead in (("fifo", [0, 1, 2]), ("lifo", [2, 1, 0])):
        case = BrokerCase(node(cores=1), order=order)
        case.ready(9)
        case.ready(0)
        case.ready(1)
        case.ready(2)
        assert [why(case, task).ahead for task in range(3)] == ahead, order


def test_the_order_by_rank_puts_the_longest_path_first() -> None:
    case = BrokerCase(node(cores=1), order="hrf", rank=[0, 5, 3, 9])
    case.ready(3)
    case.ready(0, 1, 2)
    assert [why(case, task).ahead for task in (0, 1, 2)] == [2, 0, 1]
    answer = why(case, 0)
    answer.order = "hrf"
    assert "2 of 3 queued tasks are ahead of it (order 'hrf')" in said(answer)


def test_asking_changes_nothing() -> None:
    case = BrokerCase(node(cores=1), order="lifo")
    case.ready(*range(5))
    before = [*case.broker.queue.waiting()]
    why(case, 3)
    assert case.broker.queue.waiting() == before
    case.end(case.running[0])


def test_it_is_expected_to_start_when_those_before_it_are_done() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(*range(8))
    case.now = 10.0
    case.end(0, 1, duration=10.0)  # 2 and 3 run from now on
    since = {2: 10.0, 3: 10.0}
    assert [why(case, task, since=since).starts for task in (4, 5, 6, 7)] == [20.0, 20.0, 30.0, 30.0]
    assert said(why(case, 6, since=since), 10.0).endswith("'t6' is expected to start at about 30 (in 20 s).")


def test_nothing_is_expected_of_tasks_whose_kind_has_never_ended() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    assert why(case, 1).starts is None
    assert "expected" not in said(why(case, 1))


def test_a_long_queue_is_not_looked_through() -> None:
    case = BrokerCase(node(cores=1), lane_of=[0] * 30_000)
    case.ready(*range(25_000))
    answer = why(case, 20_000)
    assert (answer.ahead, answer.queued) == (None, 24_999)
    assert "; 24,999 tasks are queued." in said(answer)


def test_a_label_that_the_node_has_not_is_named() -> None:
    short_of_label = Answer(0, WaitCause.LABEL)
    case = BrokerCase(node(cores=1), [lane(cores=1)])
    case.ready(0, 1)
    short_of_label.shortage = why(case, 1).shortage
    assert short_of_label.shortage is not None
    short_of_label.shortage.resource = "site=omega"
    assert "needs a node with the label site=omega" in said(short_of_label)


# ---- among others ----------------------------------------------------------------------------------------------------


def member(cores: int = 1) -> PeerScheduler:
    columns = TaskColumns(array("i", [0] * 100))
    tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, cores, Random(0)), ())
    broker = Scheduler(node(cores=cores), columns, [lane(retries=1)], queue=tiers)
    return PeerScheduler(0, broker, Roster(range(3)), PeerOptions("mdl"))


def beside(one: PeerScheduler) -> Answer:
    """What it says of task 1."""
    return among_others(one, explain_held(one.broker, 1, 0.0))


def test_a_task_that_was_pushed_to_its_data_waits_beside_it() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0)]))
    one.handle(0.0, PeerMessageReceived(1, TaskTransfer(1, [ReadyTask(1)])))
    answer = beside(one)
    assert answer.cause is WaitCause.LOCALITY and answer.shortage is not None
    text = said(answer)
    assert "waits on the node that has its input files, for cores" in text and "other nodes may take it" in text


def test_a_task_that_anybody_may_have_waits_for_room() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0), ReadyTask(1)]))
    assert beside(one).cause is WaitCause.RESOURCES


def test_a_node_that_drains_is_no_matter_of_data() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0)]))
    one.handle(0.0, DrainRequested())
    one.handle(0.0, PeerMessageReceived(1, TaskTransfer(1, [ReadyTask(1)])))
    assert beside(one).cause is WaitCause.STOPPING


# ---- all of them -----------------------------------------------------------------------------------------------------


def test_what_waits_is_shown_by_groups_the_largest_first() -> None:
    case = capped(4, {"even": 1, "odd": None})
    case.ready(*range(20))
    case.end(1, outcome=AttemptOutcome.OK)
    groups = groups_of(case.broker, lambda task: why(case, task, foresees=False))
    found = [(group.cause, group.count) for group in groups]
    assert found == [(WaitCause.THROTTLE, 9), (WaitCause.RESOURCES, 6)]


def test_those_that_rest_are_shown_by_the_first_that_is_due() -> None:
    case = BrokerCase(node(cores=2), [lane(retries=3)])
    case.ready(0, 1)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.now = 0.1
    case.end(1, outcome=AttemptOutcome.FAILED)
    case.end(1, outcome=AttemptOutcome.FAILED)
    (group,) = groups_of(case.broker, lambda task: why(case, task))
    assert (group.cause, group.count, group.example.task) == (WaitCause.RETRY, 2, 0)
