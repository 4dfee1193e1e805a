"""Our own sizer: cautious at first, close to the best later, never beyond what there is."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from shoal.core.policies.sizing.sizer import SIZER_MODES, Learned, Sizer, Sketch

NODE = 8192


def feed(sizer: Sizer, peaks: list[float]) -> int:
    """Runs tasks one after the other until each fits; returns how many attempts were exhausted."""
    exhausted = 0
    for peak in peaks:
        tried: list[float] = []
        while (size := sizer.ask(tried)) < peak:
            sizer.observe(size, 10.0, size, tuple(tried))
            tried.append(size)
            exhausted += 1
            assert len(tried) < 50
        sizer.observe(peak, 10.0, tried=tuple(tried), size=size)
    return exhausted


def test_a_category_nothing_is_known_of_begins_with_a_share_and_then_everything() -> None:
    sizer = Sizer(NODE)
    assert sizer.ask() == NODE // 4
    assert sizer.ask([NODE // 4]) == NODE
    assert sizer.describe().maximum == "na"


@pytest.mark.parametrize("places", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("hopeful", [False, True])
def test_as_many_unknown_tasks_fit_as_the_node_was_divided_among_whatever_its_size(places: int, hopeful: bool) -> None:
    megabyte = 1 << 20
    for size in (8 * megabyte * places, 79_033_368_575, 25_274_851_329):
        first = Sizer(size, unit=megabyte, places=places, hopeful=hopeful).ask()
        assert size // first >= (places if hopeful else min(places, 4)), f"{first} of {size}"


def test_equal_tasks_soon_get_little_more_than_they_need() -> None:
    sizer = Sizer(NODE)
    feed(sizer, [500.0] * 10)
    assert 500 <= sizer.ask() <= 600


def test_few_samples_leave_a_wider_margin_than_many() -> None:
    random = Random(1)
    peaks = [random.gauss(1000, 20) for _ in range(400)]
    few, many = Sizer(NODE, "min-waste"), Sizer(NODE, "min-waste")
    feed(few, peaks[:2])
    feed(many, peaks)
    assert few.ask() - max(peaks[:2]) > many.ask() - max(peaks)


def test_a_retry_gets_the_next_hump_and_not_the_whole_node() -> None:
    random = Random(2)
    sizer = Sizer(NODE)
    feed(sizer, [random.gauss(500, 30) if random.random() < 0.8 else random.gauss(2000, 60) for _ in range(400)])
    first = sizer.ask()
    assert 500 < first < 800
    assert 2000 < sizer.ask([first]) < 3000


def test_a_jump_of_the_peaks_is_noticed_within_some_tens_of_tasks() -> None:
    random = Random(3)
    sizer = Sizer(NODE)
    feed(sizer, [random.gauss(400, 20) for _ in range(1000)])
    feed(sizer, [random.gauss(1800, 40) for _ in range(40)])
    assert sizer.describe().changes >= 1
    assert sizer.ask() > 1800
    feed(sizer, [random.gauss(300, 20) for _ in range(60)])
    assert sizer.ask() < 500


def test_steady_peaks_raise_no_alarm() -> None:
    for family in range(3):
        random = Random(family)
        draws = [random.gauss(900, 90), random.expovariate(1 / 400), 200 * random.paretovariate(1.5)]
        sizer = Sizer(NODE)
        peaks = []
        for _ in range(3000):
            draws = [random.gauss(900, 90), random.expovariate(1 / 400), 200 * random.paretovariate(1.5)]
            peaks.append(min(8000.0, max(1.0, draws[family])))
        feed(sizer, peaks)
        assert sizer.describe().changes == 0


@pytest.mark.parametrize("mode", SIZER_MODES)
def test_no_mode_goes_beyond_node_or_explicit_maximum_or_below_the_minimum(mode: str) -> None:
    random = Random(4)
    sizer = Sizer(NODE, mode, explicit_max=3000, explicit_min=700)
    for _ in range(300):
        feed(sizer, [random.uniform(10, 3000)])
        assert 700 <= sizer.ask() <= 3000
        assert sizer.ask([sizer.ask()]) <= 3000
    assert sizer.describe().maximum == "3000"


def test_fixed_gives_the_explicit_maximum_and_max_the_largest_seen() -> None:
    fixed, largest = Sizer(NODE, "fixed", explicit_max=900), Sizer(NODE, "max")
    feed(fixed, [100.0] * 30)
    feed(largest, [100.0] * 30 + [640.0])
    assert fixed.ask() == 900 and fixed.hopeless([900])
    assert 640 < largest.ask() <= 900
    assert largest.ask([largest.ask()]) == NODE


def test_sizes_are_whole_units() -> None:
    sizer = Sizer(8, unit=1)
    feed(sizer, [0.3, 0.9, 1.2, 0.5] * 20)
    assert sizer.ask() in (1, 2)
    assert isinstance(sizer.ask(), int)


def test_a_share_below_what_other_resources_allow_is_never_asked() -> None:
    sizer = Sizer(NODE, places=16)
    feed(sizer, [5.0] * 50)
    assert sizer.ask() == NODE // 16


def test_a_task_of_no_size_and_no_time_does_no_harm() -> None:
    sizer = Sizer(NODE)
    for _ in range(30):
        sizer.observe(0.0, 0.0)
    assert 1 <= sizer.ask() <= NODE


def test_marks_tell_the_largest_seen_from_the_largest_exhausted() -> None:
    sizer = Sizer(NODE)
    sizer.observe(2048, 5.0, exhausted_at=2048)
    assert sizer.describe().maximum == ">2048"
    sizer.observe(3000, 5.0, tried=(2048,), size=8192)
    described = sizer.describe()
    assert described.maximum == "~3000"
    assert described.retries == 1
    assert described.waste == pytest.approx(1 - 3000 / (2048 + 8192))


def test_what_was_learned_survives_storage_and_the_next_run_begins_with_it() -> None:
    sizer = Sizer(NODE)
    feed(sizer, [float(peak) for peak in range(400, 600)])
    stored = msgspec.json.decode(msgspec.json.encode(sizer.learned()), type=Learned)
    again = Sizer(NODE, learned=stored)
    assert again.ask() < NODE // 4
    assert again.describe().maximum == "~599"
    assert sum(cell.weight for cell in again.learned().cells) <= 51


def test_memory_stays_bounded_however_many_tasks_there_are() -> None:
    random = Random(5)
    sketch = Sketch()
    for _ in range(60_000):
        sketch.completed(random.lognormvariate(6, 2), 1.0, None)
    assert len(sketch.cells) < 700
    assert sketch.order == sorted(sketch.cells)
