"""Shifts an exposure onto the pixels of the mosaic: `project.py < RAW > PROJECTED`.

The value between pixels comes from the two neighbours on either side (Catmull and Rom's cubic), rows first, then
columns; what lies beyond the tile is cut off.
"""

from __future__ import annotations

import math
import sys
from array import array

from images import MARGIN, TILE, Image, read

NEIGHBOURS = 4


def weights(fraction: float) -> tuple[float, float, float, float]:
    """How much each of four pixels counts for a place that far behind the second."""
    t = fraction
    return (
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    )


def project(raw: Image) -> Image:
    x, y = round(raw.x + MARGIN), round(raw.y + MARGIN)
    a, b, c, d = weights((x - raw.x) % 1.0)
    left = math.floor(x - raw.x) - 1
    shifted = []
    for number in range(raw.height):
        line = raw.row(number)
        fours = zip(*(line[left + i : left + i + TILE] for i in range(NEIGHBOURS)), strict=True)
        shifted.append([a * p + b * q + c * r + d * s for p, q, r, s in fours])
    a, b, c, d = weights((y - raw.y) % 1.0)
    top = math.floor(y - raw.y) - 1
    pixels = array("f")
    for number in range(top, top + TILE):
        lines = zip(*shifted[number : number + NEIGHBOURS], strict=True)
        pixels.extend([a * p + b * q + c * r + d * s for p, q, r, s in lines])
    return Image(TILE, TILE, x, y, pixels)


if __name__ == "__main__":
    project(read(sys.stdin.buffer)).write(sys.stdout.buffer)
