"""Compares finished mosaics with the sky they were made of: `check.py`, in the directory of the mosaics.

The overlaps of the images tell how their backgrounds differ, but not what light all of them have too much: a plane over
the whole mosaic. That plane is taken out before comparing, with and without correction alike.
"""

from __future__ import annotations

from math import isnan, sqrt

import fits
from projection import frame_of
from sky import brightness

EVERY = 3
"""Only every so many-th pixel of every so many-th row is compared: the true sky takes long to compute."""
BRIGHT = 150.0
"""Where the sky is brighter there are stars, which projection flattens a little; the background is compared."""
TOLERANCE = 1.0
"""Noise is 0.5 in each image; stray light differs by about 30."""

Point = tuple[float, float, float]


def excess(path: str) -> list[Point]:
    """What a mosaic shows beyond the true sky, with the place of each pixel as seen from the middle."""
    cards, pixels = fits.read(path)
    width, height = int(cards["NAXIS1"]), int(cards["NAXIS2"])
    frame = frame_of(cards)
    points = []
    for y in range(0, height, EVERY):
        for x in range(0, width, EVERY):
            seen = pixels[y * width + x]
            truth = brightness(frame.direction(x + 1, y + 1))
            if truth < BRIGHT and not isnan(seen):
                points.append((x - width / 2, y - height / 2, seen - truth))
    return points


def without_plane(points: list[Point]) -> list[float]:
    """What is left of the values when the plane that fits them best is taken out."""
    columns = [[1.0] * len(points), [x for x, _, _ in points], [y for _, y, _ in points]]
    values = [value for _, _, value in points]
    # Gram and Schmidt: each column is freed of the earlier ones, then the values of each column.
    for number, column in enumerate(columns):
        for earlier in columns[:number]:
            column = freed(column, earlier)
        columns[number] = column
        values = freed(values, column)
    return values


def freed(values: list[float], of: list[float]) -> list[float]:
    share = sum(a * b for a, b in zip(values, of, strict=True)) / sum(b * b for b in of)
    return [a - share * b for a, b in zip(values, of, strict=True)]


def error_of(path: str) -> float:
    points = excess(path)
    if len(points) < 1000:
        raise SystemExit(f"{path} shows only {len(points)} pixels of sky")
    return sqrt(sum(value**2 for value in without_plane(points)) / len(points))


def main() -> None:
    before, after = error_of("uncorrected.fits"), error_of("mosaic.fits")
    print(f"The mosaic differs from the sky by {after:.2f} (root mean square); uncorrected it is {before:.2f}.")
    if after > TOLERANCE:
        raise SystemExit(f"more than {TOLERANCE}: the stray light has not been removed")


if __name__ == "__main__":
    main()
