"""Drawings of a card as SVG: small, without scripts, without text in them, in colours that a style sheet may change.

There is no text because some viewers take drawings out of a notebook and leave their words behind. Points are relative
steps, so that a drawing which is sent twice a second stays small.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.svg import element
from shoal.notebook.card import MOST_COLOURS, Area

WIDTH, HEIGHT = 480, 80
HEADROOM = 4
"""Above the highest point, so that a line there is seen whole."""
COLOURS = (
    *("#3b76af", "#ef8536", "#519e3e", "#8d69b8", "#45a5a8", "#d6b019"),
    *("#c5689b", "#8f6353", "#6d8fd1", "#9aab3c", "#b3867a", "#8a929c"),
)
"""The same as on the live page and in reports."""
BAD, LIMIT = "#c8372d", "#5b6876"


def colour_of(place: int) -> str:
    """The colour of a category; those beyond the last share it."""
    return COLOURS[min(place, MOST_COLOURS - 1)]


def area_svg(area: Area, label: str) -> str:
    """A stacked area of steps with a dashed line for what was there; `label` is read out in place of the drawing."""
    size = len(area.limit)
    if not size:
        return ""
    layers = [("shoal-lost", BAD, area.lost)]
    for place, row in reversed(list(zip(area.colours, area.series, strict=True))):
        layers.append((f"shoal-c{place}", colour_of(place), row))
    heights = [sum(layer[2][at] for layer in layers) for at in range(size)]
    top = max(*heights, *area.limit, 1e-9)
    shapes = []
    # From the highest to the lowest: each is drawn from the ground up, and the next one covers what is not its own.
    for name, colour, row in layers:
        if any(row):
            shapes.append(element("path", class_=name, fill=colour, d=_filled(heights, top)))
        heights = [height - value for height, value in zip(heights, row, strict=True)]
    limit = _line(area.limit, top)
    dashes = {"stroke_dasharray": "5 4", "vector_effect": "non-scaling-stroke"}
    shapes.append(element("path", class_="shoal-limit", fill="none", stroke=LIMIT, d=limit, **dashes))
    shown = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": "100%", "preserveAspectRatio": "none"}
    return element("svg", "".join(shapes), class_="shoal-area", role="img", aria_label=label, height=HEIGHT, **shown)


def _filled(values: Sequence[float], top: float) -> str:
    """From the ground along the values and back to the ground."""
    return f"M0 {HEIGHT}{_steps(HEIGHT, _heights(values, top))}V{HEIGHT}z"


def _line(values: Sequence[float], top: float) -> str:
    heights = _heights(values, top)
    return f"M0 {heights[0]}{_steps(heights[0], heights)}"


def _heights(values: Sequence[float], top: float) -> list[int]:
    """In pixels from above; whole ones are enough for the eye."""
    return [HEIGHT - round(max(0.0, value) / top * (HEIGHT - HEADROOM)) for value in values]


def _steps(at: int, heights: Sequence[int]) -> str:
    found, done, size = [], 0, len(heights)
    for number, height in enumerate(heights):
        if height != at:
            found.append(f"V{height}")
        last = number + 1 == size or heights[number + 1] != height
        if last:  # several steps on one level are one
            edge = round((number + 1) / size * WIDTH)
            found.append(f"h{edge - done}")
            done = edge
        at = height
    return "".join(found)
