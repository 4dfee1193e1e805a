"""What throttles decided: the last decision of each curve, and no more points than can be drawn."""

from __future__ import annotations

from itertools import pairwise

from shoal.ledger.records import ThrottleDecided
from shoal.ledger.views.throttle import FEWEST_POINTS, MOST_POINTS, ThrottleDecisions
from shoal.ui.report.data import throttle_data
from support.views import BEGAN, ended, planned, started, view_of


def decided(at: int, node: str = "", category: str = "a", state: str = "holding") -> ThrottleDecided:
    return ThrottleDecided(BEGAN + at, node, category, at, at, 5, state, f"disk {at}", 0.5, 2.0, f"at {at}")


def times(found: ThrottleDecisions) -> list[list[float]]:
    return [[point.time - BEGAN for point in curve.points()] for curve in found.curves()]


def test_a_few_decisions_are_all_kept() -> None:
    found = ThrottleDecisions()
    assert not found
    for at in range(MOST_POINTS):
        found.add(decided(at))
    assert found and times(found) == [list(range(MOST_POINTS))]


def test_of_many_an_even_choice_is_kept_and_the_last() -> None:
    for many in (MOST_POINTS + 1, 5000, 5001, 123_456):
        found = ThrottleDecisions()
        for at in range(many):
            found.add(decided(at))
        (kept,) = times(found)
        assert MOST_POINTS / 2 <= len(kept) <= MOST_POINTS + 1
        assert (kept[0], kept[-1]) == (0, many - 1)
        assert len({late - early for early, late in pairwise(kept[:-1])}) == 1
        assert found.curves()[0].decided == many


def test_many_curves_have_fewer_points_each_and_a_few_at_least() -> None:
    found, curves = ThrottleDecisions(), 2000
    for at in range(100):
        for curve in range(curves):
            found.add(decided(at, node=f"n{curve}"))
    sizes = [len(kept) for kept in times(found)]
    assert min(sizes) >= FEWEST_POINTS / 2 and max(sizes) <= FEWEST_POINTS + 1
    assert [record.time for record in found] == [BEGAN + 99] * curves


def test_each_curve_is_shown_with_its_last_decision() -> None:
    late = [decided(at, category="b") for at in range(3000)]
    view = view_of(started(1), planned("a"), ended(0, 0.0, 1.0), decided(1), *late, decided(2, state="growing"))
    first, second = throttle_data(view)
    assert (first["category"], first["decided"], first["dominant"]) == ("a", 2, "disk 2")
    assert first["points"] == [[at, at, at, 5, 0.5, 2, f"at {at}"] for at in (1, 2)]
    assert (second["category"], second["decided"], second["dominant"]) == ("b", 3000, "disk 2999")
    assert second["points"][-1][-1] == "at 2999"
    assert [(record.category, record.reason) for record in view.throttle] == [("a", "at 2"), ("b", "at 2999")]
