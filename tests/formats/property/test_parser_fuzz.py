"""100,000 damaged inputs: every parser gives a value, or one error that says where, and never takes long over it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from shoal.errors import InputError
from support.fuzz_makeflow import LANGUAGES, SOURCE, Language, damaged

BATCH = 5_000
BATCHES = {"makeflow": 8, "jx": 5, "json workflow": 2, "jx workflow": 2, "wfformat": 3}
PATH = re.compile(r"^the file |\(at .+\)$")
"""What a WfFormat file means is told by paths into the document."""
SECONDS = 1.0
"""Processor time for one input; most take less than a millisecond."""


class TooSlow(BaseException):
    """No parser catches this one."""


@contextmanager
def watched() -> Iterator[None]:
    """Ends with `TooSlow` what uses more processor time than it may."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def trouble_with(language: Language, content: bytes) -> str | None:
    """What a parser did that it must not do."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        language.read(content)
    except InputError as error:
        return _trouble_with_error(language, error)
    except TooSlow:
        return f"it took more than {SECONDS} s"
    except Exception as error:
        return f"it raised {type(error).__name__}: {error}"
    return None


def _trouble_with_error(language: Language, error: InputError) -> str | None:
    if error.file != SOURCE or not error.message:
        return f"the error names no file: {error}"
    if "\n" in error.message or "\n" in (error.remedy or ""):
        return f"the error is more than a sentence: {error}"
    if error.line is not None and error.line >= 1 and error.column is not None and error.column >= 1:
        return None
    if language.name == "wfformat" and PATH.search(error.message):
        return None
    return f"the error has no place: {error}"


@pytest.mark.parametrize(
    ("name", "batch"), [(name, batch) for name, count in BATCHES.items() for batch in range(count)]
)
def test_damaged_inputs_are_read_or_refused_with_a_place(name: str, batch: int) -> None:
    language = LANGUAGES[name]
    with watched():
        for number in range(batch * BATCH, (batch + 1) * BATCH):
            content = damaged(language, number)
            trouble = trouble_with(language, content)
            assert trouble is None, f"damaged(LANGUAGES[{name!r}], {number}): {trouble}\n{content!r}"


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_texts_that_are_damaged_are_valid(name: str) -> None:
    language = LANGUAGES[name]
    for text in language.texts:
        if b"->" not in text:  # renames are read, but not carried out here
            language.read(text)


def test_there_are_100_000_inputs_and_they_differ() -> None:
    assert sum(BATCHES.values()) * BATCH == 100_000
    found = {damaged(language, number) for language in LANGUAGES.values() for number in range(200)}
    assert len(found) > 950
