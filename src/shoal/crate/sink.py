"""Crates being written: as a directory or as one ZIP file, which is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable
from typing import IO, Protocol

import msgspec

from shoal.crate.entities import CONTEXT, Entity
from shoal.engine.removal import remove_quietly
from shoal.engine.trees import make_directories
from shoal.errors import InputError

METADATA = "ro-crate-metadata.json"
_PIECE_BYTES = 1 << 20
_BATCH = 1000


class Sink(Protocol):
    """Where a crate goes."""

    def add(self, place: str, source: str) -> tuple[int, str]:
        """Copies a file to a place in the crate; returns its size and SHA-256."""

    def add_directory(self, place: str) -> None:
        """Makes a directory in the crate."""

    def describe(self, entities: Iterable[Entity]) -> None:
        """Writes the metadata."""

    def finish(self) -> None:
        """Puts the crate where it was wanted."""

    def abandon(self) -> None:
        """Removes what was written."""


def open_sink(path: str) -> Sink:
    """A ZIP file if the name says so, else a directory, which must not be there or be empty."""
    return ZipSink(path) if path.lower().endswith(".zip") else DirectorySink(path.rstrip("/") or path)


class DirectorySink:
    """Writes beside the directory that is wanted, and gives it its name in the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
            what = "is not empty" if os.path.isdir(path) else "is there already and is no directory"
            raise InputError(f"{path!r} {what}", remedy="remove it, or name another with -o")
        self._fresh = f"{path}.new-{os.getpid()}"
        os.mkdir(self._fresh)

    def _at(self, place: str) -> str:
        path = os.path.join(self._fresh, place)
        make_directories(os.path.dirname(path))
        return path

    def add(self, place: str, source: str) -> tuple[int, str]:
        with open(source, "rb") as original, open(self._at(place), "wb") as copy:
            return _copy(original, copy)

    def add_directory(self, place: str) -> None:
        make_directories(self._at(place))

    def describe(self, entities: Iterable[Entity]) -> None:
        with open(os.path.join(self._fresh, METADATA), "wb", _PIECE_BYTES) as file:
            write_metadata(file, entities)

    def finish(self) -> None:
        os.rename(self._fresh, self._path)

    def abandon(self) -> None:
        remove_quietly(self._fresh)


class ZipSink:
    """Writes beside the file that is wanted, and takes its place in the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.isdir(path):
            raise InputError(f"{path!r} is a directory", remedy="remove it, or name another with -o")
        self._fresh = f"{path}.new-{os.getpid()}"
        self._file = open(self._fresh, "wb")  # noqa: SIM115  open until the crate is finished or abandoned
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False)

    def add(self, place: str, source: str) -> tuple[int, str]:
        with open(source, "rb") as original, self._zip.open(place, "w", force_zip64=True) as copy:
            return _copy(original, copy)

    def add_directory(self, place: str) -> None:
        self._zip.writestr(f"{place}/", b"")

    def describe(self, entities: Iterable[Entity]) -> None:
        with self._zip.open(METADATA, "w", force_zip64=True) as file:
            write_metadata(file, entities)

    def finish(self) -> None:
        self._zip.close()
        self._file.close()
        os.replace(self._fresh, self._path)

    def abandon(self) -> None:
        """Also when nothing more can be written, as on a full disk: then even closing fails."""
        self._zip.fp = None  # else it would write its table of contents now or when it is collected
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is not wanted any more
        finally:
            os.unlink(self._fresh)


def _copy(original: IO[bytes], copy: IO[bytes]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while piece := original.read(_PIECE_BYTES):
        digest.update(piece)
        copy.write(piece)
        size += len(piece)
    return size, digest.hexdigest()


def write_metadata(file: IO[bytes], entities: Iterable[Entity]) -> None:
    """The JSON-LD document, one entity to a line, so that a large one is never in memory as a whole."""
    encode = msgspec.json.Encoder().encode
    file.write(b'{"@context": ' + encode(CONTEXT) + b',\n"@graph": [\n')
    batch: list[bytes] = []
    separator = b""
    for entity in entities:
        batch.append(encode(entity))
        if len(batch) == _BATCH:
            file.write(separator + b",\n".join(batch))
            separator = b",\n"
            batch.clear()
    file.write((separator if batch else b"") + b",\n".join(batch) + b"\n]}\n")
