"""Caps on concurrent tasks: in addition to the contract, never above it, and never a reason to kill a task."""

from __future__ import annotations

from shoal.core.explain.scheduler_source import explain_held
from shoal.core.policies.admission import Contract
from shoal.core.policies.sizing.adviser import NONE_TRIED, NOTHING
from shoal.core.resources import Resources
from shoal.core.scheduler import Lane
from shoal.core.scheduler_messages import CapsChanged, Kill, Start
from support.case import BrokerCase, lane, node


def capped(cores: int = 1) -> Lane:
    made = lane(cores=cores)
    made.cap = "a"
    return made


def test_no_more_tasks_run_than_the_cap_allows_although_there_is_room() -> None:
    case = BrokerCase(node(cores=8), [capped()])
    case.tell(CapsChanged({"a": 3}))
    case.ready(*range(10))
    assert len(case.running) == 3
    case.end(0)
    assert case.running == [1, 2, 3]


def test_no_more_run_than_the_contract_admits_however_high_the_cap() -> None:
    case = BrokerCase(node(cores=2), [capped()])
    case.tell(CapsChanged({"a": 100}))
    case.ready(*range(10))
    assert len(case.running) == 2


def test_lanes_under_one_cap_share_its_places() -> None:
    case = BrokerCase(node(cores=8), [capped(), capped(cores=2)], [0, 1] * 10)
    case.tell(CapsChanged({"a": 3}))
    case.ready(*range(10))
    assert case.running == [0, 1, 2]


def test_a_cap_that_falls_ends_nothing_and_starts_nothing_until_fewer_run() -> None:
    case = BrokerCase(node(cores=8), [capped()])
    case.tell(CapsChanged({"a": 4}))
    case.ready(*range(10))
    assert not any(isinstance(command, Kill) for command in case.tell(CapsChanged({"a": 2})))
    assert len(case.running) == 4
    case.end(0)
    case.end(1)
    assert case.running == [2, 3]
    case.end(2)
    assert case.running == [3, 4]


def test_a_cap_that_rises_or_goes_starts_what_waits_at_once() -> None:
    case = BrokerCase(node(cores=8), [capped()])
    case.tell(CapsChanged({"a": 1}))
    case.ready(*range(10))
    case.tell(CapsChanged({"a": 5}))
    assert len(case.running) == 5
    case.tell(CapsChanged({"a": None}))
    assert len(case.running) == 8


def test_nothing_is_given_up_for_a_cap_of_nothing() -> None:
    case = BrokerCase(node(cores=2), [capped()])
    case.tell(CapsChanged({"a": 0}))
    case.ready(0, 1, 2)
    assert case.running == [] and len(case.broker.state) == 3
    case.resize(node(cores=4))
    assert len(case.broker.state) == 3
    case.tell(CapsChanged({"a": 2}))
    assert case.running == [0, 1]


def test_no_room_is_kept_for_a_lane_that_the_throttle_holds_back() -> None:
    case = BrokerCase(node(cores=2), [lane(), capped(cores=2)], [1] + [0] * 100, patience=2)
    case.tell(CapsChanged({"a": 0}))
    case.ready(*range(50))
    for _ in range(20):
        case.end(case.running[0])
        assert len(case.running) == 2
    assert case.broker.lanes[1].passed_over == 0
    case.tell(CapsChanged({"a": 1}))
    for _ in range(10):
        if 0 not in case.running:
            case.end(case.running[0])
    assert case.running == [0], "now it is passed over, and its room is kept"


def test_a_wide_lane_is_not_starved_by_a_narrow_one_under_the_same_cap() -> None:
    case = BrokerCase(node(cores=3), [capped(), capped(cores=3)], [0, 0, 1] + [0] * 100, patience=3)
    case.tell(CapsChanged({"a": 2}))
    case.ready(*range(80))
    for _ in range(20):
        if 2 in case.running:
            break
        case.end(case.running[0])
    assert case.running == [2]


def test_a_bundle_is_one_place_and_gets_nothing_more_while_too_many_places_are_in_use() -> None:
    made = capped()
    made.bundled = made.refilled = True
    made.mean_duration = 0.001
    case = BrokerCase(node(cores=4), [made])
    case.tell(CapsChanged({"a": 2}))
    commands = case.ready(*range(400))
    starts = [command for command in commands if isinstance(command, Start)]
    assert len(starts) == 2 and all(len(start.tasks) > 4 for start in starts)
    first = starts[0].tasks
    case.tell(CapsChanged({"a": 1}))
    case.end(*first[:-1], duration=0.001)
    assert len(case.running) == 1 + len(starts[1].tasks), "nothing was added to the first place"
    case.end(first[-1], duration=0.001)
    assert len(case.running) == len(starts[1].tasks)
    case.end(*starts[1].tasks[:-1], duration=0.001)
    assert len(case.running) > 1, "the place that is left is filled again"


class Guess:
    """Says that a task uses two cores and some memory."""

    def ask(self, tried: object) -> tuple[int, ...]:
        return (20_000, 1 << 20, 0)

    def hopeless(self, tried: object) -> bool:
        return False

    def observe(self, *_: object) -> None:
        """Nothing to learn."""

    def resize(self, node: Resources) -> None:
        """All the same."""


def test_cores_without_a_declaration_do_not_limit_where_a_throttle_does_but_learned_memory_does() -> None:
    made = Lane(Resources(()), adviser=Guess(), cap="a", elastic=True)
    case = BrokerCase(node(cores=2, memory="5M"), [made])
    case.tell(CapsChanged({"a": 100}))
    case.ready(*range(20))
    assert len(case.running) == 5
    assert made.tried == NONE_TRIED and made.sizes != NOTHING


def test_the_contract_keeps_its_caps_when_the_node_changes() -> None:
    contract = Contract(node(cores=4), [node(cores=1)], ["a"])
    contract.set_cap("a", 2)
    taken = contract.take(0)
    contract.resize(node(cores=8))
    assert contract.cap_of(0) == (2, 1)
    contract.give_back(taken)
    assert contract.room(0) == 2 and contract.admits(0) == 8 and contract.places(0) == 2


def test_a_task_that_the_throttle_holds_back_is_explained_with_its_reason() -> None:
    case = BrokerCase(node(cores=8), [capped()])
    case.tell(CapsChanged({"a": 2}))
    case.ready(*range(5))
    reasons = {"a": "2 of category 'a' run together; a third was tried and brought nothing"}
    cap = explain_held(case.broker, 4, 0.0, reasons=reasons).cap
    assert cap is not None and (cap.most, cap.running, cap.reason) == (2, 2, reasons["a"])
