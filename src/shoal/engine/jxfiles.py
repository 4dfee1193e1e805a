"""What JX expressions see of the world: directories, files and URLs; and the files that hold expressions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.frontend.jx import Outside, Setting, Value

FETCH_SECONDS = 30.0
LARGEST_FETCH_BYTES = 1 << 28


class LocalFiles:
    """The world as it is, seen from the working directory."""

    def listdir(self, path: str) -> Sequence[str]:
        return os.listdir(path)

    def fetch(self, place: str) -> bytes:
        if re.search("https?://", place):
            return _download(place)
        with open(place, "rb") as stream:
            return _limited(stream.read(LARGEST_FETCH_BYTES + 1))


def read_settings(
    settings: Sequence[Setting], outside: Outside | None = None, *, first_counts: bool = False
) -> dict[str, Value]:
    """The names that settings give, in the order in which they stood on the command line."""
    from shoal.frontend.jx import read_context

    return read_context(settings, read_file, outside, first_counts=first_counts)


def read_file(path: str) -> bytes:
    """The content of a file that the user named."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", file=path) from None


def read_file_or_input(path: str | None) -> bytes:
    """The content of a file, or of standard input for None and `-`."""
    return sys.stdin.buffer.read() if path in (None, "-") else read_file(str(path))


def _download(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=FETCH_SECONDS) as answer:
            return _limited(answer.read(LARGEST_FETCH_BYTES + 1))
    except (ValueError, HTTPException) as error:
        raise OSError(str(error)) from None


def _limited(content: bytes) -> bytes:
    if len(content) > LARGEST_FETCH_BYTES:
        raise OSError(f"holds more than {LARGEST_FETCH_BYTES >> 20} MiB")
    return content
