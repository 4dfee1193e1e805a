"""Requests for chunks of objects and their answers, as bytes: the protocol of the service `OBJECTS`.

Each request is for one chunk of one object. Answers come in the order of the requests. No I/O here.
"""

from __future__ import annotations

import struct

import msgspec

from shoal.depot.checksum import CHUNK_BYTES
from shoal.depot.handshake import BadMessageError

SENT, ABSENT, DIFFERENT = 0, 1, 2
"""How a request is answered: with the bytes, that there is no such object, or that it has another size."""
EXECUTABLE = 1

_REQUEST = struct.Struct(">HQI")
_ANSWER = struct.Struct(">BBII")
REQUEST_BYTES, ANSWER_BYTES = _REQUEST.size, _ANSWER.size
LONGEST_NAME_BYTES = 4096


class Request(msgspec.Struct, frozen=True):
    name: str
    offset: int
    length: int


class Answer(msgspec.Struct, frozen=True):
    """The head of an answer; after `SENT` so many bytes follow."""

    status: int
    flags: int = 0
    length: int = 0
    checksum: int = 0


def encode_request(request: Request) -> bytes:
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


def decode_request(head: bytes, name: bytes) -> Request:
    _, offset, length = _REQUEST.unpack(head)
    if offset % CHUNK_BYTES or length > CHUNK_BYTES:
        raise BadMessageError("a request that is not for one chunk")
    try:
        return Request(name.decode(), offset, length)
    except UnicodeDecodeError:
        raise BadMessageError("a request whose name is not text") from None


def encode_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(answer.status, answer.flags, answer.length, answer.checksum)


def decode_answer(data: bytes, expected_length: int) -> Answer:
    """The head of the answer to a request for so many bytes."""
    answer = Answer(*_ANSWER.unpack(data))
    if answer.status > DIFFERENT or (answer.status == SENT and answer.length != expected_length):
        raise BadMessageError("an answer to something else than what was asked")
    return answer
