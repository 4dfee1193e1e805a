"""Standard output and error that take any text: names of files may be any bytes, and a locale may know few letters."""

from __future__ import annotations

import codecs
import io
import sys

_ERRORS = "shoal-lenient"
SIMPLER = str.maketrans("\u2013·…━", "-,.=")
"""For streams that have no letters beyond ASCII: one for one, so that widths stay."""


def print_anything() -> None:
    """Has standard output and error take any text."""
    codecs.register_error(_ERRORS, _lenient)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _lenient(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes that came in as surrogates go out as they were; what the encoding does not have becomes something simpler,
    or a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    return b"".join(map(_instead_of, piece)), error.end


def _instead_of(letter: str) -> bytes:
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00])
    return chr(SIMPLER.get(ord(letter), ord("?"))).encode("ascii")
