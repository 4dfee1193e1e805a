"""Protocol of the service `OBJECTS`: requests for chunks of objects and their replies, as bytes; proofs and checksums.
Pure.

Each request is for one chunk of one object. Replies come in the order of the requests.
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
"""Names of the services: objects of a cache and lent files, shared memory."""

_HELLO = struct.Struct(f"{len(MAGIC)}s8s{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size


class BadMessageError(ConnectionError):
    """The peer sent something that its service does not define."""


class RefusedError(ShoalError):
    """The peer does not know the token, or is not a data service of Shoal."""


class DataGrant(msgspec.Struct, frozen=True):
    """An address and the token that opens a connection to it. Sent only over authenticated channels."""

    host: str
    port: int
    token: bytes
    encrypted: bool = True


def encode_hello(service: bytes, nonce: bytes) -> bytes:
    return _HELLO.pack(MAGIC, service, nonce)


def service_of(hello: bytes) -> bytes:
    """Returns the service that a hello names."""
    magic, service, _ = _HELLO.unpack(hello)
    if magic != MAGIC:
        raise BadMessageError("the peer is not a client of Shoal")
    return bytes(service).rstrip(b"\0")


def proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes, binding: bytes) -> bytes:
    return hmac.digest(token, role + client_hello + server_hello + binding, "sha256")


def same(expected: bytes, given: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(expected, given)


CHUNK_BYTES = 2 << 20
"""Bytes of a chunk: the unit of requests, checks and retries. Part of the protocol and of the format of caches."""

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the highest bit is the lowest power, as in CRC-32."""


def chunk_count(size: int) -> int:
    """Returns the number of chunks of an object; an empty object has one empty chunk."""
    return max(1, -(-size // CHUNK_BYTES))


def chunk_length(size: int, index: int) -> int:
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


def crc(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Returns the CRC-32 of some bytes, or continues it from `before`."""
    return zlib.crc32(data, before)


def whole(chunks: Sequence[int], size: int) -> int:
    """Returns the CRC-32 of an object from those of its chunks."""
    result = 0
    for index, one in enumerate(chunks):
        result = combine(result, one, chunk_length(size, index)) if index else one
    return result


def combine(first: int, second: int, second_bytes: int) -> int:
    """Returns the CRC-32 of two texts one after the other, from both and the length of the second.

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
    """The product of two polynomials, modulo that of CRC-32."""
    result = 0
    for position in range(31, -1, -1):
        if first >> position & 1:
            result ^= second
        second = second >> 1 ^ _POLYNOMIAL if second & 1 else second >> 1
    return result


SENT, ABSENT, DIFFERENT = 0, 1, 2
"""Status of a reply: the bytes follow, there is no such object, or it has another size."""
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
    """The head of a reply; with `SENT`, `length` bytes follow."""

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
    """Returns how many bytes of the name follow the fixed part of a request."""
    length: int = _REQUEST.unpack(head)[0]
    if not 0 < length <= LONGEST_NAME_BYTES:
        raise BadMessageError("a request without a valid name")
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
    """Decodes the head of the reply to a request for so many bytes."""
    answer = ObjectReply(*_ANSWER.unpack(data))
    if answer.status > DIFFERENT or (answer.status == SENT and answer.length != expected_length):
        raise BadMessageError("a reply that does not match the request")
    return answer
