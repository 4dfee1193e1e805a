"""Standard output and error that take any text: names of files may be any bytes, and a locale may know few letters."""

from __future__ import annotations

import codecs
import io
import os
import sys

_ERRORS = "shoal-lenient"
SIMPLER = str.maketrans("\u2013\u2212·…━µ", "--,.=u")
"""For streams that have no letters beyond ASCII: one for one, so that widths stay."""


def open_closed_streams() -> None:
    """Leads standard streams that whoever called us has closed to nowhere. Else the next file that is opened would get
    the number of one, be it a ledger, and everybody who writes to standard output would write there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # also if that is the same number: what we start inherits it then
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  open as long as we are


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
