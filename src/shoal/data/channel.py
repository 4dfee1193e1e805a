"""Channels of the data transport: one connection between two processes, plain or TLS 1.3, for bytes and parts of files.

Plain bytes do not pass through this process: `sendfile` on one side, `splice` through a pipe on the other, and a read
of the mapped pages for the checksum, possibly in another thread. That costs half the processor time of `recv` and
`write`. TLS bytes do pass. Of the two ways to encrypt without a further library, TLS carried 1.5 to 2 times as much as
ZeroMQ's CURVE here (AES in hardware; no copies between threads).

An error of the network is an `OSError`, an error of the file is a `FileTroubleError`: only the first is worth a retry.
Both ends open a connection here with proofs of the shared token; requests and replies belong to the services.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import socket
import ssl
import struct
from typing import Protocol

from shoal.data.transfer_messages import (
    CHUNK_BYTES,
    CLIENT,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    SERVER,
    DataGrant,
    RefusedError,
    crc,
    encode_hello,
    proof,
    same,
    service_of,
)
from shoal.errors import ShoalError

PIPE_BYTES = 1 << 20
"""The maximum size of a pipe for an ordinary user."""
PIECE_BYTES = 256 << 10
"""Bytes that are received, checksummed and written while they are still in the processor's cache."""
_CANNOT_SPLICE = (errno.EINVAL, errno.EOPNOTSUPP)


class FileTroubleError(ShoalError):
    """A local file could not be read or written as required."""

    def __init__(self, message: str, number: int | None) -> None:
        super().__init__(message)
        self.errno = number


class Channel(Protocol):
    """A connection; after the handshake its peer is known to have the token."""

    def open(self) -> None:
        """Does what the transport needs before the first byte."""

    def seen_binding(self) -> bytes:
        """Digest of the certificate that the peer has shown, if it has to show one."""

    def send(self, data: bytes, *, more: bool = False) -> None:
        """Sends all bytes; `more`: further data follows at once."""

    def receive(self, length: int) -> bytes:
        """Returns exactly `length` bytes."""

    def send_file(self, descriptor: int, offset: int, length: int) -> None: ...

    def receive_file(self, descriptor: int, offset: int, length: int, *, summed: bool = True) -> int | None:
        """Writes received bytes to a position of the file; returns their checksum if `summed` and it costs no copy."""

    def set_patience(self, seconds: float) -> None:
        """Sets how long the peer may be inactive."""

    def end(self) -> None:
        """Wakes threads that wait on the connection, with an error; any thread may call it."""

    def close(self) -> None: ...


