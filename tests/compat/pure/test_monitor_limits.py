"""Limits and options of the monitor: what is read from text, what is refused, and what counts as exceeded."""

from __future__ import annotations

import json

import pytest

from shoal.compat.resource_monitor.options import describe_exceeded, exceeded, parse, parse_limits, parse_limits_file
from shoal.errors import InputError


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("memory: 500", {"memory": 500.0}),
        ("memory:500", {"memory": 500.0}),
        ("  wall_time :  1.5 ", {"wall_time": 1.5}),
        ("memory: 1, cores: 2", {"memory": 1.0, "cores": 2.0}),
        ("disk: 0", {"disk": 0.0}),
    ],
)
def test_limits_are_names_and_numbers(text: str, limits: dict[str, float]) -> None:
    assert parse_limits(text) == limits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory", "'memory' is not a limit"),
        ("memory=1", "'memory=1' is not a limit"),
        ("", "'' is not a limit"),
        ("foo: 3", "unknown limit 'foo'; use one of wall_time"),
        ("start: 3", "unknown limit 'start'"),
        ("memory: abc", "'abc' is not a valid limit of memory; write a non-negative number of MB"),
        ("memory: -3", "'-3' is not a valid limit of memory"),
        ("memory: 1 GB", "'1 GB' is not a valid limit of memory"),
        ("memory: nan", "'nan' is not a valid limit of memory"),
        ("memory: inf", "'inf' is not a valid limit of memory"),
    ],
)
def test_a_bad_limit_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_limits(text)
    assert str(caught.value).startswith(said)


def test_a_file_of_limits_has_a_line_for_each() -> None:
    assert parse_limits_file("# mine\nmemory: 1\n\ncores: 3,\n", "limits") == {"memory": 1.0, "cores": 3.0}


def test_a_summary_of_an_earlier_run_serves_as_limits() -> None:
    summary = {"host": "here", "exit_status": 0, "start": [17, "s"], "memory": [12, "MB"], "cores": 2}
    del summary["exit_status"]
    assert parse_limits_file(json.dumps(summary), "a.summary") == {"memory": 12.0, "cores": 2.0}


def test_a_limit_in_a_file_that_cannot_be_used_names_file_and_line() -> None:
    with pytest.raises(InputError, match=r"^limits:2: 'lots' is not a valid limit of memory"):
        parse_limits_file("cores: 1\nmemory: lots\n", "limits")
    with pytest.raises(InputError, match=r"^limits: the file is not valid JSON"):
        parse_limits_file('{"memory": ', "limits")


def test_only_what_is_above_its_limit_is_exceeded() -> None:
    limits = {"memory": 10.0, "disk": 5.0, "wall_time": 1.0, "swap_memory": 0.0}
    assert exceeded(limits, {"memory": 10.0, "disk": 5.01, "wall_time": 0.9, "swap_memory": 0.0}) == {"disk": 5.0}


def test_a_quarter_of_a_core_more_is_forgiven() -> None:
    assert exceeded({"cores": 1.0}, {"cores": 1.25}) == {}
    assert exceeded({"cores": 1.0}, {"cores": 1.26}) == {"cores": 1.0}


def test_the_verdict_never_calls_two_equal_numbers_one_over_the_other() -> None:
    said = describe_exceeded({"disk": 2.0}, {"disk": 2.0039}, 0.5)
    assert said == "disk 2.004 MB is over the limit of 2 MB, 0.5 s after the start"


def test_the_message_names_the_exceeded_limits_the_values_and_the_time() -> None:
    said = describe_exceeded({"memory": 10.0}, {"memory": 12.25}, 3.14159)
    assert said == "memory 12.2 MB is over the limit of 10 MB, 3.1 s after the start"


def test_a_command_line_of_the_original_is_understood() -> None:
    words = ["--no-pprint", "--with-output-files=d/rule-3", "-L", "memory: 500", "-L", "cores: 2", "-V", "category:a b"]
    options = parse([*words, "-i0.5", "--sh", "echo -n hi"])
    assert (options.pretty, options.template, options.interval) == (False, "d/rule-3", 0.5)
    assert options.limits == {"memory": 500.0, "cores": 2.0}
    assert options.verbatim == [("category", "a b")]
    assert (options.shell_text, options.command) == ("echo -n hi", [])


def test_options_after_the_first_word_are_those_of_the_command() -> None:
    assert parse(["-O", "x", "ls", "-l", "--", "y"]).command == ["ls", "-l", "--", "y"]
    assert parse(["-O", "x", "--", "-strange", "-O"]).command == ["-strange", "-O"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the command to measure is missing"),
        (["-O", "x"], "the command to measure is missing"),
        (["--sh", "true", "--", "true"], "--sh and the command 'true' exclude each other"),
        (["--bogus", "true"], "unknown option '--bogus'"),
        (["-Z", "true"], "unknown option '-Z'"),
        (["-O"], "--with-output-files needs a value"),
        (["--no-pprint=yes", "true"], "--no-pprint takes no value"),
        (["-i", "0", "true"], "'0' is not a valid interval"),
        (["-i", "soon", "true"], "'soon' is not a valid interval"),
        (["-V", "category", "true"], "'category' is not a valid field of the summary"),
    ],
)
def test_a_bad_command_line_is_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(words)
    assert str(caught.value).startswith(said)
