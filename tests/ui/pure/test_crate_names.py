"""Identifiers, places and moments of crates."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.formats.rocrate.entities import moment
from shoal.formats.rocrate.facts import CratePaths, encoded, fragment, path_in_crate, positions, workflow_place
from support.crates import MOMENT, REFERENCE

HOSTILE = [
    "a b",
    "a%20b",
    "q\"uo'te",
    "ünï—☃",
    "x#y",
    "x%23y",
    "50%",
    "a?b&c=d:e@f",
    "<tag>",
    "back\\slash",
    "new\nline\ttab",
    "http://example.org/x",
    "{brace}|^`",
    "-o",
    "x\udcffy",
    "x%FFy",
]


def test_every_text_becomes_a_valid_identifier_of_its_own() -> None:
    found = [encoded(text) for text in HOSTILE]
    assert all(REFERENCE.fullmatch(one) and "#" not in one and "?" not in one for one in found)
    assert len(set(found)) == len(HOSTILE)
    assert [unquote(one, errors="surrogateescape") for one in found] == HOSTILE


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, max_size=20))
def test_any_texts_become_valid_identifiers_that_lead_back(texts: list[str]) -> None:
    found = [encoded(text) for text in texts]
    assert all(REFERENCE.fullmatch(one) for one in found)
    assert [unquote(one) for one in found] == texts


@given(st.lists(st.sampled_from(["a", "b c", "..", ".", "", "#", "%2e%2e"]), min_size=1, max_size=8), st.booleans())
def test_no_path_leads_out_of_the_crate(parts: list[str], absolute: bool) -> None:
    place = path_in_crate("/" * absolute + "/".join(parts), "/home/me").split("/")
    assert place[0] in ("data", "outside")
    assert not {"..", ".", ""} & set(place)


def test_kinds_of_things_do_not_get_in_each_others_way() -> None:
    assert fragment("tool", "x y") == "#tool-x%20y"
    assert fragment("tool", "x") != fragment("step", "x")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("out/a b.txt", "data/out/a b.txt"),
        ("./out//x", "data/out/x"),
        ("sub/../x", "data/x"),
        ("/home/me/flow/x", "data/x"),
        ("../up", "outside/home/me/up"),
        ("../../../../etc/passwd", "outside/etc/passwd"),
        ("/etc/passwd", "outside/etc/passwd"),
        ("/home/me/flower", "outside/home/me/flower"),
        (".", "outside/home/me/flow"),
        ("ro-crate-metadata.json", "data/ro-crate-metadata.json"),
        ("x\udcffy", "data/x%FFy"),
    ],
)
def test_a_file_lies_inside_the_crate_whatever_its_name_is(name: str, place: str) -> None:
    assert path_in_crate(name, "/home/me/flow") == place


def test_a_workflow_file_lies_at_the_top_unless_its_name_is_taken() -> None:
    assert workflow_place("flow.py") == "flow.py"
    assert workflow_place("ro-crate-metadata.json") == "workflow/ro-crate-metadata.json"
    assert workflow_place("data") == "workflow/data"


def test_no_two_files_get_the_same_place() -> None:
    places = CratePaths("flow.py")
    assert [places.give(wanted) for wanted in ("a", "a", "a", "b", "flow.py")] == ["a", "a~2", "a~3", "b", "flow.py~2"]


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 951_782_399.9996, 951_868_800.5, 1_709_164_800.123, 4_102_444_800.0])
def test_moments_are_those_of_the_calendar(seconds: float) -> None:
    text = moment(seconds)
    assert MOMENT.fullmatch(text)
    assert datetime.fromisoformat(text).timestamp() == pytest.approx(seconds, abs=0.0006)
    assert datetime.fromisoformat(text).tzinfo == UTC


def test_every_day_of_four_centuries_is_the_one_after_the_day_before() -> None:
    day = datetime(1970, 1, 1, tzinfo=UTC).toordinal()
    for number in range(0, 146_097, 53):
        assert moment(number * 86_400.0)[:10] == datetime.fromordinal(day + number).date().isoformat()


def test_a_step_stands_behind_all_that_it_needs() -> None:
    assert positions(4, [(0, 1), (1, 2), (0, 2), (2, 2), (3, 2)]) == [0, 1, 2, 0]


def test_steps_that_need_each_other_have_no_order() -> None:
    assert positions(3, [(0, 1), (1, 2), (2, 1)]) is None
