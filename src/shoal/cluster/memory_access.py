"""Opens memories: of a node, of a program on its own, and of a program that uses the memory of a cluster.

The session of a program owns its allocations. It holds a connection to every node that stores some of them, and
reconnects when a connection breaks. When the program ends, the nodes notice the lost connections and free its memory. A
process forked from the program shares its memory, and frees nothing when it ends.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from shoal.cluster.messaging.access import Role, access_path, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.messaging.envelope import Codec
from shoal.core.resources import parse_size
from shoal.data.channel import Channel
from shoal.data.listener import DataListener
from shoal.data.memory.client import VARIABLE, Attached, enter, leave
from shoal.data.memory.handle import Allocation, Memory
from shoal.data.memory.protocol import KeepRequest, MemoryNode, Peers, receive, send
from shoal.data.memory.segments import SOCKET_NAME, NodeExtents, Segments, folders_of, shared_memory_bytes
from shoal.data.memory.server import MemoryServer
from shoal.data.memory.service import MemoryService
from shoal.errors import InputError, ShoalError
from shoal.resources.memory_layout import AllocationRecord


class MemoryRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the memory service of each node of the cluster."""


class MemoryReply(msgspec.Struct, frozen=True, tag=True):
    """The memory services by node number, and the token of their listeners."""

    nodes: dict[int, MemoryNode]
    token: bytes


class MemoryRefusedReply(msgspec.Struct, frozen=True, tag="Refused"):
    """The agent rejects the request, for this reason."""

    why: str
    anew: bool = False


Asked: TypeAlias = MemoryRequest | MemoryReply | MemoryRefusedReply


def make_codec() -> Codec[Asked]:
    return Codec(Asked)


KEEP_SECONDS = 3.0
"""Seconds between two checks of the connections: a node sees several of them before it takes the session for ended."""
SHARE = 4
"""By default, a node offers 1 part in N of its memory."""


def limit_of(text: str | None, memory_bytes: int) -> int:
    """Returns the memory limit of a node: the requested one, or a fraction of its memory and of its shared memory file
    system."""
    if text is not None:
        return parse_size(text, "--shared-memory")
    return min(memory_bytes, shared_memory_bytes()) // SHARE


def open_node(cluster: str, listener: DataListener, limit: int) -> MemoryServer:
    """Opens the memory service of an agent. `MemoryServer.tell` informs it of the other nodes."""
    here = NodeExtents(Segments(cluster), limit)
    return MemoryServer(MemoryService(Peers(listener.token), here), here, listener)


class LocalMemory(MemoryService):
    """The memory of one process and its children, without a cluster."""

    def __init__(self, limit: int) -> None:
        here = NodeExtents(Segments("local"), limit)
        super().__init__(Peers(b""), here, run=f"local-{os.getpid()}")
        self._served = MemoryServer(self, here)
        self._served.tell(0, {0: MemoryNode(os.uname().nodename, "")}, [])
        self._process = os.getpid()
        os.environ[VARIABLE] = self._served.socket_path

    def close(self) -> None:
        """Frees everything, if this is the process that opened it."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            leave(self)
            return
        if os.environ.get(VARIABLE) == self._served.socket_path:
            del os.environ[VARIABLE]
        leave(self)
        self._served.close()


def local(limit: str | int | None = None) -> Memory:
    """Opens a memory in this process, for it and its children. It ends with the process, or with its `close`."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    opened = LocalMemory(limit_of(None if limit is None else str(limit), total))
    enter(opened)
    atexit.register(opened.close)
    return opened


def connect(cluster: str, run: str = "") -> Memory:
    """Opens the memory of a cluster for this program, by the cluster's name or the path of its access file.

    Allocations live until the program ends or closes the memory. Tasks access them by their handles.
    """
    session = ClusterMemory(cluster, run or f"session-{secrets.token_hex(6)}")
    enter(session)
    return session


