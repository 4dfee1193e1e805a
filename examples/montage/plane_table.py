"""Gathers the planes fitted to all overlaps in the table that mBgModel reads: `plane_table.py OVERLAPS > PLANES`.

Montage has mConcatFit for this, which Debian's package leaves out.
"""

from __future__ import annotations

import re
import sys

FIELDS = (
    *("a", "b", "c", "crpix1", "crpix2", "xmin", "xmax", "ymin", "ymax", "xcenter", "ycenter"),
    *("npixel", "rms", "boxx", "boxy", "boxwidth", "boxheight", "boxang"),
)
WIDTH = 16


def fitted(path: str) -> list[str]:
    """The values mFitplane found."""
    with open(path) as stream:
        status = stream.read()
    if 'stat="OK"' not in status:
        raise SystemExit(f"{path}: no plane was fitted: {status.strip()}")
    values = dict(re.findall(r"(\w+)=([^\",\]]+)", status))
    return [values[field] for field in FIELDS]


def main(overlaps: str) -> None:
    with open(overlaps) as stream:
        rows = [line.split() for line in stream if line[0] not in "|\\"]
    print("|" + "|".join(f"{name:>{WIDTH}}" for name in ("plus", "minus", *FIELDS)) + "|")
    for first, second, one, other, _ in rows:
        values = fitted(f"planes/{one.removesuffix('.fits')}_{other.removesuffix('.fits')}.txt")
        print(" " + " ".join(f"{value:>{WIDTH}}" for value in (first, second, *values)))


if __name__ == "__main__":
    main(sys.argv[1])
