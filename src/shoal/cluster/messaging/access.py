"""The access file: who one is in a cluster, by which keys its agents are known, and where they are found.

A cluster has a pair of CURVE keys that all its agents answer with, and one pair for each role in which somebody calls
them. Whoever starts the cluster gets all of it; others get a copy narrowed to their role. The role of a caller follows
from its key, so a narrowed file cannot be made more powerful by editing it.

This module makes, narrows, writes and reads such files. What a role may do is decided by those who receive messages.
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
_ANEW = "use the file that 'shoal cluster start' wrote, or start the cluster anew"


class Role(StrEnum):
    """In which capacity somebody calls an agent."""

    WORKER = "worker"
    CLIENT = "client"
    VIEWER = "viewer"


class KeyPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A public key, and its secret one if the holder of the file has it."""

    public: str
    secret: str | None = None

    def __repr__(self) -> str:
        """Secrets do not get into tracebacks and logs."""
        return f"Pair({self.public!r}, {'secret' if self.secret else 'no secret'})"

    def without_secret(self) -> KeyPair:
        return KeyPair(self.public)


class Access(msgspec.Struct, frozen=True):
    """What the holder of an access file has."""

    name: str
    cluster: str
    """The cluster's random id: a later cluster of the same name has another."""
    server: KeyPair
    """All agents answer with this pair."""
    roles: dict[Role, KeyPair]
    contacts: list[str] = []
    """Agents to begin with, as `tcp://host:port`."""
    store: str | None = None
    """URL of the store, which may hold a password: only workers get it."""
    spare: list[str] = []
    """Further agents that answer clients, asked when no contact does."""
    kind: str = KIND
    format: int = FORMAT

    def __repr__(self) -> str:
        """Tells neither keys nor the store's password."""
        return f"Access({self.name!r}, {self.cluster!r}, as {', '.join(self.held())})"

    def held(self) -> list[Role]:
        """The roles in which the holder can call."""
        return [role for role in Role if role in self.roles and self.roles[role].secret]

    def pair(self, role: Role) -> tuple[bytes, bytes]:
        """Public and secret key to call with in this role."""
        pair = self.roles.get(role)
        if pair is None or pair.secret is None:
            raise InputError(
                f"the access file of cluster {self.name!r} does not make its holder a {role}",
                remedy=f"ask whoever started the cluster for the access file of a {role}",
            )
        return pair.public.encode(), pair.secret.encode()

    def server_pair(self) -> tuple[bytes, bytes]:
        """Public and secret key to answer with; only workers have them."""
        if self.server.secret is None:
            raise InputError(
                f"the access file of cluster {self.name!r} is not enough to run an agent",
                remedy="ask whoever started the cluster for the access file of a worker",
            )
        return self.server.public.encode(), self.server.secret.encode()

    def at(self, contacts: list[str], store: str | None = None) -> Access:
        """The same cluster, found there and nowhere else; without `store` that stays as it is."""
        return msgspec.structs.replace(self, contacts=list(contacts), store=store or self.store, spare=[])


def make_access(name: str) -> Access:
    """A new cluster with fresh keys, none of whose agents is known yet."""
    return Access(name, secrets.token_hex(8), _fresh_pair(), {role: _fresh_pair() for role in Role})


def _fresh_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def narrowed(access: Access, role: Role) -> Access:
    """The copy for a holder of this role: nothing in it lets them take another."""
    access.pair(role)
    if role is Role.WORKER:
        access.server_pair()
        roles = {other: pair if other is role else pair.without_secret() for other, pair in access.roles.items()}
        return msgspec.structs.replace(access, roles=roles)
    roles = {role: access.roles[role]}
    return msgspec.structs.replace(access, server=access.server.without_secret(), roles=roles, store=None)


def write(access: Access, path: str) -> None:
    """Put the file there at once or not at all, for its owner alone; a missing folder is made, likewise closed."""
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
    """Notes in an access file which agents answer clients when no contact does; only in that of this cluster."""
    try:
        access = read(path)
        if access.cluster == cluster:
            write(msgspec.structs.replace(access, spare=list(addresses)[:MOST_SPARE]), path)
    except InputError:
        pass  # the file is gone or cannot be written: the contacts that are there still hold


def read(path: str) -> Access:
    """The access that a file gives; one sentence of `InputError` if it gives none."""
    return parse(_contents(path), path)


def _contents(path: str) -> bytes:
    """The bytes of a file that nobody else can read or change."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError("there is no access file here", file=path, remedy=_ANEW) from None
    except OSError as error:
        raise InputError(
            f"the access file cannot be read: {error.strerror}", file=path, remedy="see who may read it"
        ) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("this is not a file but something else", file=path, remedy=_ANEW)
        if status.st_mode & 0o077:
            can = "change" if status.st_mode & 0o022 else "read"
            raise InputError(
                f"others can {can} this access file, so its keys are not safe", file=path, remedy=f"chmod 600 {path}"
            )
        with os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read(_MOST_BYTES + 1)
    finally:
        os.close(file)


def parse(data: bytes, path: str) -> Access:
    """What the bytes of an access file say; `path` is only named in errors."""
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
    """Tell a file that is not ours, or of another format, from a damaged one."""
    try:
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        if KIND.encode() in data:
            raise InputError("the access file is damaged: it is not whole", file=path, remedy=_ANEW) from None
        found = None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise InputError("this is not an access file of Shoal", file=path, remedy=_ANEW)
    if found.get("format") != FORMAT:
        raise InputError(
            f"the access file has format {found.get('format')!r}, this Shoal knows format {FORMAT}",
            file=path,
            remedy="use the Shoal that wrote it, or start the cluster anew",
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
                f"the access file is damaged: the keys of the {name} do not belong together", file=path, remedy=_ANEW
            )
    if not access.held():
        raise InputError("the access file holds no secret key", file=path, remedy=_ANEW)


def _is_key(text: str) -> bool:
    """Whether these are the 32 bytes of a key in Z85."""
    if len(text) != 40 or any(letter not in _LETTERS for letter in text):
        return False
    try:
        return len(z85.decode(text.encode())) == 32
    except struct.error:  # five letters that stand for more than four bytes can hold
        return False


ACCESS_FILE = "access.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


def checked_name(name: str, what: str) -> str:
    """The name itself, if a cluster or a group can have it."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of {what}", remedy="use letters, digits, dots, dashes and underscores"
        )
    return name


def cluster_folder(name: str) -> str:
    """Where everything of a cluster lies that was started from here."""
    base = os.environ.get("SHOAL_HOME") or os.path.join(os.path.expanduser("~"), ".shoal")
    return os.path.join(base, "clusters", name)


def access_path(name_or_path: str) -> str:
    """The access file of a cluster: by its name, or by the path of a file that somebody gave us."""
    if os.sep in name_or_path or name_or_path.endswith(".json"):
        return name_or_path
    path = os.path.join(cluster_folder(checked_name(name_or_path, "a cluster")), ACCESS_FILE)
    if not os.path.exists(path):
        raise InputError(
            f"there is no cluster {name_or_path!r} here",
            remedy=f"start it with 'shoal cluster start {name_or_path} --local 2', or give the path of an access file",
        )
    return path
