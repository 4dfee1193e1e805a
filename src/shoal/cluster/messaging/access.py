"""Access files: the role of their holder in a cluster, the keys of its agents, and the addresses of its agents.

A cluster has a pair of CURVE keys for all its agents, and one pair for each role of their callers. The user who starts
the cluster gets all keys; others get a copy narrowed to their role. The role of a caller follows from its key, so
editing a narrowed file cannot extend it.

This module makes, narrows, writes and reads access files. The receivers of messages decide what a role may do.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import zmq
from zmq.utils import z85

from shoal.errors import InputError

KIND = "shoal-access"
FORMAT = 1
MOST_SPARE = 16
_MOST_BYTES = 1 << 20
_CONTACT = re.compile(r"tcp://(?P<host>[^\s/:]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>[0-9]{1,5})")
_LETTERS = frozenset(bytes(z85.Z85CHARS).decode())
_ANEW = "use the file that 'shoal cluster start' wrote, or restart the cluster"


class Role(StrEnum):
    """The role in which a program calls an agent."""

    WORKER = "worker"
    CLIENT = "client"
    VIEWER = "viewer"


class KeyPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A public key, and its secret key if the holder of the file has it."""

    public: str
    secret: str | None = None

    def __repr__(self) -> str:
        """Hides secrets in tracebacks and logs."""
        return f"Pair({self.public!r}, {'secret' if self.secret else 'no secret'})"

    def without_secret(self) -> KeyPair:
        return KeyPair(self.public)


class Access(msgspec.Struct, frozen=True):
    """The contents of an access file."""

    name: str
    cluster: str
    """The cluster's random id: a later cluster of the same name has another."""
    server: KeyPair
    """The key pair of all agents."""
    roles: dict[Role, KeyPair]
    contacts: list[str] = []
    """Agents to contact first, as `tcp://host:port`."""
    store: str | None = None
    """URL of the store, which may contain a password: only workers get it."""
    spare: list[str] = []
    """Further agents that reply to clients, contacted when no contact replies."""
    kind: str = KIND
    format: int = FORMAT

    def __repr__(self) -> str:
        """Hides keys and the store's password."""
        return f"Access({self.name!r}, {self.cluster!r}, as {', '.join(self.held())})"

    def held(self) -> list[Role]:
        """The roles in which the holder can call."""
        return [role for role in Role if role in self.roles and self.roles[role].secret]

    def pair(self, role: Role) -> tuple[bytes, bytes]:
        """Returns public and secret key for calls in this role."""
        pair = self.roles.get(role)
        if pair is None or pair.secret is None:
            raise InputError(
                f"the access file of cluster {self.name!r} has no key for the role of a {role}",
                remedy=f"ask the user who started the cluster for the access file of a {role}",
            )
        return pair.public.encode(), pair.secret.encode()

    def server_pair(self) -> tuple[bytes, bytes]:
        """Returns public and secret key of an agent; only workers have them."""
        if self.server.secret is None:
            raise InputError(
                f"the access file of cluster {self.name!r} has no key to run an agent",
                remedy="ask the user who started the cluster for the access file of a worker",
            )
        return self.server.public.encode(), self.server.secret.encode()

    def at(self, contacts: list[str], store: str | None = None) -> Access:
        """Returns a copy with these contacts only; without `store` that stays unchanged."""
        return msgspec.structs.replace(self, contacts=list(contacts), store=store or self.store, spare=[])


def make_access(name: str) -> Access:
    """Makes a new cluster with fresh keys and without contacts."""
    return Access(name, secrets.token_hex(8), _fresh_pair(), {role: _fresh_pair() for role in Role})


def _fresh_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def narrowed(access: Access, role: Role) -> Access:
    """Returns the copy for a holder of this role; it has no key of another role."""
    access.pair(role)
    if role is Role.WORKER:
        access.server_pair()
        roles = {other: pair if other is role else pair.without_secret() for other, pair in access.roles.items()}
        return msgspec.structs.replace(access, roles=roles)
    roles = {role: access.roles[role]}
    return msgspec.structs.replace(access, server=access.server.without_secret(), roles=roles, store=None)


