"""Why a task is not running, in a sentence a person can act on."""

from __future__ import annotations

from shoal.broker.explain import explain
from shoal.policy.retry import Outcome
from support.case import BrokerCase, lane, node


def test_a_task_the_broker_does_not_have_is_over_or_not_yet_ready() -> None:
    assert "not with this node's broker" in explain(BrokerCase(node(cores=1)).broker, 3)


def test_a_running_task_is_told_with_its_attempt() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    assert explain(case.broker, 0) == "it is running (attempt 1)"


def test_a_cancelled_task_is_being_ended() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    case.cancel(0)
    assert "cancelled" in explain(case.broker, 0)


def test_a_resting_task_is_told_with_the_time_of_its_next_attempt() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=2)])
    case.ready(0)
    case.now = 10.0
    case.end(0, outcome=Outcome.FAILED)
    case.end(0, outcome=Outcome.FAILED)
    assert explain(case.broker, 0) == "attempt 2 failed; the next one starts at 10.5"


def test_a_task_that_waits_for_a_resource_is_told_how_much_is_free() -> None:
    case = BrokerCase(node(cores=8, memory="4G"), [lane(memory="3G", cores=1)])
    case.ready(0, 1)
    assert explain(case.broker, 1) == ("it is ready and waits for memory: it needs 3 GiB, 1 GiB of 4 GiB are free")


def test_a_node_that_shrank_shows_nothing_free_rather_than_less_than_nothing() -> None:
    case = BrokerCase(node(cores=2))
    case.ready(0, 1, 2)
    case.resize(node(cores=1))
    assert "0 of 1 are free" in explain(case.broker, 2)


def test_a_drain_is_the_reason_while_it_lasts() -> None:
    case = BrokerCase(node(cores=2))
    case.drain()
    case.ready(0)
    assert "the run is stopping" in explain(case.broker, 0)


def test_a_task_kept_back_for_larger_ones_is_told_so() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=2)], [0, 0, 1] + [0] * 50, patience=2)
    case.ready(*range(20))
    while len(case.running) == 2:
        case.end(case.running[0])
    assert explain(case.broker, 19) == "it is ready, but larger tasks (cores 2) were passed over too often and go first"
