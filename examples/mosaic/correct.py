"""Takes its false background out of an image: `correct.py TILE IMAGE BACKGROUNDS > CORRECTED`."""

from __future__ import annotations

import sys
from array import array

from images import SLOPE_PIXELS, Image, load


def plane_of(tile: str, table: str) -> tuple[float, float, float]:
    """Brightness in the tile's middle and its rise per 100 pixels, from the table that flow.py makes."""
    with open(table) as lines:
        for line in lines:
            _, name, level, across, down = line.split()
            if name == tile:
                return float(level), float(across), float(down)
    raise SystemExit(f"{table} has no line for {tile}")


def correct(image: Image, plane: tuple[float, float, float]) -> Image:
    level, across, down = plane
    step = across / SLOPE_PIXELS
    pixels = array("f")
    for row in range(image.height):
        start = level - step * image.width / 2 + down / SLOPE_PIXELS * (row - image.height / 2)
        pixels.extend([value - start - step * column for column, value in enumerate(image.row(row))])
    return Image(image.width, image.height, image.x, image.y, pixels)


if __name__ == "__main__":
    tile, image, table = sys.argv[1:]
    correct(load(image), plane_of(tile, table)).write(sys.stdout.buffer)