class PlainChannel:
    """A connection for trusted networks: authenticated at the start, not encrypted."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pipe: tuple[int, int] | None = None
        self._splices = True
        self._buffer = memoryview(b"")
        connection.settimeout(None)

    def open(self) -> None:
        """Does nothing: the first byte belongs to the proofs."""

    def seen_binding(self) -> bytes:
        return b""

    def send(self, data: bytes, *, more: bool = False) -> None:
        view = memoryview(data)
        while view:
            view = view[self._socket.send(view, socket.MSG_MORE if more else 0) :]

    def receive(self, length: int) -> bytes:
        return _received(self._socket, length, socket.MSG_WAITALL)

    def send_file(self, descriptor: int, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            sent = os.sendfile(self._socket.fileno(), descriptor, offset, end - offset)
            if sent == 0:
                raise FileTroubleError("a file is shorter than it was", None)
            offset += sent

    def receive_file(self, descriptor: int, offset: int, length: int, *, summed: bool = True) -> int | None:
        filled = 0
        while filled < length and self._splices:
            filled += self._spliced(descriptor, offset + filled, length - filled)
        if filled < length:
            if len(self._buffer) == 0:
                self._buffer = memoryview(bytearray(PIECE_BYTES))
            _through_memory(self._socket, descriptor, offset + filled, length - filled, self._buffer, summed=False)
        return None

    def _spliced(self, descriptor: int, offset: int, length: int) -> int:
        """Moves received bytes into the file by `splice`; falls back to copying if the file system does not support
        it."""
        if self._pipe is None:
            self._pipe = os.pipe()
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        moved = os.splice(self._socket.fileno(), self._pipe[1], length)
        if moved == 0:
            raise ConnectionResetError("the other side has closed the connection")
        done = 0
        try:
            while done < moved and self._splices:
                try:
                    done += os.splice(self._pipe[0], descriptor, moved - done, offset_dst=offset + done)
                except OSError as error:
                    if error.errno not in _CANNOT_SPLICE:
                        raise
                    self._splices = False
            while done < moved:
                done += os.pwrite(descriptor, os.read(self._pipe[0], moved - done), offset + done)
        except OSError as error:
            raise _file_trouble(error) from None
        return moved

    def set_patience(self, seconds: float) -> None:
        # The kernel's own timeouts: with Python's the socket would not block, and `splice` could not wait.
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def end(self) -> None:
        _shut(self._socket)

    def close(self) -> None:
        self._socket.close()
        if self._pipe is not None:
            os.close(self._pipe[0])
            os.close(self._pipe[1])
            self._pipe = None


class TlsChannel:
    """The default: encrypted, and bound to the proofs by the server's certificate."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(CHUNK_BYTES))

    def open(self) -> None:
        self._socket.do_handshake()

    def seen_binding(self) -> bytes:
        return hashlib.sha256(self._socket.getpeercert(binary_form=True) or b"").digest()

    def send(self, data: bytes, *, more: bool = False) -> None:
        self._socket.sendall(data)

    def receive(self, length: int) -> bytes:
        return _received(self._socket, length)

    def send_file(self, descriptor: int, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            part = self._buffer[: end - offset]
            _read_back(descriptor, offset, part)
            self._socket.sendall(part)
            offset += len(part)

    def receive_file(self, descriptor: int, offset: int, length: int, *, summed: bool = True) -> int | None:
        buffer = self._buffer[:PIECE_BYTES]
        return _through_memory(self._socket, descriptor, offset, length, buffer, summed=summed)

    def set_patience(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def end(self) -> None:
        _shut(self._socket)

    def close(self) -> None:
        self._socket.close()


class ServerHandshake:
    """The server's part of the handshake, with a certificate of its own."""

    def __init__(self, token: bytes, encrypted: bool) -> None:
        self._token = token
        self._tls: ssl.SSLContext | None = None
        self._binding = b""
        if encrypted:
            certificate, pem = make_identity()
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
            self._tls.num_tickets = 0
            _load(self._tls, pem)
            self._binding = hashlib.sha256(certificate).digest()

    def wrap(self, connection: socket.socket) -> Channel:
        """Returns a channel over an accepted connection that has carried no bytes yet."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _wrapped(self._tls, connection, server=True)

    def admit(self, channel: Channel, patience: float) -> bytes:
        """Returns the service that the client requests; `RefusedError` or `OSError` if the client does not know the
        token."""
        channel.set_patience(patience)
        channel.open()
        theirs = channel.receive(HELLO_BYTES)
        service = service_of(theirs)
        ours = encode_hello(service, secrets.token_bytes(NONCE_BYTES))
        channel.send(ours + proof(self._token, SERVER, theirs, ours, self._binding))
        if not same(proof(self._token, CLIENT, theirs, ours, self._binding), channel.receive(PROOF_BYTES)):
            raise RefusedError("the client does not know the token")
        return service


def checksum_of(descriptor: int, offset: int, length: int) -> int:
    """Returns the checksum of a part of a file that was just written, without a copy of it."""
    if length == 0:
        return crc(b"")
    with mmap.mmap(descriptor, length, prot=mmap.PROT_READ, offset=offset) as seen, memoryview(seen) as view:
        return crc(view)


def dial(grant: DataGrant, patience: float) -> Channel:
    """Connects to the address of a grant; returns a channel that has carried no bytes yet."""
    try:
        connection = socket.create_connection((grant.host, grant.port), timeout=patience)
    except UnicodeError:
        raise OSError(errno.EINVAL, f"{grant.host!r} is not the name of a host") from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = _wrapped(_client_context() if grant.encrypted else None, connection, server=False)
    except BaseException:
        connection.close()
        raise
    channel.set_patience(patience)
    return channel


def introduce(channel: Channel, grant: DataGrant, service: bytes) -> None:
    """The client's part of the handshake; `RefusedError` if the server does not know the token."""
    channel.open()
    ours = encode_hello(service, secrets.token_bytes(NONCE_BYTES))
    channel.send(ours)
    answer = channel.receive(HELLO_BYTES + PROOF_BYTES)
    theirs, binding = answer[:HELLO_BYTES], channel.seen_binding()
    expected = proof(grant.token, SERVER, ours, theirs, binding)
    if not theirs.startswith(ours[:-NONCE_BYTES]) or not same(expected, answer[HELLO_BYTES:]):
        raise RefusedError(f"{grant.host}:{grant.port} does not know the token of the grant")
    channel.send(proof(grant.token, CLIENT, ours, theirs, binding))


def _wrapped(context: ssl.SSLContext | None, connection: socket.socket, *, server: bool) -> Channel:
    if context is None:
        return PlainChannel(connection)
    return TlsChannel(
        context.wrap_socket(connection, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=False)
    )


def _client_context() -> ssl.SSLContext:
    """Accepts any certificate for the moment: its digest becomes part of the proofs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def make_identity() -> tuple[bytes, bytes]:
    """Makes a key and a self-signed certificate: returns the certificate as DER, and both as PEM for `ssl`.

    Clients do not verify the certificate. The TLS handshake proves its key, and the proofs of `protocol` cover its
    digest. Its lifetime has no meaning, so clocks of nodes may differ. The import takes 40 ms and 11 MB of resident
    memory (3 MB of them private), which only processes that accept encrypted connections pay.
    """
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shoal depot")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    return certificate.public_bytes(Encoding.DER), pem


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Loads the key into TLS without writing it to disk."""
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _received(connection: socket.socket, length: int, flags: int = 0) -> bytes:
    """Exactly `length` bytes from a connection."""
    parts = b""
    while len(parts) < length:
        more = connection.recv(length - len(parts), flags)
        if not more:
            raise ConnectionResetError("the other side has closed the connection")
        parts += more
    return parts


def _through_memory(
    connection: socket.socket, descriptor: int, offset: int, length: int, buffer: memoryview, *, summed: bool
) -> int | None:
    """Receives bytes and writes them piece by piece; returns their checksum if `summed`."""
    checksum, end = crc(b""), offset + length
    while offset < end:
        piece = buffer[: end - offset]
        filled = 0
        while filled < len(piece):
            got = connection.recv_into(piece[filled:])
            if got == 0:
                raise ConnectionResetError("the other side has closed the connection")
            filled += got
        if summed:
            checksum = crc(piece, checksum)
        try:
            while filled:
                filled -= os.pwrite(descriptor, piece[-filled:], offset + len(piece) - filled)
        except OSError as error:
            raise _file_trouble(error) from None
        offset += len(piece)
    return checksum if summed else None


def _read_back(descriptor: int, offset: int, part: memoryview) -> None:
    done = 0
    while done < len(part):
        try:
            got = os.preadv(descriptor, [part[done:]], offset + done)
        except OSError as error:
            raise _file_trouble(error) from None
        if got == 0:
            raise FileTroubleError("a file is shorter than it was", None)
        done += got


def _file_trouble(error: OSError) -> FileTroubleError:
    return FileTroubleError(os.strerror(error.errno or 0), error.errno)


def _shut(connection: socket.socket) -> None:
    """Ends both directions; not with the method of `SSLSocket`, which would leave other threads a socket without
    TLS."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        pass
