"""Requests for chunks of objects and their answers, as bytes: the protocol of the service `OBJECTS`.

Each request is for one chunk of one object. Answers come in the order of the requests. No I/O here.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from shoal.errors import ShoalError

MAGIC = b"shoaldt1"
NONCE_BYTES = 32
PROOF_BYTES = 32
LEAST_TOKEN_BYTES = 16
SERVER, CLIENT = b"server", b"client"
OBJECTS, MEMORY = b"objects", b"memory"
"""The services: objects of a cache and lent files, shared memory."""

_HELLO = struct.Struct(f"{len(MAGIC)}s8s{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size


class BadMessageError(ConnectionError):
    """The other side sent something that its service does not define."""


class RefusedError(ShoalError):
    """The other side does not know the token, or is not a data service of Shoal."""


class DataGrant(msgspec.Struct, frozen=True):
    """An address and the token that opens a connection to it. Travels only over an authenticated channel."""

    host: str
    port: int
    token: bytes
    encrypted: bool = True


def encode_hello(service: bytes, nonce: bytes) -> bytes:
    return _HELLO.pack(MAGIC, service, nonce)


def service_of(hello: bytes) -> bytes:
    """The service that a hello names."""
    magic, service, _ = _HELLO.unpack(hello)
    if magic != MAGIC:
        raise BadMessageError("the other side is not a client of Shoal")
    return bytes(service).rstrip(b"\0")


def proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes, binding: bytes) -> bytes:
    return hmac.digest(token, role + client_hello + server_hello + binding, "sha256")


def same(expected: bytes, given: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(expected, given)


CHUNK_BYTES = 2 << 20
"""What is asked for, checked and sent again as one. Part of the protocol and of what a cache keeps."""

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the highest bit is the lowest power, as CRC-32 has it."""


def chunk_count(size: int) -> int:
    """How many chunks an object has; an empty one has one, which is empty."""
    return max(1, -(-size // CHUNK_BYTES))


def chunk_length(size: int, index: int) -> int:
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


def crc(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The CRC-32 of some bytes, or of what came `before` and these."""
    return zlib.crc32(data, before)


def whole(chunks: Sequence[int], size: int) -> int:
    """The CRC-32 of an object from those of its chunks."""
    result = 0
    for index, one in enumerate(chunks):
        result = combine(result, one, chunk_length(size, index)) if index else one
    return result


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two texts one after the other, from both and the length of the second.

    Appending n bytes multiplies the first remainder by x to the power of 8n; the rest is addition without carry.
    """
    return _product(_power(8 * second_bytes), first) ^ second


@lru_cache(maxsize=256)
def _power(exponent: int) -> int:
    """The remainder of x to that power, by repeated squaring."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _product(square, result)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(first: int, second: int) -> int:
    """Two polynomials multiplied, modulo that of CRC-32."""
    result = 0
    for position in range(31, -1, -1):
        if first >> position & 1:
            result ^= second
        second = second >> 1 ^ _POLYNOMIAL if second & 1 else second >> 1
    return result


SENT, ABSENT, DIFFERENT = 0, 1, 2
"""How a request is answered: with the bytes, that there is no such object, or that it has another size."""
EXECUTABLE = 1

_REQUEST = struct.Struct(">HQI")
_ANSWER = struct.Struct(">BBII")
REQUEST_BYTES, ANSWER_BYTES = _REQUEST.size, _ANSWER.size
LONGEST_NAME_BYTES = 4096


class ObjectRequest(msgspec.Struct, frozen=True):
    name: str
    offset: int
    length: int


class ObjectReply(msgspec.Struct, frozen=True):
    """The head of an answer; after `SENT` so many bytes follow."""

    status: int
    flags: int = 0
    length: int = 0
    checksum: int = 0


def encode_request(request: ObjectRequest) -> bytes:
    name = request.name.encode()
    if not 0 < len(name) <= LONGEST_NAME_BYTES:
        raise BadMessageError(f"the name of an object has 1 to {LONGEST_NAME_BYTES} bytes, not {len(name)}")
    return _REQUEST.pack(len(name), request.offset, request.length) + name


def name_length(head: bytes) -> int:
    """How many bytes of name follow the fixed part of a request."""
    length: int = _REQUEST.unpack(head)[0]
    if not 0 < length <= LONGEST_NAME_BYTES:
        raise BadMessageError("a request without a proper name")
    return length


def decode_request(head: bytes, name: bytes) -> ObjectRequest:
    _, offset, length = _REQUEST.unpack(head)
    if offset % CHUNK_BYTES or length > CHUNK_BYTES:
        raise BadMessageError("a request that is not for one chunk")
    try:
        return ObjectRequest(name.decode(), offset, length)
    except UnicodeDecodeError:
        raise BadMessageError("a request whose name is not text") from None


def encode_answer(answer: ObjectReply) -> bytes:
    return _ANSWER.pack(answer.status, answer.flags, answer.length, answer.checksum)


def decode_answer(data: bytes, expected_length: int) -> ObjectReply:
    """The head of the answer to a request for so many bytes."""
    answer = ObjectReply(*_ANSWER.unpack(data))
    if answer.status > DIFFERENT or (answer.status == SENT and answer.length != expected_length):
        raise BadMessageError("an answer to something else than what was asked")
    return answer
