"""Words of a command line that begin with a dash."""

from __future__ import annotations

import pytest

from shoal.cli.parser import CommandParser
from shoal.errors import InputError


def parser() -> CommandParser:
    found = CommandParser("why", "Says why.", "[WORD...]", "shoal why x")
    found.add_argument("words", nargs="*")
    found.add_argument("-j", "--jobs", nargs="?")
    found.add_argument("--json", action="store_true")
    return found


@pytest.mark.parametrize(
    ("words", "expected", "jobs"),
    [
        (["a", "--", "-x"], ["a", "-x"], None),
        (["--", "--help"], ["--help"], None),
        (["--", "-x", "--", "--json"], ["-x", "--", "--json"], None),
        (["-j", "--", "3"], ["3"], None),
        (["a", "-j", "3", "--"], ["a"], "3"),
        (["--"], [], None),
    ],
)
def test_what_follows_two_dashes_is_a_word(words: list[str], expected: list[str], jobs: str | None) -> None:
    found = parser().parse(words)
    assert found is not None
    assert (found.words, found.jobs, found.json) == (expected, jobs, False)


def test_a_word_too_many_is_told_as_it_was_written() -> None:
    one = CommandParser("top", "Shows.", "[RUN]", "shoal top x")
    one.add_argument("run", nargs="?")
    with pytest.raises(InputError, match="'b' is a word too many"):
        one.parse(["--", "a", "b"])
