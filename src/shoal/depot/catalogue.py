"""What is known of the objects of a cache: one file, to which a description is appended before its object is in place.

The last description of a name counts; those of objects that are gone are left out when the file is written anew, which
happens when most of it is of no use. One file per object would be simpler, and was: on ext4 a file made while others
have just been deleted costs up to a millisecond, as much as the transfer of a megabyte.

A description cut off by a crash, or damaged, costs that object only. Which objects are there is for the cache to say.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Collection, Iterator

import msgspec

from shoal.depot.shelf import FORMAT, Description

MARK = b"\xf1obj"
SPARE = 1000
"""Descriptions of no use that do not matter, however few objects there are."""
_HEAD = struct.Struct("<4sII")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Description).decode


class Catalogue:
    """The descriptions of one cache, on its disk. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._entries = 0

    def read(self) -> list[Description]:
        """All that is told of names, the last of each."""
        with open(self._path, "rb") as file:
            found = list(_read(file.read()))
        self._entries = len(found)
        return list({description.name: description for description in found}.values())

    def add(self, description: Description, others: Collection[Description]) -> None:
        """Appends one; `others` are those that should stay if this is the time to write all anew."""
        if self._entries > 2 * len(others) + SPARE:
            self.write(others)
        self._append(_frame(description))
        self._entries += 1

    def write(self, descriptions: Collection[Description]) -> None:
        """Replaces all that is told by these; on a full disk it stays as it is, which is longer but not wrong."""
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "wb") as file:
                file.writelines(_frame(description) for description in descriptions)
            os.rename(fresh, self._path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.unlink(fresh)
            return
        os.close(self._descriptor)
        self._descriptor = _open(self._path)
        self._size = os.fstat(self._descriptor).st_size
        self._entries = len(descriptions)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, frame: bytes) -> None:
        """The whole frame or nothing of it."""
        written = os.write(self._descriptor, frame)
        if written < len(frame):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _frame(description: Description) -> bytes:
    payload = _encode(description)
    return _HEAD.pack(MARK, len(payload), zlib.crc32(payload)) + payload


def _read(data: bytes) -> Iterator[Description]:
    """Every description that is whole; after a broken one it goes on at the next mark."""
    at = data.find(MARK)
    while 0 <= at <= len(data) - _HEAD.size:
        _, length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        payload = data[at + _HEAD.size : end]
        if len(payload) == length and zlib.crc32(payload) == checksum:
            try:
                description = _decode(payload)
            except msgspec.MsgspecError:
                pass  # of another version
            else:
                if description.version == FORMAT:
                    yield description
            at = data.find(MARK, end)
        else:
            at = data.find(MARK, at + 1)
