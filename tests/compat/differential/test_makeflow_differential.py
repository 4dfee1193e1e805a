"""`shoal makeflow` beside Debian's makeflow: the same files, exit statuses, jobs and order on the same workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.differential import documents, errors, language, options, sequences
from compat.differential.case import (
    LOG,
    ORIGINAL,
    WORKFLOW,
    Case,
    Outcome,
    expected_statuses,
    must_name_a_place,
    names_a_place,
    run_both,
    started_too_early,
)

pytestmark = pytest.mark.skipif(not ORIGINAL, reason="the original is not installed")

CASES = [*language.CASES, *errors.CASES, *options.CASES, *sequences.CASES, *documents.CASES]


def test_names_of_cases_are_distinct_and_there_are_enough_of_them() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 80


def test_every_departure_from_the_original_is_explained() -> None:
    for case in CASES:
        assert bool(case.why) == bool(case.ours is not None or case.differs), case.name


def test_a_rule_that_starts_before_its_source_is_made_is_noticed(tmp_path: Path) -> None:
    case = Case("a chain", "b: a\n\tcp a b\nc: b\n\tcp b c\n")
    (tmp_path / WORKFLOW).write_text(case.text)
    outcome = Outcome(tmp_path, ["0"], "", "")
    records = {state: f"1 {state} 7 1 0 1 0 0 2\n" for state in ("0 1", "0 2", "1 1", "1 2")}
    (tmp_path / LOG).write_text("".join(records.values()))
    assert started_too_early(outcome, case) == []
    (tmp_path / LOG).write_text(records["0 1"] + records["1 1"] + records["0 2"] + records["1 2"])
    assert started_too_early(outcome, case) == ["1 before 0"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_does_what_the_original_does(case: Case, tmp_path: Path) -> None:
    original, ours = run_both(case, tmp_path)
    said = f"original:\n{original.out}{original.err}\nours:\n{ours.out}{ours.err}"
    assert original.statuses == case.status.split(), said
    assert ours.statuses == expected_statuses(case), said
    assert not must_name_a_place(case) or names_a_place(ours), said
    assert ours.files() == expected_files(case, original.files()), said
    assert not case.says_the_same or ours.lines() == original.lines(), said
    assert started_too_early(ours, case) == [], said


def expected_files(case: Case, found: dict[str, str]) -> dict[str, str]:
    """The original's files with the departures that the case states."""
    for name, content in case.differs.items():
        if content is None:
            del found[name]
        else:
            found[name] = content
    return found
