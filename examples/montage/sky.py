"""The sky of this example as it really is: soft clouds, a galaxy, stars. It is made up, but always the same."""

from __future__ import annotations

from math import cos, exp, radians, sin
from random import Random

from projection import to_plane

RA, DEC = 150.0, 30.0
"""The middle of the field, in degrees."""
SCALE = 0.002
"""Degrees per pixel of the camera; the sky itself is described in pixels from the middle, too."""
STARS = 300
STAR_WIDTH = 2.2
REACH = 5 * STAR_WIDTH
"""Beyond this distance a star is not seen."""
FIELD = 400.0
"""Stars stand at most so far from the middle, north or east."""
CELL = 32.0


def place(direction: tuple[float, float]) -> tuple[float, float]:
    """Where a direction is on the flat map of this sky, in pixels eastwards and northwards."""
    east, north = to_plane(RA, DEC, direction)
    unit = radians(SCALE)
    return east / unit, north / unit


def stars() -> dict[tuple[int, int], list[tuple[float, float, float]]]:
    """Positions and peaks of all stars that are seen in a cell of the map, by cell."""
    dice = Random(1998)
    cells: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for _ in range(STARS):
        east, north = dice.uniform(-FIELD, FIELD), dice.uniform(-FIELD, FIELD)
        peak = min(800.0, 20.0 / dice.uniform(0.01, 1.0))
        columns = range(int((east - REACH) // CELL), int((east + REACH) // CELL) + 1)
        rows = range(int((north - REACH) // CELL), int((north + REACH) // CELL) + 1)
        for cell in [(column, row) for column in columns for row in rows]:
            cells.setdefault(cell, []).append((east, north, peak))
    return cells


CELLS = stars()


def brightness(direction: tuple[float, float]) -> float:
    east, north = place(direction)
    clouds = 20.0 * sin(east / 61.0 + 0.4) * cos(north / 83.0) + 12.0 * cos((east - north) / 47.0)
    galaxy = 300.0 * exp(-((east + 0.4 * north) ** 2) / 2800.0 - (north - 0.4 * east) ** 2 / 600.0)
    light = 60.0 + clouds + galaxy
    for star_east, star_north, peak in CELLS.get((int(east // CELL), int(north // CELL)), ()):
        square = (east - star_east) ** 2 + (north - star_north) ** 2
        light += peak * exp(-square / (2 * STAR_WIDTH**2))
    return light
