"""How numbers, durations and output of tasks are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.text import clip, count, show_rate, show_seconds, some, table, tail_lines
from shoal.view.words import share_of


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 ms"),
        (0.0154, "15 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (3599.9, "1 h 00 min"),
        (7800.0, "2 h 10 min"),
        (200000.0, "2 d 7 h"),
        (-1.0, "0 ms"),
    ],
)
def test_durations_have_two_or_three_digits(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


def test_counts_are_grouped_and_agree_with_their_noun() -> None:
    assert (count(0, "task"), count(1, "task"), count(12345, "task")) == ("0 tasks", "1 task", "12,345 tasks")


def test_percentage_is_100_only_when_all_is_there() -> None:
    assert share_of(9999, 10_000) == "99 %"
    assert share_of(10_000, 10_000) == "100 %"
    assert share_of(0, 0) == "100 %"


def test_rates_change_their_unit() -> None:
    assert [show_rate(rate) for rate in (1234.5, 2.54, 0.25)] == ["1,234/s", "2.5/s", "15/min"]


def test_long_lists_are_cut_with_how_many_are_left_out() -> None:
    assert some(["a", "b"]) == "'a', 'b'"
    assert some(list("abcde")) == "'a', 'b', 'c' and 2 more"


def test_tail_is_the_last_lines_without_what_moves_a_cursor() -> None:
    output = b"one\ntwo\n\x1b[31mred\x1b[0m\n10%\r50%\r100%\nbell\x07 \xff\n\n"
    assert tail_lines(output, 3) == ["red", "100%", "bell �"]
    assert tail_lines(b"", 3) == []


@given(st.binary(max_size=300), st.integers(1, 5))
def test_tail_of_any_bytes_is_short_and_printable(output: bytes, most: int) -> None:
    lines = tail_lines(output, most, width=20)
    assert len(lines) <= most
    for line in lines:
        assert len(line) <= 20
        assert not any(character < " " or character == "\x7f" for character in line)


def test_clipped_text_says_that_it_is_clipped() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde…"


def test_table_columns_line_up() -> None:
    assert table([("name", "tasks"), ("a", "12,345")]) == ["  name    tasks", "  a      12,345"]
