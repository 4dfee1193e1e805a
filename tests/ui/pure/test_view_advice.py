"""Advice is given only if it is true: each of these was once said and was false, or was left out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.ledger.records import CategoriesDeclared, Record, ThrottleDecided
from shoal.ledger.views.throttle import listed
from shoal.ui.report.data import run_data
from support.views import BEGAN, GIB, ended, linked, over, planned, started, view_of


def sentences(*records: Record) -> str:
    data = run_data(view_of(*records), workflow="flow.py")
    return " ".join([*data["summary"], *data["advice"]])


def declared(category: str, **amounts: int) -> CategoriesDeclared:
    return CategoriesDeclared([category], [sorted(amounts.items())])


def beside_a_wide_one() -> list[Record]:
    """On two cores: a task of 10 s, and one of two cores that is ready from the beginning on and has to wait for it."""
    hog = ended(2, 0.0, 1.0, "exhausted", memory=GIB // 8, limit=GIB // 10)
    head: list[Record] = [started(3), declared("hog", memory=GIB // 10), declared("wide", cores=20_000)]
    links = linked({0: [-1], 1: [-1], 2: [-1]})
    return [*head, planned(["long", "wide", "hog"]), links, hog, ended(0, 0.0, 10.0), ended(1, 10.0, 11.0)]


def test_cores_that_wait_for_a_task_of_several_are_not_blamed_on_memory() -> None:
    text = sentences(*beside_a_wide_one(), over(11.0, "failed"))
    assert "cores were idle while tasks were ready: each task of wide needs 2 cores and waits" in text
    assert "not used" not in text and "memory:" not in text


def large_ones(memory: int) -> list[Record]:
    """On two cores and 8 GiB, tasks that run one after another, as if there were not memory for two of them."""
    ends = [ended(task, 2.0 * task, 2.0 * task + 2.0, memory=GIB // 8, limit=memory) for task in range(4)]
    links = linked({task: [-1] for task in range(4)})
    return [started(4), declared("large", memory=memory), planned(["large"] * 4), links, *ends, over(8.0)]


def test_memory_is_the_reason_if_tasks_are_given_more_than_there_is_for_all_cores() -> None:
    text = sentences(*large_ones(5 * GIB))
    assert "The limit may have been memory: a task of large requests up to 5 GiB of 8 GiB, and 98 % of" in text
    assert "the limit was something other than cores" in sentences(*large_ones(GIB))


@pytest.mark.parametrize(("memory", "scales"), [(GIB, True), (3 * GIB, False), (0, True)])
def test_more_cores_are_no_advice_where_memory_would_not_suffice(memory: int, scales: bool) -> None:
    """Tasks that declare none are given their share of it, which is half of it on two cores."""
    limit = memory or 4 * GIB
    ends = [ended(task, task // 2, task // 2 + 1.0, memory=limit, limit=limit) for task in range(12)]
    asks = declared("a", memory=memory) if memory else declared("a")
    text = sentences(started(12), asks, planned(["a"] * 12), *ends, over(6.0))
    assert ("it still scales" in text) == scales


def test_more_cores_are_no_advice_where_cores_do_not_explain_the_time() -> None:
    """One after another, on two cores: it was not for want of cores."""
    ends = [ended(task, task, task + 1.0) for task in range(12)]
    assert "it still scales" not in sentences(started(12), planned(["a"] * 12), *ends, over(12.0))


def with_a_tail(begin: float) -> list[Record]:
    """On four cores: tasks of a second until then, and from then on one of ten."""
    count = 3 * 5 if not begin else 4 * int(begin)
    together = 4 if begin else 3
    ends = [ended(task, task // together, task // together + 1.0) for task in range(count)]
    links = linked({task: [-1] for task in range(count + 1)})
    head: list[Record] = [started(count + 1, cores=4.0), planned(["short"] * count + ["long"]), links]
    return [*head, *ends, ended(count, begin, begin + 10.0), over(begin + 10.0)]


def test_another_order_is_advised_only_if_it_could_have_helped() -> None:
    assert "--order critical" in sentences(*with_a_tail(5.0))
    assert "--order critical" not in sentences(*with_a_tail(0.0)), "it began at once"
    # Without links every task waits from the beginning on.
    assert "--order critical" in sentences(*(record for at, record in enumerate(with_a_tail(5.0)) if at != 2))


def equal_ones(outcomes: Sequence[str]) -> list[Record]:
    """Categories of one task each, all of two seconds, one after another on one core."""
    names = [f"c{number:02}" for number in range(len(outcomes))]
    ends = [
        ended(task, 2.0 * task, 2.0 * task + 2.0, outcome, message="exit status 1" if outcome != "ok" else "")
        for task, outcome in enumerate(outcomes)
    ]
    how = "ok" if set(outcomes) == {"ok"} else "failed"
    return [started(len(names), cores=1.0), planned(names), *ends, over(2.0 * len(names), how)]


def test_no_category_is_said_to_have_most_of_the_work_if_all_are_equal() -> None:
    text = sentences(*equal_ones(["failed"] * 5 + ["ok"] * 10))
    assert "There are 15 categories, none with more than 6.7 % of the core time." in text
    assert "Most of the work" not in text and " 0 tasks" not in text
    assert "5 attempts of c00, c01, c02 and 2 more lost 10 s: exit status 1." in text


def test_a_category_with_much_of_the_work_and_no_success_is_told_by_its_attempts() -> None:
    assert "Most of the work was in c00: 1 failed attempt, 100 % of the core" in sentences(*equal_ones(["failed"]))
    assert "The largest share of the work was in c00: 1 task of 2 s on average, 33 %" in sentences(
        *equal_ones(["ok"] * 3)
    )


def test_no_category_is_singled_out_if_others_are_as_worth_the_work() -> None:
    text = sentences(*equal_ones(["ok"] * 4))
    assert "no other category" not in text
    assert "Had every task of c00 been twice as fast" in text and "; the same holds for c01, c02 and 1 more." in text


def test_a_category_is_the_most_worthwhile_only_of_those_that_were_looked_at() -> None:
    kinds = ["long", *(f"c{number}" for number in range(8))]
    ends = [ended(0, 0.0, 10.0), *(ended(task, 9.0 + task, 10.0 + task) for task in range(1, 9))]
    text = sentences(started(9, cores=1.0), planned(kinds), *ends, over(18.0))
    assert "the most of the 6 largest categories." in text
    text = sentences(started(3, cores=1.0), planned(kinds[:3]), *ends[:3], over(12.0))
    assert "no other category would gain as much." in text


def test_lists_say_how_many_they_leave_out() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b"], 1200), listed([])] == [
        "a",
        "a and b",
        "a, b and 1,200 more",
        "",
    ]


def throttled(cap: int, running: int, waiting: int) -> ThrottleDecided:
    return ThrottleDecided(BEGAN + 0.5, "", "a", cap, running, waiting, "holding", "cpu", 0.9, 1.0, "the disk is busy")


def one_by_one(decision: ThrottleDecided) -> list[Record]:
    """On two cores: four tasks that need nothing, one after another."""
    ends = [ended(task, 2.0 * task, 2.0 * task + 2.0) for task in range(4)]
    return [started(4), planned(["a"] * 4), linked({task: [-1] for task in range(4)}), decision, *ends, over(8.0)]


def test_the_throttle_is_blamed_only_if_it_kept_tasks_waiting() -> None:
    text = sentences(*one_by_one(throttled(1, 1, 3)))
    assert "the throttle limited a to 1 at a time (the disk is busy)" in text
    for decision in (throttled(4, 1, 3), throttled(1, 1, 0), throttled(-1, 1, 3)):
        assert "throttle limited" not in sentences(*one_by_one(decision)), decision


def test_cores_that_other_programs_use_are_not_blamed_on_the_throttle() -> None:
    """Three tasks at a time on two cores have a fifth of a core each: others have the rest."""
    ends = [ended(task, 4.0 * (task // 3), 4.0 * (task // 3) + 4.0, cpu=0.8) for task in range(9)]
    head: list[Record] = [started(9), planned(["a"] * 9), linked({task: [-1] for task in range(9)})]
    text = sentences(*head, throttled(3, 3, 6), *ends, over(12.0))
    assert "For 70 % of the core time tasks did not use their allocated cores: other programs used" in text
    assert "throttle" not in text and "no task was ready" not in text and "while tasks were ready" not in text
