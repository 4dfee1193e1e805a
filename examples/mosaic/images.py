"""Images of the mosaic example: their place in the sky and their files.

An image file is one line of text (width, height and the sky position of its first pixel) and then its pixels, row by
row, as 32-bit numbers. Every command of the workflow loads this, so it imports next to nothing.
"""

from __future__ import annotations

from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

BANDS = ("red", "green", "blue")
PITCH = 110
"""Distance in pixels from one tile of the grid to the next."""
OVERLAP = 22
TILE = PITCH + OVERLAP
MARGIN = 2
"""Pixels of an exposure beyond its tile's edges, which are needed to shift it."""
SLOPE_PIXELS = 100.0
"""Slopes of planes are given per so many pixels."""


def sky_size(n: int) -> int:
    """Width and height in pixels of what a grid of n by n tiles covers."""
    return n * PITCH + OVERLAP


def tile_origin(tile: str) -> tuple[int, int]:
    """Where tile "row-column" begins."""
    row, column = tile.split("-")
    return int(column) * PITCH, int(row) * PITCH


def middle_tile(n: int) -> str:
    """The tile whose background is right."""
    return f"{n // 2}-{n // 2}"


class Image:
    """Pixels, and the sky position of the first of them."""

    def __init__(self, width: int, height: int, x: float, y: float, pixels: array[float]) -> None:
        if len(pixels) != width * height:
            raise SystemExit(f"the image is cut short: {len(pixels)} pixels of {width * height}")
        self.width = width
        self.height = height
        self.x = x
        self.y = y
        self.pixels = pixels

    def row(self, number: int) -> array[float]:
        return self.pixels[number * self.width : (number + 1) * self.width]

    def write(self, stream: BinaryIO) -> None:
        stream.write(f"{self.width} {self.height} {self.x!r} {self.y!r}\n".encode())
        stream.write(self.pixels.tobytes())


def read(stream: BinaryIO) -> Image:
    width, height, x, y = stream.readline().split()
    return Image(int(width), int(height), float(x), float(y), array("f", stream.read()))


def load(path: str) -> Image:
    with open(path, "rb") as stream:
        return read(stream)


def save(image: Image, path: str) -> None:
    with open(path, "wb") as stream:
        image.write(stream)


def subtract(one: Image, other: Image) -> Image:
    """What the first image shows more than the second, where they overlap."""
    x, y = max(one.x, other.x), max(one.y, other.y)
    width = int(min(one.x + one.width, other.x + other.width) - x)
    height = int(min(one.y + one.height, other.y + other.height) - y)
    pixels = array("f")
    for row in range(height):
        at_one = int(y - one.y + row) * one.width + int(x - one.x)
        at_other = int(y - other.y + row) * other.width + int(x - other.x)
        pairs = zip(one.pixels[at_one : at_one + width], other.pixels[at_other : at_other + width], strict=True)
        pixels.extend([a - b for a, b in pairs])
    return Image(width, height, x, y, pixels)
