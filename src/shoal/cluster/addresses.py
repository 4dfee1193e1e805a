"""By which address of this machine others reach it: asked of the routing table, nothing is sent.

A datagram socket that is connected to somebody has the address that packets to them would carry. Who is on this machine
is reached by loopback, and so are we from there.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from shoal.errors import InputError

LOOPBACK = "127.0.0.1"
_FAR_AWAY = "203.0.113.1"
"""An address that belongs to nobody: the way to it is the default one."""
_ANY_PORT = 9
_GIVE_HOST = "give the address of this machine that the nodes can reach with --host"


def host_of(address: str) -> str:
    """The host of `tcp://HOST:PORT`."""
    return address.removeprefix("tcp://").rpartition(":")[0]


def own_address_towards(host: str) -> str | None:
    """The address that this machine has for a host; None: there is no such host, or no way to it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def own_address_for(contacts: Sequence[str]) -> str:
    """Where an agent listens: at the address by which the head, at one of these contacts, reaches it."""
    for contact in contacts:
        found = own_address_towards(host_of(contact))
        if found is not None:
            return found
    return LOOPBACK


def own_address_for_hosts(hosts: Sequence[str]) -> str:
    """Where a head listens whose nodes will be on these hosts; on none that is known: elsewhere."""
    towards = [own_address_towards(host) for host in hosts]
    found = [address for address in towards if address is not None]
    for address in found:
        if not is_loopback(address):
            return address
    if found and len(found) == len(towards):
        return found[0]  # all of them are this machine
    default = own_address_towards(_FAR_AWAY) or own_address_towards(socket.gethostname())
    if default is None or is_loopback(default):
        raise InputError("this machine has no address that other machines could reach", remedy=_GIVE_HOST)
    return default


def checked_host(host: str) -> str:
    """The address that the user gave, by number: a socket is not bound to a name."""
    try:
        found = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((found, 0))
    except OSError as error:
        raise InputError(
            f"--host {host} is no address of this machine: {error.strerror}", remedy="'ip addr' shows those it has"
        ) from None
    if ipaddress.ip_address(found).is_unspecified:
        raise InputError(f"--host {host} is no address that a node could connect to", remedy=_GIVE_HOST)
    return found


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