class ClusterMemory(MemoryService):
    """The memory of a cluster as seen by a program that is not a task of it."""

    def __init__(self, cluster: str, run: str, *, visiting: bool = False) -> None:
        """`visiting`: the run belongs to another program, and allocations made here stay with it."""
        access = read(access_path(cluster))
        self._caller = Caller(access, make_codec(), role=Role.CLIENT)
        self._asking = threading.Lock()
        self._token = b""
        places = self._places()
        super().__init__(Peers(self._token), None, run=run, look=self._places)
        self.nodes = dict(places)
        self.kept = "session"
        self.allocated = self._keep
        self._made: dict[str, Allocation] = {}
        """The allocations of this session; they are freed when it ends, unless it is visiting."""
        self._process = os.getpid()
        self._visiting = visiting
        self._keepers: dict[int, Channel] = {}
        self._keeping = threading.Lock()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep_on, name="memory session", daemon=True)
        self._keeper.start()

    def _places(self) -> Mapping[int, MemoryNode]:
        with self._asking:
            told = self._caller.ask(MemoryRequest())
        if isinstance(told, MemoryRefusedReply):
            raise InputError(f"the cluster refuses to list its memory services: {told.why}")
        assert isinstance(told, MemoryReply)
        self._token = told.token
        return told.nodes

    def _keep(self, allocation: Allocation) -> None:
        """Ensures that all nodes with parts of the allocation know that this session lives."""
        self._made[allocation.id] = allocation
        for holder in _holders(allocation):
            if holder not in self._keepers:
                self._remind(holder)

    def _remind(self, holder: int) -> None:
        """Renews the session at a node, over the open connection or a new one; a failure is retried next time."""
        with self._keeping:
            was_there = holder in self._keepers
            if not self._is_reminded(holder) and was_there:
                self._is_reminded(holder)

    def _is_reminded(self, holder: int) -> bool:
        channel = self._keepers.pop(holder, None)
        try:
            if channel is None:
                channel = self.peers.dial(self.place_of(holder))
            send(channel, KeepRequest(self.run))
            receive(channel)
        except (OSError, ShoalError):
            if channel is not None:
                channel.close()
            return False
        self._keepers[holder] = channel
        return True

    def _keep_on(self) -> None:
        while not self._over.wait(KEEP_SECONDS):
            for holder in self._to_remind():
                if not self._over.is_set():
                    self._remind(holder)

    def _to_remind(self) -> list[int]:
        """Returns the nodes that store allocations of this session. Extents with replicas may have moved since their
        handles were made."""
        made = list(self._made.values())
        if any(allocation.replicas > 1 for allocation in made):
            try:
                self.refresh()
            except ShoalError:
                pass  # no agent replies; the known nodes are still to be reminded
            return list(self.nodes)
        return [holder for holder in {each: None for one in made for each in _holders(one)} if holder in self.nodes]

    def free(self, allocation: AllocationRecord) -> None:
        """Frees the allocation on all nodes."""
        self._made.pop(allocation.id, None)
        super().free(allocation)

    def close(self) -> None:
        """Ends the session, if this is the process that began it; the cluster frees what was allocated in it."""
        if os.getpid() != self._process:
            leave(self)
            return
        self._over.set()
        self._keeper.join()
        for allocation in list(self._made.values()) if not self._visiting else ():
            try:
                self.free(allocation)
            except InputError:
                continue  # a task has freed it
        for channel in self._keepers.values():
            channel.close()
        leave(self)
        self.shut()
        self._caller.close()


def _holders(allocation: Allocation) -> dict[int, None]:
    return {holder: None for extent in allocation.extents for holder in extent.holders}


def node_here(cluster: str, run: str = "") -> Attached | None:
    """Returns the memory service of a node of the cluster on this machine, if there is one."""
    access = read(access_path(cluster))
    for folder in folders_of(access.cluster):
        try:
            return Attached(os.path.join(folder, SOCKET_NAME), run)
        except InputError:
            continue  # the node has just ended
    return None
