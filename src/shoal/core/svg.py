"""SVG drawings: elements, text, axes and the grid of a panel. Pure.

All drawings of Shoal are written with these functions, so that names of tasks and files are escaped in one place. A
drawing is a list of elements; coordinates are pixels from the upper left corner. Only the standard library is imported,
because `shoal monitor` runs without other packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

Point = tuple[float, float]
_GRID = "#ddd"


class Axis(NamedTuple):
    """A linear or logarithmic axis: maps values to pixels."""

    least: float
    most: float
    begin: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.is_logarithmic:
            part = log10(value / self.least) / log10(self.most / self.least)
        else:
            part = (value - self.least) / (self.most - self.least)
        return self.begin + part * (self.end - self.begin)

    def steps(self, number: int) -> list[float]:
        """`number` equal steps from one end to the other, both ends included."""
        return [self.least + (self.most - self.least) * step / number for step in range(number + 1)]


def round_number(value: float, *, up: bool = True) -> float:
    """The next 1, 2 or 5 times a power of ten; 1 for 0."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    steps = [factor * power for factor in (0.5, 1, 2, 5, 10, 20)]  # the logarithm may be off by rounding
    return next(step for step in steps if step >= (value or power)) if up else max(s for s in steps if s <= value)


def element(name: str, content: str = "", **attributes: str | float | None) -> str:
    """One element; `content` is SVG. `_` in attribute names becomes `-`, and attributes with value None are omitted."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    words = "".join(f' {key}="{_value(value)}"' for key, value in given.items())
    return f"<{name}{words}>{content}</{name}>" if content else f"<{name}{words}/>"


def text(x: float, y: float, words: str, **attributes: str | float | None) -> str:
    """Text at a position, which is the left end of its base line unless `text_anchor` is given."""
    plain = "".join(letter if letter.isprintable() else " " for letter in words)
    return element("text", escape(plain, quote=False), x=x, y=y, **attributes)


def line(start: Point, end: Point, stroke: str, *, is_dashed: bool = False) -> str:
    """A straight line."""
    dashes = "6 4" if is_dashed else None
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], stroke=stroke, stroke_dasharray=dashes)


def polyline(points: Iterable[Point], stroke: str, *, is_dashed: bool = False) -> str:
    """A line through all points."""
    places = " ".join(f"{_value(x)},{_value(y)}" for x, y in points)
    dashes = "6 4" if is_dashed else None
    return element("polyline", points=places, fill="none", stroke=stroke, stroke_width=1.5, stroke_dasharray=dashes)


def rectangle(x: float, y: float, width: float, height: float, fill: str, stroke: str | None = None) -> str:
    """A filled rectangle; with `fill` none only its outline."""
    return element("rect", x=x, y=y, width=width, height=height, fill=fill, stroke=stroke)


def key(x: float, y: float, colour: str, label: str) -> list[str]:
    """One legend entry: a coloured square and its label. `y` is the upper edge."""
    return [rectangle(x, y, 12, 12, colour), text(x + 17, y + 10, label)]


def horizontals(up: Axis, across: Axis, values: Iterable[float], show: Callable[[float], str]) -> list[str]:
    """Horizontal grid lines at these values of `up`, with labels at the left."""
    parts = []
    for value in values:
        y = up.at(value)
        parts.append(line((across.begin, y), (across.end, y), _GRID))
        parts.append(text(across.begin - 6, y + 4, show(value), text_anchor="end"))
    return parts


def document(width: int, height: int, title: Point, words: str, parts: Sequence[str]) -> str:
    """The complete file: white background, title and parts."""
    content = [rectangle(0, 0, width, height, "white"), text(*title, words, font_size=15), *parts]
    namespace, font = "http://www.w3.org/2000/svg", "sans-serif"
    body = "\n".join(["", *content, ""])
    return element("svg", body, xmlns=namespace, width=width, height=height, font_family=font, font_size=12) + "\n"


def _value(value: str | float) -> str:
    """An attribute value with at most two decimals (a hundredth of a pixel)."""
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
