"""False backgrounds: the plane in a difference of two images, and from all of these the plane that is in each image.

A plane is three numbers: brightness at the sky's origin, and its rise to the right and down per `SLOPE_PIXELS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from images import SLOPE_PIXELS, TILE, Image, tile_origin

Plane = tuple[float, float, float]
Matrix = tuple[Plane, Plane, Plane]
NOTHING: Plane = (0.0, 0.0, 0.0)
ROUNDS = 3
CLIP = 4.0
"""Pixels so many times further off than half of all are left out."""


class Fit(NamedTuple):
    """The plane in a difference, and what it rests on: sums of products of 1, x and y over the pixels used."""

    plane: Plane
    moments: Matrix


def fit_plane(image: Image) -> Fit:
    """Fits a plane; pixels far from it, mostly where a star is, are left out in the next round."""
    steps = range(image.width)
    points = [
        (
            1.0,
            (image.x + column) / SLOPE_PIXELS,
            (image.y + row) / SLOPE_PIXELS,
            image.pixels[row * image.width + column],
        )
        for row in range(image.height)
        for column in steps
    ]
    for _ in range(ROUNDS):
        moments, sums = gather(points)
        plane = solve(moments, sums)
        errors = [value - plane[0] - plane[1] * x - plane[2] * y for _, x, y, value in points]
        limit = CLIP * sorted(map(abs, errors))[len(errors) // 2]
        points = [point for point, error in zip(points, errors, strict=True) if abs(error) <= limit]
    return Fit(plane, moments)


def gather(points: Sequence[tuple[float, float, float, float]]) -> tuple[Matrix, Plane]:
    """The sums that a least-squares plane is made of."""
    n, xs, ys, values = (sum(column) for column in zip(*points, strict=True))
    xx = xy = yy = xv = yv = 0.0
    for _, x, y, value in points:
        xx += x * x
        xy += x * y
        yy += y * y
        xv += x * value
        yv += y * value
    return ((n, xs, ys), (xs, xx, xy), (ys, xy, yy)), (values, xv, yv)


def solve(matrix: Matrix, right: Plane) -> Plane:
    """Cramer's rule for three unknowns."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    p, q, r = right
    minors = e * i - f * h, f * g - d * i, d * h - e * g
    whole = a * minors[0] + b * minors[1] + c * minors[2]
    return (
        (p * minors[0] + b * (f * r - q * i) + c * (q * h - e * r)) / whole,
        (a * (q * i - f * r) + p * minors[1] + c * (d * r - q * g)) / whole,
        (a * (e * r - q * h) + b * (q * g - d * r) + p * minors[2]) / whole,
    )


def balance(fits: Mapping[tuple[str, str], Fit], reference: str, rounds: int = 500) -> dict[str, Plane]:
    """The plane to take from each image so that all overlaps agree as well as they can.

    Least squares by conjugate gradients, each step scaled by what an image's own overlaps say. Only differences are
    known, so one plane common to all images stays free; it is chosen so that nothing is taken from the reference.
    """
    own = own_moments(fits)
    planes = dict.fromkeys(own, NOTHING)
    rest = pull(fits, {pair: fit.plane for pair, fit in fits.items()})
    scaled = {tile: solve(own[tile], rest[tile]) for tile in own}
    step, size = scaled, product(rest, scaled)
    enough = size * 1e-14
    for _ in range(rounds):
        if size <= enough:
            break
        answer = pull(fits, {(one, other): add(step[one], step[other], -1.0) for one, other in fits})
        length = size / product(step, answer)
        planes = {tile: add(planes[tile], step[tile], length) for tile in own}
        rest = {tile: add(rest[tile], answer[tile], -length) for tile in own}
        scaled = {tile: solve(own[tile], rest[tile]) for tile in own}
        before, size = size, product(rest, scaled)
        step = {tile: add(scaled[tile], step[tile], size / before) for tile in own}
    return {tile: add(plane, planes[reference], -1.0) for tile, plane in planes.items()}


def seen_from(tile: str, plane: Plane) -> Plane:
    """The same plane with the brightness in the middle of a tile instead of that at the sky's origin."""
    x, y = (corner + TILE / 2 for corner in tile_origin(tile))
    level, across, down = plane
    return level + across * x / SLOPE_PIXELS + down * y / SLOPE_PIXELS, across, down


def own_moments(fits: Mapping[tuple[str, str], Fit]) -> dict[str, Matrix]:
    """For each image the sum over its overlaps."""
    total: dict[str, Matrix] = {}
    for pair, fit in fits.items():
        for tile in pair:
            rows = zip(total.get(tile, (NOTHING, NOTHING, NOTHING)), fit.moments, strict=True)
            a, b, c = (add(row, more) for row, more in rows)
            total[tile] = (a, b, c)
    return total


def pull(fits: Mapping[tuple[str, str], Fit], gaps: Mapping[tuple[str, str], Plane]) -> dict[str, Plane]:
    """How strongly gaps between neighbours pull at each image."""
    total: dict[str, Plane] = {}
    for (one, other), fit in fits.items():
        x, y, z = gaps[one, other]
        a, b, c = fit.moments
        force = (dot(a, (x, y, z)), dot(b, (x, y, z)), dot(c, (x, y, z)))
        total[one] = add(total.get(one, NOTHING), force)
        total[other] = add(total.get(other, NOTHING), force, -1.0)
    return total


def add(one: Plane, other: Plane, share: float = 1.0) -> Plane:
    return one[0] + share * other[0], one[1] + share * other[1], one[2] + share * other[2]


def dot(one: Plane, other: Plane) -> float:
    return one[0] * other[0] + one[1] * other[1] + one[2] * other[2]


def product(one: Mapping[str, Plane], other: Mapping[str, Plane]) -> float:
    return sum(dot(one[tile], other[tile]) for tile in one)
