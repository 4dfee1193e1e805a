"""Compares a finished mosaic with the sky it was made of: `check.py DIRECTORY N`.

Says how far the mosaic is off with and without the correction, and fails if it is off by more than the noise explains,
or if the picture is not a PNG of the right size.
"""

from __future__ import annotations

import struct
import sys
from math import sqrt

from images import BANDS, load, sky_size
from sky import look

EVERY = 3
"""Only every so many-th pixel of every so many-th row is compared: the true sky takes long to compute."""
BRIGHT = 300.0
"""Where the sky is brighter, the steep flanks of stars are compared, not the background."""
TOLERANCE = 2.0
"""Noise has 1.0 in each exposure; stray light about 12."""


def error_of(directory: str, stage: str, n: int) -> float:
    """How far a stage's mosaic is from the truth, over all bands (root of the mean square)."""
    places = list(range(1, sky_size(n), EVERY))
    squares = []
    for band in BANDS:
        seen = load(f"{directory}/mosaic/{stage}/{band}.img")
        truth = look(band, n, places, places)
        values = [seen.pixels[y * seen.width + x] for y in places for x in places]
        squares += [(value - true) ** 2 for value, true in zip(values, truth, strict=True) if true < BRIGHT]
    return sqrt(sum(squares) / len(squares))


def png_size(path: str) -> tuple[int, int]:
    """Width and height as a PNG file states them."""
    with open(path, "rb") as stream:
        head = stream.read(24)
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        raise SystemExit(f"{path} is not a PNG picture")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def main(directory: str, n: int) -> None:
    size = sky_size(n)
    if png_size(f"{directory}/mosaic.png") != (size, size):
        raise SystemExit(f"mosaic.png is not {size} by {size} pixels")
    before, after = (error_of(directory, stage, n) for stage in ("projected", "corrected"))
    print(f"The mosaic differs from the true sky by {after:.2f} on average; uncorrected it would be {before:.2f}.")
    if after > TOLERANCE:
        raise SystemExit(f"That is more than {TOLERANCE}: the stray light has not been removed.")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
