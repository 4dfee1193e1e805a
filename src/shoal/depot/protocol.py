"""What two depots say to each other, as bytes: proofs that both know the token, requests, heads of answers.

A connection opens with a challenge in both directions:

    client: MAGIC, 32 random bytes
    server: MAGIC, 32 random bytes, proof(SERVER)
    client: proof(CLIENT)

A proof is an HMAC with the token over the role, both random texts and the *binding*: the digest of the certificate that
the client saw and the server showed (empty without encryption). A recorded proof is worth nothing, as the other side's
random text is new each time; one cannot be reflected, as roles differ; and somebody between the two has another
certificate. The server proves itself first, so a client with a wrong grant learns that before it says what it wants.

Then requests, answered in their order: each is one chunk of one object. No I/O here.
"""

from __future__ import annotations

import hmac
import struct

import msgspec

from shoal.depot.checksum import CHUNK_BYTES
from shoal.errors import ShoalError

MAGIC = b"shoaldp1"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
LEAST_TOKEN_BYTES = 16
SERVER, CLIENT = b"server", b"client"

SENT, ABSENT, DIFFERENT = 0, 1, 2
"""How a request is answered: with the bytes, that there is no such object, or that it has another size."""
EXECUTABLE = 1

_REQUEST = struct.Struct(">HQI")
_ANSWER = struct.Struct(">BBII")
REQUEST_BYTES, ANSWER_BYTES = _REQUEST.size, _ANSWER.size
LONGEST_NAME_BYTES = 4096


class BadMessageError(ShoalError):
    """The other side said something that a depot does not say."""


class RefusedError(ShoalError):
    """The other side does not know the token of the grant, or is not a depot."""


class Grant(msgspec.Struct, frozen=True):
    """Where an object can be had, and the secret that opens the door. Travels only over an authenticated channel."""

    host: str
    port: int
    token: bytes
    encrypted: bool = True


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


def proof(token: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes, binding: bytes) -> bytes:
    return hmac.digest(token, MAGIC + role + client_nonce + server_nonce + binding, "sha256")


def same(expected: bytes, given: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(expected, given)


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
