"""How durations, sizes, shares, rates and counts are written."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.core.quantities import (
    MINUS,
    count,
    show_bytes,
    show_change,
    show_cores,
    show_number,
    show_progress,
    show_rate,
    show_seconds,
    show_share,
    span,
)

SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "years": 31557600}
BYTES = {unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
UNITS = SECONDS | BYTES | {"%": 0.01, "": 1}
FORMS: list[Callable[[float], str]] = [show_seconds, show_bytes, show_share, show_number]
PAIR = re.compile(r"(<?) ?([\d.,]+) ?([^\d\s]*)")


def amount(text: str) -> float:
    """What a text says, in the base unit."""
    return sum(float(digits.replace(",", "")) * UNITS[unit] for _, digits, unit in PAIR.findall(text))


def values(least: float, most: float) -> st.SearchStrategy[float]:
    """Values of all magnitudes, and those around the borders between units."""
    borders = [scale * near for scale in UNITS.values() for near in (0.995, 0.9995, 1.0, 59.95, 99.95, 999.5, 1023.9)]
    around = st.builds(lambda border, by: border * (1 + by), st.sampled_from(borders), st.floats(-1e-3, 1e-3))
    return st.one_of(st.floats(least, most), around.filter(lambda value: least <= value <= most))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (1e-9, "< 1 µs"),
        (1e-6, "1 µs"),
        (1.04e-6, "1.0 µs"),
        (0.0004, "400 µs"),
        (0.0009996, "1.0 ms"),
        (0.0154, "15 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (2.04, "2.0 s"),
        (30.0, "30 s"),
        (sum([0.1] * 50), "5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (75.2, "1 min 15 s"),
        (185.0, "3 min 05 s"),
        (3599.9, "1 h 00 min"),
        (7800.0, "2 h 10 min"),
        (90061.0, "25 h 01 min"),
        (200000.0, "2 d 8 h"),
        (9e6, "104 d"),
        (1e8, "3.17 years"),
        (-1.0, f"{MINUS}1 s"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (0.3, "< 1 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (200_000, "195 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        (5 << 50, "5 PiB"),
        (1 << 80, "1,048,576 EiB"),
    ],
)
def test_sizes_have_three_digits(size: float, shown: str) -> None:
    assert show_bytes(size) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0 %"),
        (0.0001, "< 0.1 %"),
        (0.004, "0.4 %"),
        (0.0996, "10 %"),
        (0.12, "12 %"),
        (0.997, "99 %"),
        (1.0, "100 %"),
        (12.5, "1,250 %"),
        (-0.1, f"{MINUS}10 %"),
    ],
)
def test_a_hundred_per_cent_is_all_of_it(share: float, shown: str) -> None:
    assert show_share(share) == shown


def test_nothing_to_do_is_all_done_but_nothing_of_nothing_is_no_share() -> None:
    assert (show_progress(0, 0), show_share(0, 0)) == ("100 %", "0 %")
    assert (show_progress(9999, 10_000), show_progress(10_000, 10_000)) == ("99 %", "100 %")


def test_counts_are_grouped_and_agree_with_their_noun() -> None:
    assert (count(0, "task"), count(1, "task"), count(12345, "task")) == ("0 tasks", "1 task", "12,345 tasks")
    assert (count(1, "category"), count(2, "category")) == ("1 category", "2 categories")


def test_rates_change_their_unit() -> None:
    rates = (1234.5, 9.96, 2.54, 0.25, 1 / 3600, 1e-6, 0.0)
    assert [show_rate(rate) for rate in rates] == ["1,235/s", "10/s", "2.5/s", "15/min", "1/h", "< 1/d", "0/s"]


def test_numbers_have_three_digits() -> None:
    numbers = (0, 1e-6, 0.005556, 0.02894, 0.5, 2.345, 12, 99.96, 1234.5, -2)
    shown = ["0", "< 0.00001", "0.00556", "0.0289", "0.5", "2.35", "12", "100", "1,235", f"{MINUS}2"]
    assert [show_number(value) for value in numbers] == shown
    assert (show_cores(1), show_cores(2.5), show_cores(0)) == ("1 core", "2.5 cores", "0 cores")


def test_changes_have_a_sign() -> None:
    assert [show_change(ratio) for ratio in (1.12, 1.0, 0.95)] == ["+12 %", "+0 %", f"{MINUS}5.0 %"]


def test_an_estimate_is_not_nothing() -> None:
    assert span(12.0, 0.3, 20.0) == "12 s (1\N{EN DASH}20)"


@given(st.sampled_from(FORMS), values(0.0, 1e18), values(0.0, 1e18))
def test_more_is_never_written_as_less(form: Callable[[float], str], one: float, other: float) -> None:
    less, more = sorted((one, other))
    assume(not form(less).startswith("<") and not form(more).startswith("<"))
    assert amount(form(less)) <= amount(form(more)) * (1 + 1e-12)


@given(st.sampled_from(FORMS), values(0.0, 1e18))
def test_a_text_read_back_is_the_value_but_for_its_rounding(form: Callable[[float], str], value: float) -> None:
    text = form(value)
    if text.startswith("<"):
        assert 0 < value < amount(text)
    elif form is show_share and 0.985 <= value < 1:
        assert text == "99 %"
    elif (form is show_number and value < 1) or (form is show_share and value < 0.1):
        assert amount(text) == pytest.approx(value, abs=0.000501)
    else:
        assert amount(text) == pytest.approx(value, rel=0.0501)
    assert (amount(text) == 0) == (value == 0)


@given(values(0.0, 1e18))
def test_figures_have_three_digits_and_never_reach_the_next_unit(value: float) -> None:
    for text in (show_seconds(value), show_bytes(value)):
        for _, digits, unit in PAIR.findall(text):
            if unit not in ("years", "EiB"):  # there is no larger unit
                assert len(digits.replace(".", "").lstrip("0")) <= 3
                assert unit != "s" or amount(digits) < 60
