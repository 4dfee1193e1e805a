"""Regular expressions mean the same in every Python that is supported."""

from __future__ import annotations

import re
import re._constants as operations  # type: ignore[import-not-found]
import re._parser as expressions  # type: ignore[import-not-found]
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src"
WITH_PATTERNS = [path for path in sorted(ROOT.rglob("*.py")) if path.is_file() and "re.compile(" in path.read_text()]
MISREAD = (operations.POSSESSIVE_REPEAT, operations.ATOMIC_GROUP)
"""Python 3.11.2, Debian 12's own, loses characters in these where they hold something that can be matched in parts."""


def operations_of(parsed: Any) -> Iterator[Any]:
    for item in parsed:
        if isinstance(item, (list, tuple, expressions.SubPattern)):
            yield from operations_of(item)
        else:
            yield item


def has_misread(parsed: Any) -> bool:
    return any(each is misread for each in operations_of(parsed) for misread in MISREAD)


@pytest.mark.parametrize("path", WITH_PATTERNS, ids=lambda path: path.stem)
def test_no_pattern_has_what_old_interpreters_misread(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if name.endswith("__main__"):
        return
    patterns = [each for each in vars(import_module(name)).values() if isinstance(each, re.Pattern)]
    found = [each.pattern for each in patterns if has_misread(expressions.parse(each.pattern, each.flags))]
    assert not found
