"""Reads the resources of this machine, the limits of this process, and the network addresses for other nodes.

`shoal.cluster.nodes.offer` decides what a node offers of them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence

from shoal.cluster.nodes.offer import MachineFacts
from shoal.errors import InputError
from shoal.execution.process_limits import free_disk

_GROUPS = "/sys/fs/cgroup"
_GPU_DEVICE = re.compile(r"nvidia[0-9]+")


def this_machine(directory: str, groups: str = _GROUPS, own_groups: str = "/proc/self/cgroup") -> MachineFacts:
    """Returns the facts about this machine; the disk is that of `directory`."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    folders = _group_folders(groups, own_groups)
    return MachineFacts(
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk=free_disk(directory),
        gpus=_gpus(),
        affinity=affinity,
        group_cores=min((quota for folder in folders if (quota := _quota(folder)) is not None), default=None),
        group_memory=min((limit for folder in folders if (limit := _memory_limit(folder)) is not None), default=None),
    )


def shares_of_machine(words: Sequence[str], count: int) -> list[str]:
    """Returns options for each of `count` agents on this machine, which divide its cores and memory equally, unless the
    user's arguments state them."""
    machine, count = this_machine(os.getcwd()), max(1, count)
    found = []
    if not any(word.startswith("--cores") for word in words):
        found.append(f"--cores={max(1, (machine.affinity or machine.cores) // count)}")
    if not any(word.startswith("--memory") for word in words):
        found.append(f"--memory={max(1, min(machine.memory, machine.group_memory or machine.memory) // count >> 20)}")
    return found


def _group_folders(groups: str, own_groups: str) -> list[str]:
    """Returns the control groups of this process and all their ancestors: each may limit it. Version 1 has one per
    controller."""
    folders = []
    for line in _read(own_groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots = [groups] if not controllers else [f"{groups}/{controllers}", f"{groups}/{controllers.split(',')[0]}"]
        for root in roots:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts) + 1)]
    return folders


def _quota(folder: str) -> float | None:
    """Returns the cores that a group may use; `max` and -1 mean no limit."""
    words = _read(f"{folder}/cpu.max").split()
    if not words:
        words = [*_read(f"{folder}/cpu.cfs_quota_us").split(), *_read(f"{folder}/cpu.cfs_period_us").split()]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _memory_limit(folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(f"{folder}/{name}").strip()
        if text.isdigit():
            return int(text)
    return None


def _gpus() -> int:
    try:
        return sum(1 for name in os.listdir("/dev") if _GPU_DEVICE.fullmatch(name))
    except OSError:
        return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


LOOPBACK = "127.0.0.1"
_FAR_AWAY = "203.0.113.1"
"""An address that is not assigned to any host: the route to it is the default route."""
_ANY_PORT = 9
_GIVE_HOST = "give the address of this machine that the nodes can reach with --host"


def host_of(address: str) -> str:
    """Returns the host of `tcp://HOST:PORT`."""
    return address.removeprefix("tcp://").rpartition(":")[0]


def own_address_towards(host: str) -> str | None:
    """Returns the address of this machine as seen by a host; None: the host is unknown or unreachable."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def own_address_for(contacts: Sequence[str]) -> str:
    """Returns the address where an agent listens: the one by which the head, at one of these contacts, reaches it."""
    for contact in contacts:
        found = own_address_towards(host_of(contact))
        if found is not None:
            return found
    return LOOPBACK


def own_address_for_hosts(hosts: Sequence[str]) -> str:
    """Returns the address where a head listens for nodes on these hosts."""
    towards = [own_address_towards(host) for host in hosts]
    found = [address for address in towards if address is not None]
    for address in found:
        if not is_loopback(address):
            return address
    if found and len(found) == len(towards):
        return found[0]  # all hosts are this machine
    default = own_address_towards(_FAR_AWAY) or own_address_towards(socket.gethostname())
    if default is None or is_loopback(default):
        raise InputError("this machine has no address that other machines could reach", remedy=_GIVE_HOST)
    return default


def checked_host(host: str) -> str:
    """Returns the numeric form of the address that the user gave: a socket cannot be bound to a name."""
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
