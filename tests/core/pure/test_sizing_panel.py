"""Several resources sized side by side: ours, part by part, and Work Queue's, all at once."""

from __future__ import annotations

import pytest

from shoal.core.policies.sizing.adviser import NONE_TRIED, SIZED, Durations, ResourceSizer, SizeAdviser
from shoal.core.policies.sizing.undeclared import CoreNeed, LearnedCores, new_part, open_resources
from shoal.core.policies.sizing.work_queue import STEADY_TASKS, WorkQueueAdviser, first_allocation, labelled_category
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile

MB = 1 << 20
NODE = Resources.parse({"cores": 8, "memory": "8G", "disk": "80G"})


def cores_of(need: CoreNeed) -> float:
    return need.ask() / FRACTION


def test_a_task_is_reckoned_with_one_core_until_tasks_show_more() -> None:
    need = CoreNeed(8 * FRACTION)
    assert cores_of(need) == 1
    need.observe(0.1 * FRACTION, 5.0)
    assert cores_of(need) == 1
    for _ in range(20):
        need.observe(3.6 * FRACTION, 5.0)
    assert cores_of(need) == 4


def test_nine_tasks_of_ten_find_the_cores_they_use_and_one_wide_task_changes_nothing() -> None:
    need = CoreNeed(8 * FRACTION)
    for number in range(40):
        need.observe((6.0 if number % 20 == 10 else 0.9) * FRACTION, 5.0)
    assert cores_of(need) == 1
    for number in range(40):
        need.observe((6.0 if number % 4 == 0 else 0.9) * FRACTION, 5.0)
    assert cores_of(need) == 6


@pytest.mark.parametrize(("busy", "reckoned"), [(1.2, 1), (1.3, 2), (2.0, 2), (100.0, 8)])
def test_cores_are_whole_with_some_grace_and_at_most_those_of_the_node(busy: float, reckoned: int) -> None:
    need = CoreNeed(8 * FRACTION)
    need.observe(busy * FRACTION, 5.0)
    assert cores_of(need) == reckoned


def test_a_task_of_a_moment_says_nothing_of_cores() -> None:
    need = CoreNeed(8 * FRACTION)
    need.observe(7.0 * FRACTION, 0.01)
    assert cores_of(need) == 1
    assert need.learned() == LearnedCores()


def test_what_was_learned_of_cores_is_the_beginning_of_the_next_run_and_gives_way() -> None:
    need = CoreNeed(8 * FRACTION)
    for _ in range(1000):
        need.observe(4.0 * FRACTION, 5.0)
    again = CoreNeed(8 * FRACTION, learned=need.learned())
    assert cores_of(again) == 4
    for _ in range(300):
        again.observe(0.5 * FRACTION, 5.0)
    assert cores_of(again) == 1


def test_what_a_task_declares_is_not_sized_nor_what_the_node_has_not_got() -> None:
    assert open_resources(Profile(), NODE) == ["cores", "memory", "disk"]
    assert open_resources(Profile(cores_declared=True), NODE) == ["memory", "disk"]
    assert open_resources(Profile("", Resources.parse({"cores": 2, "memory": "1G"})), NODE) == ["disk"]
    assert open_resources(Profile("", Resources(), cores_declared=True), NODE) == ["memory", "disk"]
    assert open_resources(Profile(), Resources.parse({"cores": 8})) == ["cores"]


def panel_of(*names: str) -> SizeAdviser:
    return SizeAdviser(NODE, FRACTION, {name: new_part(name, NODE.get(name)) for name in names})


