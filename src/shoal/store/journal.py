"""A file of records that is only appended to: what a server must do again to be where it was when it was killed.

Frames are those of the ledger in small (mark, length, checksum, payload), but reading is stricter: a ledger may lose a
record and is still a ledger, while what follows a lost step leads elsewhere. So a record that is cut off at the end,
because the server was killed while it wrote, is dropped; damage with whole records behind it is an error.

A record that `append` has returned from survives the end of this process. `sync` makes it survive that of the machine.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO
from zlib import crc32

from shoal.errors import RunError

MARK = b"\xf5SHJ"
_HEADER = struct.Struct("<4sII")


class Journal:
    """One file, opened by one process."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(f"cannot open the journal {path}: {error.strerror}") from None
        self._end = os.fstat(self._descriptor).st_size
        self._is_dirty = False

    def records(self) -> Iterator[bytes]:
        """All records from the beginning; called once, before anything is appended. Cuts off what is not whole."""
        end = 0
        with open(self.path, "rb") as file:
            while (record := _read_frame(file)) is not None:
                end = file.tell()
                yield record
            file.seek(end)
            if _has_whole_frame(file.read()):
                raise RunError(f"the journal {self.path} is damaged at byte {end}: what follows cannot be relied on")
        os.ftruncate(self._descriptor, end)
        self._end = end

    def append(self, record: bytes) -> None:
        """Writes a record wholly, or raises RunError and has written nothing."""
        data = _HEADER.pack(MARK, len(record), crc32(record)) + record
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise RunError(f"cannot write the journal {self.path}: {error.strerror}") from None
        self._end += written
        self._is_dirty = True

    def restart(self) -> None:
        """Drops all records."""
        os.ftruncate(self._descriptor, 0)
        self._end = 0

    def sync(self) -> None:
        """What was appended is on the disk when this returns."""
        if self._is_dirty:
            self._is_dirty = False
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                raise RunError(f"cannot write the journal {self.path}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """Closes the file and removes it."""
        os.unlink(self.path)
        self.close()


def _read_frame(file: BinaryIO) -> bytes | None:
    """The next record; None if there is no whole one at this place."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    mark, length, checksum = _HEADER.unpack(header)
    if mark != MARK:
        return None
    record = file.read(length)
    return record if len(record) == length and crc32(record) == checksum else None


def _has_whole_frame(data: bytes) -> bool:
    at = data.find(MARK)
    while at >= 0:
        if at + _HEADER.size <= len(data):
            _, length, checksum = _HEADER.unpack_from(data, at)
            record = data[at + _HEADER.size : at + _HEADER.size + length]
            if len(record) == length and crc32(record) == checksum:
                return True
        at = data.find(MARK, at + 1)
    return False
