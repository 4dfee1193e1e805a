"""Standard output and error that take any text: names of files may be any bytes, and a locale may know few letters."""

from __future__ import annotations

import codecs
import io
import sys

_ERRORS = "shoal-lenient"


def print_anything() -> None:
    """Has standard output and error take any text."""
    codecs.register_error(_ERRORS, _lenient)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _lenient(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes that came in as surrogates go out as they were; what the encoding does not have becomes a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    found = b"".join(bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else b"?" for c in piece)
    return found, error.end
