"""The opening of a connection: the service that it is for, and proofs that both sides know the token.

    client: hello (MAGIC, service, 32 random bytes)
    server: hello, proof(SERVER)
    client: proof(CLIENT)

A proof is an HMAC with the token over the role, both hellos and the *binding*: the digest of the certificate that the
client saw and the server showed (empty without encryption). A recorded proof is worth nothing, because the random bytes
of the other side are new each time. A proof cannot be reflected, because the roles differ. It cannot be used for
another service, because the hellos name the service. A man in the middle shows another certificate. The server proves
itself first, so a client with a wrong token learns that before it sends a request. No I/O here.
"""

from __future__ import annotations

import hmac
import struct

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
