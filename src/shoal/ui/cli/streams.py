"""Standard output and error that accept any text: file names may hold any bytes, and a locale may know few letters."""

from __future__ import annotations

import codecs
import io
import os
import sys

_ERRORS = "shoal-lenient"


SIMPLER = str.maketrans("\u2013\u2212·…━µ", "--,.=u")
"""ASCII replacements for streams with a limited encoding; one character each, so that widths stay the same."""


def open_closed_streams() -> None:
    """Redirects standard streams that the caller has closed to /dev/null.

    Otherwise the next opened file, even the ledger, would get the descriptor of such a stream, and everything printed
    would be written into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # also if the number is the same, so that child processes inherit it
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  open until the process ends


def print_anything() -> None:
    """Makes standard output and error accept any text."""
    codecs.register_error(_ERRORS, _lenient)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _lenient(error: UnicodeError) -> tuple[str | bytes, int]:
    """Writes surrogates as the bytes they came from, and characters outside the encoding as a simpler one or `?`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    return b"".join(map(_instead_of, piece)), error.end


def _instead_of(letter: str) -> bytes:
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00])
    return chr(SIMPLER.get(ord(letter), ord("?"))).encode("ascii")
