"""Names given on the command line: their order, and which of several definitions counts."""

from __future__ import annotations

import pytest

from shoal.errors import InputError
from shoal.formats.jx import Setting, Value, read_context

FILES = {"args": b'{"n":4,"m":n0+1}', "uses": b'{"w":x*2}', "list": b"[1]", "broken": b"{,"}


def context(*settings: Setting, first_counts: bool = False) -> dict[str, Value]:
    return read_context(settings, lambda name: FILES[name], first_counts=first_counts)


def test_definitions_see_those_before_them() -> None:
    assert context(("define", "x=1"), ("define", "y=x+1"), ("define", 's="a=b"')) == {"x": 1, "y": 2, "s": "a=b"}
    assert context(("define", "x=5"), ("args", "uses"))["w"] == 10


def test_definitions_do_not_see_those_after_them() -> None:
    with pytest.raises(InputError, match="'x' is not defined") as caught:
        context(("define", "y=1+x"), ("define", "x=1"))
    assert (caught.value.file, caught.value.line, caught.value.column) == ("definition of y", 1, 3)


def test_the_last_definition_counts() -> None:
    assert context(("define", "n=1"), ("define", "n=3"))["n"] == 3
    assert context(("define", "n=1"), ("define", "n0=0"), ("args", "args"))["n"] == 4
    assert context(("define", "n0=0"), ("args", "args"), ("define", "n=1"))["n"] == 1


def test_for_the_stand_in_of_jx2json_the_first_definition_and_files_count() -> None:
    assert context(("define", "n=1"), ("define", "n=3"), ("define", "k=n"), first_counts=True) == {"n": 1, "k": 3}
    assert context(("define", "n0=0"), ("args", "args"), ("define", "n=1"), first_counts=True)["n"] == 4
    assert context(("define", "n=1"), ("define", "n0=0"), ("args", "args"), first_counts=True)["n"] == 4


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        (("define", "x"), "NAME=EXPRESSION"),
        (("define", "x="), "an expression is missing"),
        (("define", "x=[1"), "','"),
        (("args", "list"), "must be an object"),
        (("args", "broken"), "broken:1:2"),
    ],
)
def test_a_bad_setting_is_an_error(setting: Setting, part: str) -> None:
    with pytest.raises(InputError) as caught:
        context(setting)
    assert part in str(caught.value)
