"""Text as a terminal shows it: what is cut fits, what is padded fills, and nothing is left that it would obey."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wcwidth import wcswidth

from shoal.ui.cli.text import cells, cut, joined, padded, printable

texts = st.text(max_size=30).map(printable)


@settings(max_examples=150, deadline=None)
@given(text=texts, room=st.integers(0, 40))
def test_what_is_cut_fits_and_what_is_padded_fills(text: str, room: int) -> None:
    assert cells(cut(text, room)) <= room
    assert cells(padded(text, room)) == room
    if cells(text) <= room:
        assert cut(text, room) == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=30))
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize("text", ["plain", "中文", "e\u0301", "한글 and more", "日本\ufe0f", "ﬁ", "Ω≈ç", "🐟 fish"])
def test_widths_are_those_of_terminals(text: str) -> None:
    assert cells(text) == wcswidth(text)


def test_pieces_are_joined_as_far_as_they_fit() -> None:
    assert joined(["one", "two", "three"], 9, ", ") == "one, two"
    assert joined(["one", "two"], 2, ", ") == "o…"
    assert joined([], 5, ", ") == ""


def test_escapes_and_marks_of_direction_become_question_marks() -> None:
    assert printable("\x1b[2J\u202e\x9bx\u200d") == "?[2J??x?"
