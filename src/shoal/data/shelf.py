"""The interface of object storage (`ObjectShelf`), descriptions of objects, and checksums of files."""

from __future__ import annotations

import os
import stat
from typing import Protocol

import msgspec

from shoal.data.transfer_messages import CHUNK_BYTES, chunk_count, chunk_length, crc, whole
from shoal.errors import InputError, ShoalError

FORMAT = 1


class AbsentError(ShoalError):
    """There is no object of that name here."""


class DamagedError(ShoalError):
    """The bytes do not match their checksum."""


class ObjectDescription(msgspec.Struct, frozen=True):
    """Facts about an object: enough to check it, to serve it and to decide whether to keep it."""

    name: str
    size: int
    checksum: int
    chunks: bytes
    """CRC-32 of each chunk, four bytes each, little-endian."""
    executable: bool = False
    precious: bool = False
    """The only known copy: never evicted."""
    seconds_to_get: float = 0.0
    version: int = FORMAT

    def chunk_checksum(self, index: int) -> int:
        return int.from_bytes(self.chunks[4 * index : 4 * index + 4], "little")


class OpenedObject(msgspec.Struct, frozen=True):
    """An object opened for sending; the caller closes the descriptor."""

    descriptor: int
    description: ObjectDescription


class ObjectShelf(Protocol):
    """Keeps objects. Thread-safe."""

    def open(self, name: str) -> OpenedObject | None:
        """Opens an object; None if it is not here."""


def pack_chunks(chunks: list[int]) -> bytes:
    return b"".join(one.to_bytes(4, "little") for one in chunks)


def read_chunks(descriptor: int, size: int, count: int | None = None) -> list[int]:
    """Returns the checksums of the first chunks of a file of that size; by default of all chunks."""
    if count is None:
        count = chunk_count(size)
    buffer = memoryview(bytearray(min(size, CHUNK_BYTES) if count else 0))
    sums = []
    for index in range(count):
        length, filled = chunk_length(size, index), 0
        while filled < length:
            got = os.preadv(descriptor, [buffer[filled:length]], index * CHUNK_BYTES + filled)
            if got == 0:
                raise DamagedError("a file became shorter while it was read")
            filled += got
        sums.append(crc(buffer[:length]))
    return sums


def describe(path: str, name: str, *, precious: bool, seconds_to_get: float) -> ObjectDescription:
    """Reads a file once and describes it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a regular file, so it cannot be stored or sent")
        chunks = read_chunks(descriptor, found.st_size)
    finally:
        os.close(descriptor)
    return ObjectDescription(
        name,
        found.st_size,
        whole(chunks, found.st_size),
        pack_chunks(chunks),
        bool(found.st_mode & 0o111),
        precious,
        seconds_to_get,
    )
