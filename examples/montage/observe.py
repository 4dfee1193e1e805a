"""Stands in for the telescope: `observe.py N` writes N by N overlapping images of the sky to `raw/`.

Their names, in order, go to `tiles.tbl`, as Montage reads them: it would else number images as the directory has them.
Each points a little aside, is a little turned, has noise, and a false background of its own: a plane of stray light.
"""

from __future__ import annotations

import os
import sys
from array import array
from math import radians
from random import Random

import fits
from projection import Frame, from_plane
from sky import DEC, RA, SCALE, brightness

SIZE = 96
PITCH = 72
"""Pixels from the middle of one image to that of the next."""
ASIDE = 2.0
TURN = 2.0
"""Degrees."""
NOISE = 0.5
OFFSET = 60.0
SLOPE = 40.0
"""How far stray light differs between images, and from one edge of an image to the other."""


def tiles(n: int) -> list[str]:
    """The names of the images, such as `tile-0-2`: row by row, from the south and from the west."""
    return [f"tile-{row}-{column}" for row in range(n) for column in range(n)]


def expose(tile: str, n: int) -> tuple[array[float], Frame]:
    dice = Random(tile)
    row, column = map(int, tile.split("-")[1:])
    east, north = ((place - (n - 1) / 2) * PITCH + dice.uniform(-ASIDE, ASIDE) for place in (n - 1 - column, row))
    unit = radians(SCALE)
    middle = (SIZE + 1) / 2
    frame = Frame(*from_plane(RA, DEC, east * unit, north * unit), middle, middle, SCALE, dice.uniform(-TURN, TURN))
    offset = dice.uniform(-OFFSET, OFFSET)
    across, up = (dice.uniform(-SLOPE, SLOPE) / SIZE for _ in "xy")
    pixels = array("f")
    for y in range(1, SIZE + 1):
        for x in range(1, SIZE + 1):
            stray = offset + across * (x - middle) + up * (y - middle)
            pixels.append(brightness(frame.direction(x, y)) + stray + dice.gauss(0.0, NOISE))
    return pixels, frame


def main(n: int) -> None:
    os.makedirs("raw", exist_ok=True)
    for tile in tiles(n):
        pixels, frame = expose(tile, n)
        fits.write(f"raw/{tile}.fits", SIZE, pixels, frame.cards())
    with open("tiles.tbl", "w") as stream:
        stream.writelines(["| fname            |\n", *(f"  {tile}.fits\n" for tile in tiles(n))])


if __name__ == "__main__":
    main(int(sys.argv[1]))
