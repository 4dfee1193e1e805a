"""The files of a crate: path in the crate, state compared with the run, size and checksum; directory and ZIP output."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Protocol

import msgspec

from shoal.errors import InputError
from shoal.execution.files.files import content_number
from shoal.execution.files.trees import list_tree, make_directories, remove_quietly
from shoal.formats.rocrate.entities import CONTEXT, Entity
from shoal.formats.rocrate.facts import CratePaths, FileFacts, encoded, path_in_crate, storable
from shoal.ledger.records import decodable
from shoal.ledger.workspace import DIRECTORY

METADATA = "ro-crate-metadata.json"
_PIECE_BYTES = 1 << 20
_BATCH = 1000


class Sink(Protocol):
    """Destination of a crate."""

    def add(self, place: str, source: str) -> tuple[int, str]:
        """Copies a file to a path in the crate; returns its size and SHA-256."""

    def add_directory(self, place: str) -> None:
        """Creates a directory in the crate."""

    def describe(self, entities: Iterable[Entity]) -> None:
        """Writes the metadata."""

    def finish(self) -> None:
        """Moves the finished crate to its destination."""

    def abandon(self) -> None:
        """Removes what was written."""


def open_sink(path: str) -> Sink:
    """Returns a ZIP file if the name ends in .zip, else a directory, which must be empty or not exist."""
    return ZipSink(path) if path.lower().endswith(".zip") else DirectorySink(path.rstrip("/") or path)


class DirectorySink:
    """Writes to a temporary directory and renames it at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
            what = "is not empty" if os.path.isdir(path) else "exists and is not a directory"
            raise InputError(f"{path!r} {what}", remedy="remove it, or choose another one with -o")
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
    """Writes to a temporary file and renames it at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        if os.path.isdir(path):
            raise InputError(f"{path!r} is a directory", remedy="remove it, or choose another one with -o")
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
        """Also works if nothing more can be written, as on a full disk: then even closing the ZIP file fails."""
        self._zip.fp = None  # otherwise it would write its table of contents now or when garbage-collected
        try:
            self._file.close()
        except OSError:
            pass  # the file is deleted anyway
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
    """Writes the JSON-LD document with one entity per line, so that it is never in memory as a whole."""
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


CHANGED = "It was changed since the run read or made it, so this describes the former content, not the present one."
GONE = "It no longer exists."
_MORE_TYPES = {".gz": "application/gzip", ".xz": "application/x-xz", ".bz2": "application/x-bzip2"}


class RecordedFiles(msgspec.Struct, frozen=True):
    """The ledger's data about files, by file number: sizes and times as `shoal plan` compares them, or -1."""

    sizes: Sequence[int]
    times: Sequence[int]
    until: float
    """When the run ended: files written later are not of the run."""


class Found(msgspec.Struct):
    """A file in its present state."""

    id: str
    place: str
    is_directory: bool = False
    is_there: bool = False
    note: str = ""


