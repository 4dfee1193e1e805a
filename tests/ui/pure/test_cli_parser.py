"""Words of a command line that begin with a dash."""

from __future__ import annotations

from typing import get_args

import pytest

from shoal.core.policies.order import ORDERS
from shoal.core.policies.stealing import POLICIES
from shoal.errors import InputError
from shoal.execution.conversion import Target
from shoal.execution.learned_sizes import MODES
from shoal.ui.cli import convert, run
from shoal.ui.cli.parser import CommandParser
from shoal.ui.cli.run import add_arguments


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
    with pytest.raises(InputError, match="unexpected argument 'b'"):
        one.parse(["--", "a", "b"])


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--cores", "'--jobs N' does that: cores to use (default: all this process may use)"),
        ("--mem=8G", "'--memory SIZE' does that: memory to use, such as 8G (default: all there is)"),
        ("--ordr", "did you mean '--order'?"),
        ("--thrott", "did you mean '--throttle'?"),
        ("--colour", "'shoal run --help' lists its options"),
    ],
)
def test_the_suggestion_for_an_unknown_option_is_near_in_spelling_or_meaning(option: str, remedy: str) -> None:
    run = CommandParser("run", "", "", "")
    add_arguments(run)
    with pytest.raises(InputError) as refused:
        run.parse(["flow.py", option])
    assert refused.value.remedy == remedy


def test_options_offer_the_names_that_exist() -> None:
    """They stand in the commands once more, so that `--help` loads nothing of what they name."""
    assert set(run.ORDERS) == set(ORDERS)
    assert set(run.POLICIES) == set(POLICIES)
    assert set(run.SIZINGS) == set(MODES)
    assert set(convert.FORMATS) == set(get_args(Target))
