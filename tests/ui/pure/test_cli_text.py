"""How tables, lists of names and the output of tasks are written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.ui.cli.text import clip, some, table, tail_lines


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