def test_disk_that_nobody_knows_of_holds_nothing_back() -> None:
    assert panel_of("disk").ask(NONE_TRIED) == (0, 0, NODE.get("disk") // 8)


def test_large_disks_are_learned_and_exhausted_ones_tried_with_more() -> None:
    panel = panel_of("disk")
    for _ in range(30):
        panel.observe((0, 0, 30_000 * MB), 5.0, NONE_TRIED, (0, 0, 10_240 * MB))
    size = panel.ask(NONE_TRIED)[2]
    assert 30_000 * MB <= size <= 41_000 * MB
    tried = ((), (), (size,))
    panel.observe((0, 0, 0), 5.0, NONE_TRIED, (0, 0, size), SIZED.index("disk"))
    assert panel.ask(tried)[2] > size
    assert not panel.hopeless(tried)
    assert panel.hopeless(((), (), (NODE.get("disk"),)))


def test_wide_tasks_leave_each_other_a_larger_share_of_memory() -> None:
    panel = panel_of("cores", "memory")
    for _ in range(30):
        panel.observe((FRACTION, 50 * MB, 0), 5.0, NONE_TRIED, (FRACTION, 1024 * MB, 0))
    assert panel.ask(NONE_TRIED) == (FRACTION, 1024 * MB, 0)
    for _ in range(60):
        panel.observe((4 * FRACTION, 50 * MB, 0), 5.0, NONE_TRIED, (FRACTION, 1024 * MB, 0))
    assert panel.ask(NONE_TRIED) == (4 * FRACTION, 4096 * MB, 0)


def test_a_smaller_node_bounds_every_size() -> None:
    panel = panel_of("cores", "memory", "disk")
    for _ in range(30):
        panel.observe((6 * FRACTION, 6000 * MB, 60_000 * MB), 5.0, NONE_TRIED, (FRACTION, MB, MB))
    panel.resize(Resources.parse({"cores": 2, "memory": "1G", "disk": "2G"}))
    assert panel.ask(NONE_TRIED) == (2 * FRACTION, 1024 * MB, 2048 * MB)
    panel.resize(Resources.parse({"cores": 2}))
    assert min(panel.ask(NONE_TRIED)) > 0, "a size of nothing would not be a size"
    panel.resize(NODE)
    assert panel.ask(NONE_TRIED)[0] == 6 * FRACTION


def test_durations_are_learned_with_their_largest() -> None:
    panel = panel_of("memory")
    for seconds in (2.0, 4.0, 3.0):
        panel.observe((0, MB, 0), seconds, NONE_TRIED, (0, MB, 0))
    assert panel.durations == Durations(3, 3.0, 4.0)


def test_work_queue_sizes_all_three_resources_by_its_own_arithmetic() -> None:
    labels = WorkQueueAdviser(NODE, SIZED, labelled_category())
    assert labels.ask(NONE_TRIED) == (8 * FRACTION, 8192 * MB, 81_920 * MB), "whole nodes at first"
    # The largest come first: a new maximum before the category is steady would make it begin anew.
    seen = [(3 - number % 3, 900 - 10 * number, 3300 - 40 * number, 10.0 + number) for number in range(60)]
    for cores, memory, disk, seconds in seen:
        labels.observe((cores * FRACTION, memory * MB, disk * MB), seconds, NONE_TRIED, labels.ask(NONE_TRIED))
    # Allocations are computed anew with every so many tasks; later ones only raise what was seen.
    counted = seen[: len(seen) // STEADY_TASKS * STEADY_TASKS]
    times = [row[3] for row in counted]
    for at, (width, unit) in enumerate(((1.0, FRACTION), (250.0, MB), (250.0, MB))):
        values = [float(row[at]) for row in counted]
        expected = first_allocation("max-throughput", values, times, max(values), width)
        assert expected is not None
        assert labels.ask(NONE_TRIED)[at] == expected * unit


def test_work_queue_retries_with_the_largest_seen_and_then_with_all() -> None:
    labels = WorkQueueAdviser(NODE, ("memory",), labelled_category())
    for number in range(60):
        labels.observe((0, (2000 if number % 10 == 0 else 300) * MB, 0), 10.0, NONE_TRIED, (0, 8192 * MB, 0))
    first = labels.ask(NONE_TRIED)[1]
    second = labels.ask(((), (first,), ()))[1]
    assert first < second == 2000 * MB
    assert labels.ask(((), (first, second), ()))[1] == 8192 * MB
    assert labels.hopeless(((), (first, second, 8192 * MB), ()))
    labels.resize(Resources.parse({"cores": 8, "memory": "1G"}))
    assert labels.ask(((), (first,), ()))[1] == 1024 * MB


def test_tasks_of_one_category_that_ask_for_different_cores_leave_each_other_room() -> None:
    """One task that asks for all cores must not have the others get all of the memory and disk."""
    node = Resources.parse({"cores": 2, "memory": "4G", "disk": "8G"})
    for order in ((1, 2), (2, 1)):
        shared: dict[str, ResourceSizer] = {
            name: new_part(name, node.get(name), "max-throughput", None) for name in ("memory", "disk")
        }
        panels = [SizeAdviser(node, cores * FRACTION, shared) for cores in order]
        for panel in panels:
            _, memory, disk = panel.ask(NONE_TRIED)
            assert (memory, disk) == (2 << 30, 4 << 30)
