"""Which of several implementations of a task is chosen, from what was learned of each."""

from __future__ import annotations

from collections import Counter

from shoal.core.policies.implementations import LOOK_AGAIN, Performance

PLACES = {"cpu": 4, "gpu": 1}


def taught(**seconds: float) -> Performance:
    """One that has timed each implementation once."""
    performance = Performance()
    for name, time in seconds.items():
        assert performance.choose("task", dict.fromkeys(seconds, 1)) == name
        performance.ended("task", name, time)
    return performance


def run_in_virtual_time(seconds: dict[str, float], places: dict[str, int], tasks: int) -> tuple[Counter[str], float]:
    """How many tasks each implementation got, and when the last one was done, if a few are chosen ahead of need."""
    performance = Performance()
    free = {name: [0.0] * number for name, number in places.items()}
    under_way: list[tuple[float, str]] = []
    counts: Counter[str] = Counter()
    now = 0.0
    for _ in range(tasks):
        while len(under_way) >= 8:
            under_way.sort()
            now, name = under_way.pop(0)
            performance.ended("task", name, seconds[name])
        name = performance.choose("task", places)
        counts[name] += 1
        free[name].sort()
        end = max(now, free[name][0]) + seconds[name]
        free[name][0] = end
        under_way.append((end, name))
    return counts, max(end for end, _ in under_way)


def test_every_implementation_is_tried_once_before_any_other_choice() -> None:
    performance = Performance()
    assert [performance.choose("task", {"a": 1, "b": 1, "c": 1}) for _ in range(3)] == ["a", "b", "c"]


def test_the_faster_one_is_chosen_while_nothing_waits_for_it() -> None:
    performance = taught(cpu=1.0, gpu=0.1)
    assert performance.choose("task", PLACES) == "gpu"


def test_one_with_a_long_queue_is_passed_over_for_a_slower_one_that_is_free() -> None:
    performance = taught(cpu=1.0, gpu=0.4)
    chosen = [performance.choose("task", PLACES) for _ in range(6)]
    assert chosen[:2] == ["gpu", "gpu"] and "cpu" in chosen[2:]


def test_one_that_was_never_timed_gets_no_more_than_its_places_hold() -> None:
    performance = Performance()
    performance.choose("task", {"a": 1, "b": 2})
    performance.choose("task", {"a": 1, "b": 2})
    performance.ended("task", "a", 0.001)
    chosen = Counter(performance.choose("task", {"a": 1, "b": 2}) for _ in range(40))
    assert chosen == {"a": 39, "b": 1}


def test_what_was_lost_no_longer_counts_as_under_way() -> None:
    performance = taught(cpu=1.0, gpu=0.9)
    assert performance.choose("task", {"cpu": 1, "gpu": 1}) == "gpu"
    performance.lost("task", "gpu")
    assert performance.of("task", "gpu").under_way == 0
    assert performance.choose("task", {"cpu": 1, "gpu": 1}) == "gpu"


def test_one_that_becomes_slow_is_left_and_one_that_becomes_fast_is_found_again() -> None:
    performance = taught(a=0.1, b=0.5)
    for _ in range(12):
        name = performance.choose("task", {"a": 1, "b": 1})
        performance.ended("task", name, 2.0 if name == "a" else 0.5)
    assert performance.choose("task", {"a": 1, "b": 1}) == "b"
    performance.ended("task", "b", 0.5)
    names = []
    for _ in range(5 * LOOK_AGAIN + 10):
        names.append(performance.choose("task", {"a": 1, "b": 1}))
        performance.ended("task", names[-1], 0.01 if names[-1] == "a" else 0.5)
    assert names[:10] == ["b"] * 10 and names[-1] == "a"


def test_tasks_are_learned_apart() -> None:
    performance = taught(a=0.1, b=0.5)
    assert performance.choose("other", {"b": 1, "a": 1}) == "b"


def test_the_work_is_divided_as_the_speeds_are() -> None:
    counts, took = run_in_virtual_time({"cpu": 1.0, "gpu": 0.25}, {"cpu": 4, "gpu": 1}, 400)
    assert 150 < counts["gpu"] < 250
    assert took < 1.25 * 400 / 8  # both together do eight tasks a second at best
