"""Reads and writes the simplest kind of FITS file: one image of floating-point pixels.

A FITS file is a header of 80-character cards and then the pixels, big-endian and row by row, each filled up to whole
blocks. What the cards mean on the sky is left to `projection.py`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping

BLOCK = 2880
CARD = 80
Card = bool | int | float | str


def write(path: str, width: int, pixels: array[float], cards: Mapping[str, Card]) -> None:
    """Writes rows of pixels with some cards beyond those every image has."""
    size: dict[str, Card] = {"NAXIS": 2, "NAXIS1": width, "NAXIS2": len(pixels) // width}
    header = "".join(card(key, value) for key, value in ({"SIMPLE": True, "BITPIX": -32} | size | dict(cards)).items())
    body = array("f", pixels)
    if sys.byteorder == "little":
        body.byteswap()
    with open(path, "wb") as stream:
        stream.write(filled((header + "END".ljust(CARD)).encode("ascii"), b" "))
        stream.write(filled(body.tobytes(), b"\0"))


def card(key: str, value: Card) -> str:
    match value:
        case bool():
            text = "T" if value else "F"
        case str():
            return f"{key:8}= '{value:8}'".ljust(CARD)
        case _:
            text = repr(value).upper()
    return f"{key:8}= {text:>20}".ljust(CARD)


def filled(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % BLOCK)


def read(path: str) -> tuple[dict[str, str], array[float]]:
    """The cards of an image, as text without quotes, and its pixels."""
    with open(path, "rb") as stream:
        data = stream.read()
    cards: dict[str, str] = {}
    at = 0
    while (line := data[at : at + CARD].decode("ascii"))[:8].strip() != "END":
        if not line:
            raise SystemExit(f"{path} is not a FITS file: its header has no end")
        if line[8:10] == "= ":
            cards[line[:8].strip()] = value_of(line)
        at += CARD
    start = at + CARD + -(at + CARD) % BLOCK
    # -32 and -64 stand for single and double precision.
    pixels = array("d" if cards["BITPIX"] == "-64" else "f")
    size = int(cards["NAXIS1"]) * int(cards["NAXIS2"]) * pixels.itemsize
    pixels.frombytes(data[start : start + size])
    if sys.byteorder == "little":
        pixels.byteswap()
    return cards, pixels


def value_of(line: str) -> str:
    """What a card says: the text between quotes, or all up to the comment."""
    text = line[10:].strip()
    return text[1:].split("'")[0].strip() if text.startswith("'") else text.split("/")[0].strip()
