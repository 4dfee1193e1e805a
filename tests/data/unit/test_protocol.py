"""Messages of the object service: encoding, and rejection of everything else."""

from __future__ import annotations

import secrets
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.channel import make_identity
from shoal.data.transfer_messages import (
    ANSWER_BYTES,
    CHUNK_BYTES,
    CLIENT,
    HELLO_BYTES,
    MEMORY,
    NONCE_BYTES,
    OBJECTS,
    REQUEST_BYTES,
    SENT,
    SERVER,
    BadMessageError,
    ObjectReply,
    ObjectRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_hello,
    encode_request,
    name_length,
    proof,
    service_of,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=1000)


@given(NAMES, st.integers(0, 2**30), st.integers(0, CHUNK_BYTES))
def test_a_request_is_read_as_it_was_written(name: str, index: int, length: int) -> None:
    request = ObjectRequest(name, index * CHUNK_BYTES, length)
    data = encode_request(request)
    head, rest = data[:REQUEST_BYTES], data[REQUEST_BYTES:]
    assert name_length(head) == len(rest)
    assert decode_request(head, rest) == request


@given(st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES), st.binary(max_size=50))
def test_any_bytes_are_a_request_or_one_kind_of_error(head: bytes, name: bytes) -> None:
    try:
        name_length(head)
        request = decode_request(head, name)
    except BadMessageError:
        return
    assert request.offset % CHUNK_BYTES == 0
    assert request.length <= CHUNK_BYTES


@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES), st.integers(0, CHUNK_BYTES))
def test_any_bytes_are_an_answer_of_the_expected_length_or_one_kind_of_error(data: bytes, length: int) -> None:
    try:
        answer = decode_answer(data, length)
    except BadMessageError:
        return
    assert answer.status != SENT or answer.length == length
    assert encode_answer(answer) == data


def test_an_answer_of_another_length_is_not_taken() -> None:
    with pytest.raises(BadMessageError):
        decode_answer(encode_answer(ObjectReply(SENT, 0, 10, 0)), 11)


def test_a_name_that_is_too_long_is_not_asked_for() -> None:
    with pytest.raises(BadMessageError):
        encode_request(ObjectRequest("n" * 5000, 0, 0))


@given(st.sampled_from([OBJECTS, MEMORY]), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_a_hello_names_its_service(service: bytes, nonce: bytes) -> None:
    hello = encode_hello(service, nonce)
    assert len(hello) == HELLO_BYTES and hello.endswith(nonce)
    assert service_of(hello) == service


@given(st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_any_bytes_are_a_hello_or_one_kind_of_error(data: bytes) -> None:
    try:
        service_of(data)
    except BadMessageError:
        return
    assert data.startswith(encode_hello(b"", b"")[:8])


def test_a_proof_for_one_service_is_none_for_another() -> None:
    token, nonce, other = (secrets.token_bytes(32) for _ in range(3))
    proofs = {
        proof(token, CLIENT, encode_hello(service, nonce), encode_hello(service, other), b"")
        for service in (OBJECTS, MEMORY)
    }
    assert len(proofs) == 2


def test_a_proof_depends_on_all_it_is_made_of() -> None:
    token, one, two, binding = (secrets.token_bytes(32) for _ in range(4))
    proofs = {
        proof(token, SERVER, one, two, binding),
        proof(token, CLIENT, one, two, binding),
        proof(token, SERVER, two, one, binding),
        proof(token, SERVER, one, two, b""),
        proof(one, SERVER, one, two, binding),
    }
    assert len(proofs) == 5


def test_a_certificate_is_taken_by_the_tls_library_together_with_its_key(tmp_path: Path) -> None:
    certificate, pem = make_identity()
    (tmp_path / "identity").write_bytes(pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "identity")
    assert ssl.PEM_cert_to_DER_cert(pem[pem.index(b"-----BEGIN CERT") :].decode()) == certificate
    again, _ = make_identity()
    assert again != certificate
