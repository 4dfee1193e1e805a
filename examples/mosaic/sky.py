"""The sky of the mosaic example as it really is: stars, a spiral galaxy and a faint nebula, in three colours.

It is made up, but always the same, so the finished mosaic can be compared with it. How telescopes see it is left to
`observe.py`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import atan2, cos, exp, log, pi, sin, sqrt
from random import Random

from images import BANDS, sky_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REACH = 0.56
"""Of the galaxy, as a share of the sky's width."""
TURN, TILT, WINDING = 0.6, 1.7, 6.5
"""How the galaxy lies: turned in the picture, tilted away from us, and how tightly its arms are wound."""
STAR_RADIUS = 3.0
"""Of a star's soft profile, in pixels: what the air makes of a point."""
FAINTEST = 0.02
STARS_PER_PIXEL = 0.0013
WAVES = ((2.1, 1.3, 0.4), (3.7, -2.9, 2.0), (-1.2, 4.6, 4.1))
"""Half waves across and down the sky, and where each begins."""
NEBULA = (0.55, 0.28, 0.75)
BULGE = (1.0, 0.78, 0.5)
DISK = (0.75, 0.72, 0.8)
ARMS = (0.5, 0.72, 1.0)
DUST = (0.35, 0.5, 0.65)
KNOT = (1.0, 0.35, 0.6)
COOL, WHITE, HOT = (1.0, 0.7, 0.42), (1.0, 0.97, 0.92), (0.62, 0.8, 1.0)


def look(band: str, n: int, xs: Sequence[float], ys: Sequence[float]) -> array[float]:
    """The brightness in one band at every crossing of columns xs and rows ys, both in ascending order."""
    colour = BANDS.index(band)
    size = sky_size(n)
    pixels = nebula(colour, size, xs, ys)
    add_galaxy(pixels, colour, size, xs, ys)
    for x, y, peak, tint in points(size):
        add_point(pixels, x, y, peak * tint[colour], xs, ys)
    return pixels


def nebula(colour: int, size: int, xs: Sequence[float], ys: Sequence[float]) -> array[float]:
    """Clouds: long waves across each other, squared so that they have dark gaps."""
    columns = [[(sin(pi * across * x / size), cos(pi * across * x / size)) for x in xs] for across, _, _ in WAVES]
    pixels = array("f")
    for y in ys:
        total = [0.8] * len(xs)
        for (_, down, phase), column in zip(WAVES, columns, strict=True):
            turn = pi * down * y / size + phase
            sine, cosine = sin(turn), cos(turn)
            total = [t + sine * c + cosine * s for t, (s, c) in zip(total, column, strict=True)]
        pixels.extend([1.1 * NEBULA[colour] * t * t for t in total])
    return pixels


def add_galaxy(pixels: array[float], colour: int, size: int, xs: Sequence[float], ys: Sequence[float]) -> None:
    """A bright old centre, a disk, two arms of young stars, and dust along their inner sides."""
    centre = size / 2
    along, aside = cos(TURN) / (REACH * size), sin(TURN) / (REACH * size)
    bulge, disk, arms, dust = 420.0 * BULGE[colour], 45.0 * DISK[colour], 170.0 * ARMS[colour], DUST[colour]
    at = -1
    for y in ys:
        from_x, from_y = (y - centre) * aside, (y - centre) * along
        for x in xs:
            at += 1
            u = (x - centre) * along + from_x
            v = (from_y - (x - centre) * aside) * TILT
            square = u * u + v * v
            if square >= 1.0:
                continue
            r = sqrt(square) + 1e-6
            phase = 2.0 * atan2(v, u) - WINDING * log(r + 0.03)
            arm = exp(2.6 * cos(phase) - 2.6) * (4.0 * r if r < 0.25 else 1.0)
            dark = dust * exp(4.0 * cos(phase - 0.9) - 4.0) * (6.0 * r if r < 0.16 else 1.0)
            glow = exp(-r / 0.32) * (1.0 - square) ** 2
            inner = bulge * exp(-9.0 * sqrt(square + 0.0003)) * (1.0 - r) ** 3
            pixels[at] += (1.0 - dark) * (glow * (disk + arms * arm) + inner)


def points(size: int) -> list[tuple[float, float, float, tuple[float, ...]]]:
    """Stars, few of them bright, and glowing knots in the galaxy's arms: position, brightness and colour."""
    dice = Random(2006)
    found = []
    for _ in range(int(STARS_PER_PIXEL * size * size)):
        x, y = dice.uniform(-10, size + 10), dice.uniform(-10, size + 10)
        peak = min(2000.0, 10.0 / max(dice.random(), 1e-4) ** 0.95)
        heat = dice.random()
        first, second, share = (COOL, WHITE, 2 * heat) if heat < 0.5 else (WHITE, HOT, 2 * heat - 1)
        found.append((x, y, peak, tuple(a + (b - a) * share for a, b in zip(first, second, strict=True))))
    for _ in range(size // 8):
        r = dice.uniform(0.12, 0.72)
        turn = (WINDING * log(r + 0.03) + dice.gauss(0, 0.35)) / 2 + pi * dice.randrange(2)
        u, v = r * cos(turn) * REACH * size, r * sin(turn) * REACH * size / TILT
        x = size / 2 + u * cos(TURN) - v * sin(TURN)
        y = size / 2 + u * sin(TURN) + v * cos(TURN)
        found.append((x, y, dice.uniform(15, 70), KNOT))
    return found


def add_point(pixels: array[float], x: float, y: float, peak: float, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Adds a soft profile (Moffat's) as far out as it can be seen."""
    if peak <= FAINTEST:
        return
    reach = STAR_RADIUS * sqrt((peak / FAINTEST) ** (1 / 3) - 1)
    left, right = bisect_left(xs, x - reach), bisect_left(xs, x + reach)
    for row in range(bisect_left(ys, y - reach), bisect_left(ys, y + reach)):
        down = (ys[row] - y) ** 2
        for column in range(left, right):
            distance = ((xs[column] - x) ** 2 + down) / STAR_RADIUS**2
            pixels[row * len(xs) + column] += peak / (1.0 + distance) ** 3
