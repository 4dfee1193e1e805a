"""The tangent-plane projection of the sky (`RA---TAN`, `DEC--TAN`): from pixels to directions, to a plane and back."""

from __future__ import annotations

from collections.abc import Mapping
from math import asin, atan2, cos, degrees, hypot, radians, sin
from typing import NamedTuple


class Frame(NamedTuple):
    """Where an image looks: what pixel (x, y), counted from 1, shows in the middle, at what scale and how turned."""

    ra: float
    dec: float
    x: float
    y: float
    scale: float
    """Degrees per pixel; to the right is west."""
    turn: float
    """Degrees."""

    def cards(self) -> dict[str, float | str]:
        return {
            "CTYPE1": "RA---TAN",
            "CTYPE2": "DEC--TAN",
            "CRVAL1": self.ra,
            "CRVAL2": self.dec,
            "CRPIX1": self.x,
            "CRPIX2": self.y,
            "CDELT1": -self.scale,
            "CDELT2": self.scale,
            "CROTA2": self.turn,
            "EQUINOX": 2000.0,
        }

    def direction(self, x: float, y: float) -> tuple[float, float]:
        """Right ascension and declination, in degrees, of a pixel."""
        across, up = radians(-self.scale * (x - self.x)), radians(self.scale * (y - self.y))
        turn = radians(self.turn)
        east, north = across * cos(turn) - up * sin(turn), across * sin(turn) + up * cos(turn)
        return from_plane(self.ra, self.dec, east, north)


def frame_of(cards: Mapping[str, str]) -> Frame:
    """The frame that the header of an image states."""
    return Frame(*(float(cards[name]) for name in ("CRVAL1", "CRVAL2", "CRPIX1", "CRPIX2", "CDELT2", "CROTA2")))


def from_plane(ra: float, dec: float, east: float, north: float) -> tuple[float, float]:
    """The direction of a point on the plane that touches the sky at (ra, dec)."""
    middle = radians(dec)
    depth = cos(middle) - north * sin(middle)
    length = hypot(1.0, east, north)
    return ra + degrees(atan2(east, depth)), degrees(asin((sin(middle) + north * cos(middle)) / length))


def to_plane(ra: float, dec: float, direction: tuple[float, float]) -> tuple[float, float]:
    """Where a direction meets the plane that touches the sky at (ra, dec), eastwards and northwards."""
    middle, away = radians(dec), radians(direction[0] - ra)
    height = radians(direction[1])
    depth = sin(middle) * sin(height) + cos(middle) * cos(height) * cos(away)
    east = cos(height) * sin(away)
    north = cos(middle) * sin(height) - sin(middle) * cos(height) * cos(away)
    return east / depth, north / depth
