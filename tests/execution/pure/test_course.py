"""The course of an attempt: few points whatever its length, and the same whether it is written in C or in Python."""

import pytest

from shoal.execution.processes.usage_series import MOST_POINTS, UsagePoint, UsageSeries, pack, unpack


def course_of(seconds: float, every: float) -> UsageSeries:
    found = UsageSeries()
    for number in range(1, round(seconds / every)):
        age = number * every
        if found.is_due(age, number << 20):
            found.add(age, 0.5 * age, number << 10, number << 11)
    return found


def test_points_come_back_as_they_were_written() -> None:
    points = [UsagePoint(0.25, 5 << 20, 0.12, 3 << 10, 0), UsagePoint(3.5, 1 << 40, 2.0, 1 << 30, 7 << 10)]
    assert unpack(pack(points)) == points


def test_what_is_too_large_or_cut_off_is_no_trouble() -> None:
    data = pack([UsagePoint(1e9, 1 << 60, -1.0, 1 << 60, 0)])
    assert unpack(data + b"xyz") == [UsagePoint((2**32 - 1) / 1000, (2**32 - 1) << 10, 0.0, (2**32 - 1) << 10, 0)]
    assert unpack(b"") == []


def test_an_attempt_of_less_than_a_second_has_none() -> None:
    assert course_of(0.9, 0.02).end(0.9, 0.1, 0, 0) == b""
    assert UsageSeries().end(5.0, 0.1, 0, 0) == b""


@pytest.mark.parametrize("seconds", [1.0, 7.0, 30.0, 3000.0])
def test_there_are_few_points_however_long_it_took(seconds: float) -> None:
    points = unpack(course_of(seconds, 0.02).end(seconds, 1.0, 9 << 30, 0))
    assert 4 <= len(points) <= MOST_POINTS
    ages = [point.age for point in points]
    assert ages == sorted(ages) and ages[-1] == seconds
    assert max(point.memory for point in points) >= (round(seconds / 0.02) - 1) << 20, "the most is not lost"
    assert points[-1].read == 9 << 30


def test_what_was_used_so_far_never_becomes_less() -> None:
    points = [UsagePoint(1.0, 5 << 20, 2.0, 8 << 10, 0), UsagePoint(2.0, 1 << 20, 1.5, 3 << 10, 1 << 10)]
    assert unpack(pack(points)) == [points[0], UsagePoint(2.0, 1 << 20, 2.0, 8 << 10, 1 << 10)]


def test_a_peak_between_two_points_is_kept() -> None:
    course = UsageSeries()
    assert course.is_due(0.1, 1 << 20)
    course.add(0.1, 0.0, 0, 0)
    assert not course.is_due(0.15, 50 << 20)
    assert course.is_due(0.4, 2 << 20)
    course.add(0.4, 0.0, 0, 0)
    assert [point.memory >> 20 for point in unpack(course.end(1.5, 0.0, 0, 0))] == [1, 50, 50]
