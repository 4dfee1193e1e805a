"""Stands in for the telescope: `observe.py BAND TILE N > IMAGE` takes one exposure of a sky of N by N tiles.

Every exposure points a fraction of a pixel aside, has noise, and its own false background: a plane of stray light. Only
the exposure of the middle was taken in a night without any; that is the one the others are levelled to.
"""

from __future__ import annotations

import sys
from array import array
from random import Random

from images import MARGIN, TILE, Image, middle_tile, tile_origin
from sky import look

NOISE = 1.0
OFFSET = 22.0
SLOPE = 20.0
"""How far stray light differs from exposure to exposure, and from one edge of an exposure to the other."""


def expose(band: str, tile: str, n: int) -> Image:
    dice = Random(f"{band} {tile}")
    x, y = (corner - MARGIN + dice.uniform(-0.5, 0.5) for corner in tile_origin(tile))
    offset = dice.uniform(-OFFSET, OFFSET)
    across, down = (dice.uniform(-SLOPE, SLOPE) / TILE for _ in "xy")
    if tile == middle_tile(n):
        offset = across = down = 0.0
    size = TILE + 2 * MARGIN
    steps = range(size)
    light = look(band, n, [x + step for step in steps], [y + step for step in steps])
    stray = [offset + across * (column - size / 2) + down * (row - size / 2) for row in steps for column in steps]
    # Drawing from a thousand numbers is several times faster than making a new one for each pixel.
    noise = dice.choices([dice.gauss(0.0, NOISE) for _ in range(1000)], k=size * size)
    seen = array("f", map(sum, zip(light, stray, noise, strict=True)))
    return Image(size, size, x, y, seen)


if __name__ == "__main__":
    expose(sys.argv[1], sys.argv[2], int(sys.argv[3])).write(sys.stdout.buffer)
