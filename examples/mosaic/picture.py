"""From tiles to a picture: joining images, turning three bands into colours, and writing PNG."""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence

from images import OVERLAP, PITCH, Image


def beside(images: Sequence[Image]) -> Image:
    """One image from neighbours in a row of the grid, blended where they overlap."""
    height = images[0].height
    width = (len(images) - 1) * PITCH + images[0].width
    lines = (blend([image.row(row) for image in images], width) for row in range(height))
    return Image(width, height, images[0].x, images[0].y, array("f", [value for line in lines for value in line]))


def below(images: Sequence[Image]) -> Image:
    """One image from neighbours in a column of the grid."""
    turned = beside([transpose(image) for image in images])
    return transpose(turned)


def transpose(image: Image) -> Image:
    columns = [image.pixels[column :: image.width] for column in range(image.width)]
    pixels = array("f", [value for column in columns for value in column])
    return Image(image.height, image.width, image.y, image.x, pixels)


def blend(lines: Sequence[array[float]], width: int) -> array[float]:
    """Lays lines one pitch apart; in an overlap the weight moves evenly from one to the next."""
    result = array("f", bytes(4 * width))
    for number, line in enumerate(lines):
        start = number * PITCH
        skip = OVERLAP if number else 0
        for i in range(skip):
            share = (i + 0.5) / OVERLAP
            result[start + i] += (line[i] - result[start + i]) * share
        result[start + skip : start + len(line)] = line[skip:]
    return result


def colours(bands: Sequence[Image], shrink: int = 1) -> list[bytes]:
    """Rows of red, green and blue bytes; faint light is lifted, bright light keeps its colour."""
    rows = []
    for y in range(0, bands[0].height - shrink + 1, shrink):
        channels = [shrunk_row(band, y, shrink) for band in bands]
        row = bytearray()
        for red, green, blue in zip(*channels, strict=True):
            light = (red + green + blue) / 3 + 8.0
            factor = 54.0 * math.asinh(light / 14.0) / light if light > 0 else 0.0
            for value in (red, green, blue):
                level = int((value + 8.0) * factor)
                row.append(0 if level < 0 else min(level, 255))
        rows.append(bytes(row))
    return rows


def shrunk_row(image: Image, y: int, shrink: int) -> Sequence[float]:
    """The means of squares of shrink by shrink pixels."""
    if shrink == 1:
        return image.row(y)
    lines = [image.row(y + i) for i in range(shrink)]
    sums = [sum(column) for column in zip(*lines, strict=True)]
    return [sum(sums[x : x + shrink]) / shrink**2 for x in range(0, len(sums) - shrink + 1, shrink)]


def write_png(path: str, rows: Sequence[bytes]) -> None:
    """Writes rows of red, green and blue bytes as a PNG picture."""
    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    with open(path, "wb") as stream:
        stream.write(b"\x89PNG\r\n\x1a\n")
        stream.writelines(chunk(kind, body) for kind, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def side_by_side(left: Iterable[bytes], right: Iterable[bytes], gap: int = 8) -> list[bytes]:
    """Two pictures of the same height with a white line between them."""
    return [one + b"\xff" * (3 * gap) + other for one, other in zip(left, right, strict=True)]
