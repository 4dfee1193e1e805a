"""A Makeflow as a small picture (portable pixmap): a row of cells for every level, one cell per task.

Size, order and colours are the original's; colour values reach from 0 to 1. The cells of a level that needs several
rows repeat its first tasks in each, as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.errors import InputError
from shoal.frontend.makeflow.analysis import find_levels, find_makers
from shoal.frontend.makeflow.document import Makeflow, MakeflowRule
from shoal.frontend.makeflow.drawing import label_of
from shoal.frontend.makeflow.drawing_order import listing_order

WIDTH, HEIGHT, SMALLEST = 1200, 800, 5
WHITE, BLACK, CYAN, MAGENTA = b"\1\1\1", b"\0\0\0", b"\0\1\1", b"\1\0\1"

Colour = Callable[[MakeflowRule, int], bytes]
"""The colour of a task on a level."""


def plain(rule: MakeflowRule, level: int) -> bytes:
    return BLACK


def by_level(rule: MakeflowRule, level: int) -> bytes:
    """Red, green and blue in turn."""
    return bytes(int(level % 3 == channel) for channel in range(3))


def highlighting_row(row: int) -> Colour:
    return lambda rule, level: CYAN if level == row else BLACK


def highlighting_file(name: str) -> Colour:
    return lambda rule, level: MAGENTA if name in rule.outputs else BLACK


def highlighting_program(program: str) -> Colour:
    return lambda rule, level: CYAN if label_of(rule) == program else BLACK


def draw_ppm(makeflow: Makeflow, colour: Colour) -> Iterator[bytes]:
    """The header, then one piece per row of cells."""
    if not makeflow.rules:
        raise InputError("there is no rule in this workflow, so there is nothing to draw", file=makeflow.source)
    level_of = find_levels(makeflow, find_makers(makeflow))
    levels: list[list[MakeflowRule]] = [[] for _ in range(max(level_of) + 1)]
    for number in map(int, listing_order(map(str, range(len(level_of))))):
        levels[level_of[number]].append(makeflow.rules[number])
    cell = max(WIDTH // max(map(len, levels)), SMALLEST)
    in_row = WIDTH // cell
    rows_of_level = [(cell * len(rules) - 1) // WIDTH + 1 for rules in levels]
    height = max(HEIGHT // sum(rows_of_level), SMALLEST)
    yield f"P6\n{in_row * cell} {height * sum(rows_of_level)}\n1\n".encode()
    for level, rules in enumerate(levels):
        for row in range(rows_of_level[level]):
            shown = rules[: min(len(rules) - row * in_row, in_row)]
            blank = (in_row - len(shown)) * cell
            cells = b"".join(colour(rule, level) * cell for rule in shown)
            yield (WHITE * (blank // 2) + cells + WHITE * (blank - blank // 2)) * height