def write(access: Access, path: str) -> None:
    """Writes the file atomically, readable for its owner only; creates missing directories with the same
    permissions."""
    folder = os.path.dirname(os.path.abspath(path))
    fresh = f"{os.path.abspath(path)}.{secrets.token_hex(4)}.new"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(msgspec.json.format(msgspec.json.encode(access), indent=2) + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise InputError(f"the access file cannot be written: {error.strerror}", file=path) from None


def publish_nodes(path: str, cluster: str, addresses: Sequence[str]) -> None:
    """Records in an access file which agents reply to clients when no contact does; only in the file of this
    cluster."""
    try:
        access = read(path)
        if access.cluster == cluster:
            write(msgspec.structs.replace(access, spare=list(addresses)[:MOST_SPARE]), path)
    except InputError:
        pass  # the file is gone or not writable: the contacts in it remain


def read(path: str) -> Access:
    """Reads an access file; `InputError` if it is invalid."""
    return parse(_contents(path), path)


def _contents(path: str) -> bytes:
    """Returns the bytes of a file that other users can neither read nor change."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError("there is no access file here", file=path, remedy=_ANEW) from None
    except OSError as error:
        raise InputError(
            f"the access file cannot be read: {error.strerror}", file=path, remedy="check its permissions"
        ) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("this is not a regular file", file=path, remedy=_ANEW)
        if status.st_mode & 0o077:
            can = "change" if status.st_mode & 0o022 else "read"
            raise InputError(
                f"other users can {can} this access file, so its keys are not secret",
                file=path,
                remedy=f"chmod 600 {path}",
            )
        with os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read(_MOST_BYTES + 1)
    finally:
        os.close(file)


def parse(data: bytes, path: str) -> Access:
    """Parses the bytes of an access file; `path` is for error messages only."""
    _look_at_kind(data, path)
    try:
        access = msgspec.json.decode(data, type=Access)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise InputError(f"the access file is damaged: {error}", file=path, remedy=_ANEW) from None
    _check_keys(access, path)
    for contact in (*access.contacts, *access.spare):
        found = _CONTACT.fullmatch(contact)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise InputError(
                f"the contact {contact!r} is not an address", file=path, remedy="write it as tcp://HOST:PORT"
            )
    return access


def _look_at_kind(data: bytes, path: str) -> None:
    """Distinguishes a foreign file, or one of another format, from a damaged one."""
    try:
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        if KIND.encode() in data:
            raise InputError("the access file is damaged: it is incomplete", file=path, remedy=_ANEW) from None
        found = None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise InputError("this is not an access file of Shoal", file=path, remedy=_ANEW)
    if found.get("format") != FORMAT:
        raise InputError(
            f"the access file has format {found.get('format')!r}, this Shoal knows format {FORMAT}",
            file=path,
            remedy="use the Shoal that wrote it, or restart the cluster",
        )


def _check_keys(access: Access, path: str) -> None:
    pairs = [("server", access.server), *((role.value, pair) for role, pair in access.roles.items())]
    for name, pair in pairs:
        if not _is_key(pair.public):
            raise InputError(f"the access file is damaged: no public key of the {name}", file=path, remedy=_ANEW)
        if pair.secret is None:
            continue
        if not _is_key(pair.secret) or zmq.curve_public(pair.secret.encode()) != pair.public.encode():
            raise InputError(
                f"the access file is damaged: the keys of the {name} do not match", file=path, remedy=_ANEW
            )
    if not access.held():
        raise InputError("the access file holds no secret key", file=path, remedy=_ANEW)


def _is_key(text: str) -> bool:
    """Whether the text is a key of 32 bytes in Z85."""
    if len(text) != 40 or any(letter not in _LETTERS for letter in text):
        return False
    try:
        return len(z85.decode(text.encode())) == 32
    except struct.error:  # five characters that encode more than four bytes
        return False


ACCESS_FILE = "access.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


def checked_name(name: str, what: str) -> str:
    """Returns the name if it is valid for a cluster or a group."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of {what}", remedy="use letters, digits, dots, dashes and underscores"
        )
    return name


def cluster_folder(name: str) -> str:
    """Returns the directory of a cluster that was started on this machine."""
    base = os.environ.get("SHOAL_HOME") or os.path.join(os.path.expanduser("~"), ".shoal")
    return os.path.join(base, "clusters", name)


def access_path(name_or_path: str) -> str:
    """Returns the path of an access file, given the name of a cluster or a path."""
    if os.sep in name_or_path or name_or_path.endswith(".json"):
        return name_or_path
    path = os.path.join(cluster_folder(checked_name(name_or_path, "a cluster")), ACCESS_FILE)
    if not os.path.exists(path):
        raise InputError(
            f"there is no cluster {name_or_path!r} here",
            remedy=f"start it with 'shoal cluster start {name_or_path} --local 2', or give the path of an access file",
        )
    return path