class CrateFiles:
    """The files that a crate describes, by their numbers in the graph."""

    def __init__(
        self,
        names: Sequence[str],
        figures: RecordedFiles,
        base: str,
        workflow: tuple[str, str],
        *,
        checksums: bool,
    ) -> None:
        """`workflow` is the workflow file with its path in the crate."""
        self._names, self._figures, self._base = names, figures, base
        self._checksums = checksums
        self._workflow = (os.path.join(base, workflow[0]), workflow[1])
        self._places = CratePaths(workflow[1])
        self._found: dict[int, Found] = {}
        self._by_path: dict[str, Found] = {}
        self._inside: dict[str, tuple[int, str]] = {}
        """Size and checksum of copied files, by identifier."""
        self.parts: list[str] = []
        self.changed = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, files: Iterable[int], copied: bool) -> None:
        """Adds files to the description, and to the content if `copied`. Files that were added before are unchanged."""
        for file in files:
            if file not in self._found:
                self._found[file] = self._inspect(file, copied)

    def identifiers(self, files: Iterable[int]) -> list[str]:
        """Identifiers of the described files among these, without duplicates."""
        return list(dict.fromkeys(self._found[file].id for file in files if file in self._found))

    def _path(self, file: int) -> str:
        return os.path.join(self._base, self._names[file])

    def _inspect(self, file: int, copied: bool) -> Found:
        path = os.path.normpath(self._path(file))
        known = self._by_path.get(path)
        if known is None:
            known = self._by_path[path] = self._inspect_path(path, file, copied)
        return known

    def _inspect_path(self, path: str, file: int, copied: bool) -> Found:
        if path == self._workflow[0]:
            return Found(encoded(self._workflow[1]), self._workflow[1])
        place = self._places.give(path_in_crate(self._names[file], self._base))
        found = Found("", place)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            found.note = GONE
        else:
            found.is_directory = stat.S_ISDIR(status.st_mode)
            found.is_there = found.is_directory or stat.S_ISREG(status.st_mode)
            if not self._is_as_it_was(file, path, status, copied):
                found.is_there, found.note = False, CHANGED
                self.changed += 1
        inside = copied and found.is_there
        found.id = f"{'' if inside else '#'}{encoded(place)}{'/' * found.is_directory}"
        if inside:
            self._inside[found.id] = (-1, "")
            self.parts.append(found.id)
        return found

    def _is_as_it_was(self, file: int, path: str, status: os.stat_result, copied: bool) -> bool:
        """Whether the file is unchanged since the run read or made it.

        The ledger's time may be a number computed from the content, and no record says which of the two it is. For a
        directory the ledger records only its existence.
        """
        if stat.S_ISDIR(status.st_mode):
            return max(status.st_mtime, _newest(path) if copied else 0.0) <= self._figures.until
        size, time = self._figures.sizes[file], self._figures.times[file]
        if size < 0:
            return status.st_mtime <= self._figures.until
        if status.st_size != size or not stat.S_ISREG(status.st_mode):
            return False
        return status.st_mtime_ns == time or _has_content(path, time)

    def check_output(self, output: str) -> None:
        """Refuses to write the crate into a directory that it copies, or over a file that it describes."""
        real = os.path.realpath(output)
        if output in self._by_path or real in self._by_path:
            raise InputError(f"{output!r} is a file of the workflow", remedy="choose another one with -o")
        for path, found in self._by_path.items():
            if not found.is_directory or found.id not in self._inside:
                continue
            if real.startswith(os.path.realpath(path).rstrip("/") + "/"):
                raise InputError(
                    f"the crate {output!r} would lie in {path!r}, which is copied into it",
                    remedy="choose a path outside of it with -o",
                )

    def copy_to(self, sink: Sink) -> None:
        """Copies the requested files into the crate."""
        for file, found in self._found.items():
            if self._inside.get(found.id) != (-1, ""):
                continue
            path = self._path(file)
            if found.is_directory:
                self._copy_directory(found, os.path.normpath(path), sink)
                self._inside[found.id] = (-1, "directory")
            else:
                self._inside[found.id] = sink.add(found.place, path)

    def _copy_directory(self, found: Found, path: str, sink: Sink) -> None:
        """Copies a directory without files that are copied separately and files that have changed."""
        sink.add_directory(found.place)
        for inner in sorted(_files_below(path, self._is_copied_separately)):
            known = self._by_path.get(os.path.join(path, inner))
            wanted = os.path.join(found.place, storable(inner))
            place = known.place if known is not None else self._places.give(wanted)
            sink.add(place, os.path.join(path, inner))

    def _is_copied_separately(self, path: str) -> bool:
        known = self._by_path.get(path)
        return known is not None and (known.id in self._inside or not known.is_there)

    def facts(self) -> Iterator[FileFacts]:
        """Descriptions of all files. Files that were not copied are read here for their checksums."""
        described: set[str] = {encoded(self._workflow[1])}
        for file, found in self._found.items():
            if found.id not in described:
                described.add(found.id)
                yield self._facts_of(file, found)

    def _facts_of(self, file: int, found: Found) -> FileFacts:
        name = self._names[file]
        shown = decodable(name)
        inside = found.id in self._inside
        if found.is_directory:
            return FileFacts(found.id, shown, inside, is_directory=True, note=found.note)
        size, checksum = self._inside.get(found.id, (self._figures.sizes[file], ""))
        if not inside and found.is_there and self._checksums:
            size, checksum = measured(self._path(file)) or (size, "")
        return FileFacts(
            found.id, shown, inside, size=size, sha256=checksum, encoding=encoding_of(name), note=found.note
        )


def _files_below(directory: str, is_separate: Callable[[str], bool] = lambda path: False) -> Iterator[str]:
    """Relative paths of regular files in a directory and below; links to directories are not followed.

    Shoal's own directory and paths with `is_apart` are left out.
    """
    below = list_tree(
        directory, is_left_out=lambda name: is_separate(os.path.join(directory, name)), always_left_out=(DIRECTORY,)
    )
    for entry in below:
        if entry.kind == "file" or (entry.kind == "link" and os.path.isfile(os.path.join(directory, entry.name))):
            yield entry.name


def _newest(directory: str) -> float:
    """Latest modification time of a file in the directory; 0.0 if there is none."""
    newest = 0.0
    for inner in _files_below(directory):
        try:
            newest = max(newest, os.stat(os.path.join(directory, inner)).st_mtime)
        except OSError:
            continue  # deleted in the meantime
    return newest


def _has_content(path: str, number: int) -> bool:
    try:
        return content_number(path) == number
    except OSError:
        return False


def measured(path: str) -> tuple[int, str] | None:
    """Size and SHA-256 of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return file.tell(), digest.hexdigest()
    except OSError:
        return None


def encoding_of(name: str) -> str:
    """The media type according to the file name."""
    ending = os.path.splitext(name)[1].lower()
    return mimetypes.types_map.get(ending) or _MORE_TYPES.get(ending, "application/octet-stream")
