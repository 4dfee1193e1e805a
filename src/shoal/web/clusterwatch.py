"""A cluster that is watched: its agents are asked who is there, and whoever starts nodes what is missing and why.

Two looks, since they take different times: one question to an agent, which takes milliseconds, and one to batch
systems, hosts and the store, which may take seconds. Nothing here changes anything, and no more is asked for than
`shoal cluster status` may see.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from shoal.agent.messages import ClusterTold, WireMessage, make_codec
from shoal.agent.surroundings import Clock
from shoal.cluster.groups import told
from shoal.cluster.home import ClusterHome, Started
from shoal.cluster.local import is_alive
from shoal.cluster.manage import absent, factory_says
from shoal.cluster.starters import LocalHandle, Phase
from shoal.errors import InputError, RunError, ShoalError
from shoal.model.quantities import show_bytes, show_seconds
from shoal.store.places import places_of
from shoal.web.clusterparts import Facts, GroupTold, Missing, StoreTold, cluster_parts
from shoal.web.presence import Presence
from shoal.wire.access import Access, read
from shoal.wire.caller import Caller
from shoal.wire.places import access_path

CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 5.0
NEAR_SECONDS, FAR_SECONDS = 2.0, 15.0
"""How often it is asked what is missing: on this machine, and of hosts and batch systems."""
REDIS_SECONDS = 5.0


class ClusterWatch:
    """One cluster, by its name or the path of an access file."""

    def __init__(self, cluster: str) -> None:
        self._path = access_path(cluster)
        self._access = read(self._path)
        self.name = self._access.name
        self._home = ClusterHome(cluster) if self._path != cluster else None
        """Where it was started; None if somebody gave us an access file."""
        self._clock = Clock()
        self._caller: Caller[WireMessage] | None = None
        self._asking = threading.Lock()
        self._told: ClusterTold | None = None
        self._problem = ""
        self._milliseconds = 0.0
        self._presence = Presence()
        self._groups: tuple[GroupTold, ...] = ()
        self._store = StoreTold()
        self._starting = threading.Lock()
        self._next_starts = self._next_store = 0.0

    def close(self) -> None:
        with self._asking:
            self._hang_up()

    def parts(self) -> dict[str, Any]:
        """What is known now, for the page."""
        with self._asking:
            now = self._clock()
            return cluster_parts(Facts(self.name, self._presence, now, self._problem, self._groups, self._store))

    # ---- the agents ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Asks an agent."""
        with self._asking:
            began = time.monotonic()
            try:
                if self._caller is None:
                    self._access = read(self._path)  # a head that was started anew may be elsewhere
                    self._caller = Caller(self._access, make_codec(), patience=CONNECT_SECONDS)
                self._told = told(self._caller, ANSWER_SECONDS)
            except InputError as error:
                self._hang_up()
                self._problem = str(error)
                return
            self._problem = ""
            self._milliseconds = 1000 * (time.monotonic() - began)
            self._presence.take(self._clock(), self._told)

    def _hang_up(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()

    # ---- what is missing -----------------------------------------------------------------------------------------

    def look_at_starts(self) -> None:
        """Asks whoever starts nodes, and the store; neither more often than is fit."""
        with self._starting:
            now = time.monotonic()
            if now < min(self._next_starts, self._next_store) or (self._told is None and not self._problem):
                return  # before anybody has said who is there, everybody would be missing
            try:
                started = self._home.read_started() if self._home is not None else Started()
                if now >= self._next_starts:
                    self._groups = self._ask_starters(self._home, started) if self._home is not None else ()
                    is_near = all(group.kind == "local" for group in started.groups)
                    self._next_starts = time.monotonic() + (NEAR_SECONDS if is_near else FAR_SECONDS)
                if now >= self._next_store:
                    self._store = self._ask_store(started)
                    is_near = self._store.kind != "redis"
                    self._next_store = time.monotonic() + (NEAR_SECONDS if is_near else FAR_SECONDS)
            except ShoalError as error:  # a damaged list of what was started, hosts that nobody can name
                self._store = StoreTold(problem=str(error))
                self._next_starts = self._next_store = time.monotonic() + FAR_SECONDS

    def _ask_starters(self, home: ClusterHome, started: Started) -> tuple[GroupTold, ...]:
        missing = absent(home, started, self._told or ClusterTold({}, []))
        found = []
        for group in started.groups:
            words = [
                Missing(handle.name, standing.phase.value, _which(handle), standing.reason)
                for handle, standing in missing[group.name]
                if not (group.closing and standing.phase is Phase.ENDED)
            ]
            factory = factory_says(home, started, group)
            found.append(GroupTold(group.name, group.kind, group.closing, factory, tuple(words)))
        return tuple(found)

    def _ask_store(self, started: Started) -> StoreTold:
        head, problem = started.head, ""
        figures = [("response time of an agent", show_seconds(self._milliseconds / 1000))] if self._milliseconds else []
        if isinstance(head, LocalHandle):
            runs = is_alive(head)
            figures.append(("head", f"process {head.pid}" if runs else "not running"))
            if not runs:
                problem = f"the head of the cluster is not running; 'shoal cluster restart {self.name}' restarts it"
        where = ", ".join(contact.removeprefix("tcp://") for contact in self._access.contacts)
        if self._access.store is not None:
            return _ask_redis(self._access, self._access.store, problem, figures)
        if self._home is None:
            return StoreTold("", where, problem, (), tuple(figures))
        journals = _size_of(self._home.store, ".journal")
        return StoreTold("head", where, problem, (), (*figures, ("journals", show_bytes(journals))))


def _which(handle: object) -> str:
    job, host = getattr(handle, "job", ""), getattr(handle, "host", "")
    if job:
        return f"job {job}"
    return host or f"process {getattr(handle, 'pid', '')}"


def _ask_redis(access: Access, url: str, problem: str, figures: list[tuple[str, str]]) -> StoreTold:
    """What the server says of itself."""
    from shoal.store.link import Link
    from shoal.store.redis import key_of, worries

    where = places_of(url)
    try:
        link = Link(url.split(","), key_of(access.cluster, "summary"), patience=REDIS_SECONDS)
        try:
            server, memory, clients = link.info("server"), link.info("memory"), link.info("clients")
            figures += [
                ("version", str(server.get("redis_version", ""))),
                ("memory", show_bytes(int(memory.get("used_memory", 0)))),
                ("connections", str(clients.get("connected_clients", ""))),
            ]
            return StoreTold("redis", where, problem, tuple(worries(link).values()), tuple(figures))
        finally:
            link.close()
    except (InputError, RunError):
        return StoreTold("redis", where, f"no Redis server answers at {where}", (), tuple(figures))


def _size_of(folder: str, ending: str) -> int:
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(ending):
                try:
                    found += os.path.getsize(os.path.join(path, name))
                except OSError:
                    pass  # it has just been removed
    return found
