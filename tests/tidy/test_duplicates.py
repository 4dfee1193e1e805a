"""Copied text: runs of lines that stand in two places of the sources.

A run of six or more identical lines in two places is a function that is missing. A few short runs are cheaper than
the function that would replace them, so the test allows a small number and prints those that it finds.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src"
RUN_LINES = 6
"""A shorter run is not counted."""
PAIRS_BELOW = 15


def left_out(tree: ast.Module) -> set[int]:
    """The numbers of the lines of imports and of `__all__`."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        exports = isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets)
        if imports or exports:
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return lines


def counted_lines(text: str) -> list[tuple[int, str]]:
    """The lines that are compared, stripped, with their numbers."""
    ignored = left_out(ast.parse(text))
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip() and number not in ignored]


def pairs_of(texts: dict[str, str]) -> Iterator[tuple[str, int, str, int, int]]:
    """The maximal runs of identical lines: both places (name, line number) and the number of lines.

    Every window of RUN_LINES lines is a key. Two places with one key belong to one run, which is reported where it
    begins, that is where the lines before differ.
    """
    sources = {name: counted_lines(text) for name, text in texts.items()}
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in sources.items():
        for at in range(len(lines) - RUN_LINES + 1):
            windows[tuple(line for _, line in lines[at : at + RUN_LINES])].append((name, at))
    for places in windows.values():
        for index, (one, begin) in enumerate(places):
            for other, start in places[index + 1 :]:
                left, right = sources[one], sources[other]
                if begin and start and left[begin - 1][1] == right[start - 1][1]:
                    continue
                length = 0
                for (_, here), (_, there) in zip(left[begin:], right[start:], strict=False):
                    if here != there:
                        break
                    length += 1
                yield one, left[begin][0], other, right[start][0], length


def test_a_run_of_identical_lines_counts_once() -> None:
    run = "\n".join(f"a{number} = {number}" for number in range(RUN_LINES + 2))
    first = f"import os\n\n{run}\nb = 1\n"
    second = f"c = 1\n{run}\n"
    assert list(pairs_of({"first": first, "second": second})) == [("first", 3, "second", 2, RUN_LINES + 2)]
    imports = "\n".join(f"import a{number}" for number in range(RUN_LINES))
    assert list(pairs_of({"first": imports, "second": imports})) == []


def test_few_lines_are_copied() -> None:
    paths = sorted(path for path in ROOT.rglob("*.py") if path.is_file())
    found = sorted(pairs_of({str(path.relative_to(ROOT)): path.read_text() for path in paths}))
    for one, begin, other, start, length in found:
        print(f"{one}:{begin} {other}:{start} ({length} lines)")
    assert len(found) < PAIRS_BELOW
