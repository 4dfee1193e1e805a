"""A key and a certificate for one serving depot, made afresh each time it starts.

The standard library speaks TLS and makes no certificates, so the few lines of DER are written here. Nobody is meant to
believe the certificate by itself (it is signed with nothing). Its key is proved in the TLS handshake, and that it is
the right one is proved with the token, over the certificate's digest (see `protocol`). The curve arithmetic is plain
and runs once; its timing is of no use to anybody on the network. Random numbers are the caller's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
"""The curve P-256 (FIPS 186-4): prime, order and base point."""

_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_P256 = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("0603550403")
_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _TEXT, _TIME = 0x30, 0x31, 0x02, 0x03, 0x04, 0x0C, 0x18

Point = tuple[int, int]


def make_identity(random_bytes: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """A certificate in DER, and both key and certificate as PEM for `ssl`."""
    secret = int.from_bytes(random_bytes(48)) % (_ORDER - 1) + 1
    x, y = _times(secret, _BASE)
    public = b"\x04" + x.to_bytes(32) + y.to_bytes(32)
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_TEXT, b"shoal depot"))))
    lifetime = _der(_SEQUENCE, _der(_TIME, b"20200101000000Z"), _der(_TIME, b"99991231235959Z"))
    algorithm = _der(_SEQUENCE, _ECDSA_SHA256)
    curve = _der(_SEQUENCE, _EC_KEY, _P256)
    serial = _der(_INTEGER, b"\x01" + random_bytes(15))
    key_info = _der(_SEQUENCE, curve, _der(_BITS, b"\0" + public))
    content = _der(_SEQUENCE, _der(0xA0, _der(_INTEGER, b"\x02")), serial, algorithm, name, lifetime, name, key_info)
    no_signature = _der(_SEQUENCE, _der(_INTEGER, b"\x01"), _der(_INTEGER, b"\x01"))
    certificate = _der(_SEQUENCE, content, algorithm, _der(_BITS, b"\0" + no_signature))
    key = _der(
        _SEQUENCE,
        _der(_INTEGER, b"\x01"),
        _der(_OCTETS, secret.to_bytes(32)),
        _der(0xA0, _P256),
        _der(0xA1, _der(_BITS, b"\0" + public)),
    )
    return certificate, _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length = len(content)
    if length < 128:
        return bytes((tag, length)) + content
    digits = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes((tag, 128 + len(digits))) + digits + content


def _pem(kind: str, data: bytes) -> bytes:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(data).decode()}-----END {kind}-----\n".encode()


def _times(scalar: int, point: Point) -> Point:
    """The point added to itself so many times."""
    result: Point | None = None
    while scalar:
        if scalar & 1:
            result = point if result is None else _sum(result, point)
        point = _sum(point, point)
        scalar >>= 1
    assert result is not None
    return result


def _sum(first: Point, second: Point) -> Point:
    """Two points added; neither the sum nor they are the point at infinity for scalars below the order."""
    if first == second:
        slope = 3 * (first[0] * first[0] - 1) * pow(2 * first[1], -1, _P)
    else:
        slope = (second[1] - first[1]) * pow(second[0] - first[0], -1, _P)
    x = (slope * slope - first[0] - second[0]) % _P
    return x, (slope * (first[0] - x) - first[1]) % _P
