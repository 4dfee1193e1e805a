"""Follows one cluster: polls an agent for the state of the nodes, and node starters for missing nodes and reasons.

There are two loops with different periods: one request to an agent takes milliseconds, while requests to batch systems,
hosts and the store may take seconds. Nothing here changes the cluster, and it requests no more than
`shoal cluster status` may see.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal import __version__
from shoal.cluster.agent.messages import AgentClock, ClusterReply, WireMessage, make_codec
from shoal.cluster.home import ClusterHome, ClusterRecord
from shoal.cluster.lifecycle import absent, factory_state
from shoal.cluster.messaging.access import Access, access_path, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.groups import read_cluster
from shoal.cluster.nodes.local import is_alive
from shoal.cluster.nodes.starters import LocalHandle, NodePhase
from shoal.core.quantities import show_bytes, show_seconds
from shoal.core.store.directory import places_of
from shoal.errors import InputError, RunError, ShoalError
from shoal.ui.web.api import CONTENT_TYPE, Sample, family, node_families
from shoal.ui.web.board import (
    AGAIN_SECONDS,
    VERSION,
    Board,
    GuardedWork,
    Query,
    RefusedRequest,
    Reply,
    json_reply,
    parts_reply,
)
from shoal.ui.web.cluster_page import Facts, GroupState, Missing, Presence, StoreStatus, cluster_parts
from shoal.ui.web.run_page import in_pieces

CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 5.0
NEAR_SECONDS, FAR_SECONDS = 2.0, 15.0
"""Periods of the requests for missing nodes: on this machine, and from hosts and batch systems."""
REDIS_SECONDS = 5.0


class ClusterWatch:
    """One cluster, by its name or the path of an access file."""

    def __init__(self, cluster: str) -> None:
        self._path = access_path(cluster)
        self._access = read(self._path)
        self.name = self._access.name
        self._home = ClusterHome(cluster) if self._path != cluster else None
        """The directory of a cluster started here; None if only an access file was given."""
        self._clock = AgentClock()
        self._caller: Caller[WireMessage] | None = None
        self._asking = threading.Lock()
        self._reply: ClusterReply | None = None
        self._problem = ""
        self._milliseconds = 0.0
        self._presence = Presence()
        self._groups: tuple[GroupState, ...] = ()
        self._store = StoreStatus()
        self._starting = threading.Lock()
        self._next_starts = self._next_store = 0.0

    def close(self) -> None:
        with self._asking:
            self._disconnect()

    def parts(self) -> dict[str, Any]:
        """The current state as parts of the page."""
        with self._asking:
            now = self._clock()
            return cluster_parts(Facts(self.name, self._presence, now, self._problem, self._groups, self._store))

    # ---- agents ----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Requests the state from an agent."""
        with self._asking:
            began = time.monotonic()
            try:
                if self._caller is None:
                    self._access = read(self._path)  # a restarted head may have another address
                    self._caller = Caller(self._access, make_codec(), patience=CONNECT_SECONDS)
                self._reply = read_cluster(self._caller, ANSWER_SECONDS)
            except InputError as error:
                self._disconnect()
                self._problem = str(error)
                return
            self._problem = ""
            self._milliseconds = 1000 * (time.monotonic() - began)
            self._presence.update(self._clock(), self._reply)

    def _disconnect(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()

    # ---- missing nodes -----------------------------------------------------------------------------------------

    def poll_starters(self) -> None:
        """Requests the state of node starters and the store, each at most once per period."""
        with self._starting:
            now = time.monotonic()
            if now < min(self._next_starts, self._next_store) or (self._reply is None and not self._problem):
                return  # before the first reply of an agent, all nodes would count as missing
            try:
                started = self._home.read_started() if self._home is not None else ClusterRecord()
                if now >= self._next_starts:
                    self._groups = self._poll_starters(self._home, started) if self._home is not None else ()
                    is_near = all(group.kind == "local" for group in started.groups)
                    self._next_starts = time.monotonic() + (NEAR_SECONDS if is_near else FAR_SECONDS)
                if now >= self._next_store:
                    self._store = self._poll_store(started)
                    is_near = self._store.kind != "redis"
                    self._next_store = time.monotonic() + (NEAR_SECONDS if is_near else FAR_SECONDS)
            except ShoalError as error:  # for example a damaged cluster record or an unknown host
                self._store = StoreStatus(problem=str(error))
                self._next_starts = self._next_store = time.monotonic() + FAR_SECONDS

    def _poll_starters(self, home: ClusterHome, started: ClusterRecord) -> tuple[GroupState, ...]:
        missing = absent(home, started, self._reply or ClusterReply({}, []))
        found = []
        for group in started.groups:
            words = [
                Missing(handle.name, standing.phase.value, _which(handle), standing.reason)
                for handle, standing in missing[group.name]
                if not (group.closing and standing.phase is NodePhase.ENDED)
            ]
            factory = factory_state(home, started, group)
            found.append(GroupState(group.name, group.kind, group.closing, factory, tuple(words)))
        return tuple(found)

    def _poll_store(self, started: ClusterRecord) -> StoreStatus:
        head, problem = started.head, ""
        figures = [("response time of an agent", show_seconds(self._milliseconds / 1000))] if self._milliseconds else []
        if isinstance(head, LocalHandle):
            runs = is_alive(head)
            figures.append(("head", f"process {head.pid}" if runs else "not running"))
            if not runs:
                problem = f"the head of the cluster is not running; 'shoal cluster restart {self.name}' restarts it"
        where = ", ".join(contact.removeprefix("tcp://") for contact in self._access.contacts)
        if self._access.store is not None:
            return _poll_redis(self._access, self._access.store, problem, figures)
        if self._home is None:
            return StoreStatus("", where, problem, (), tuple(figures))
        journals = _size_of(self._home.store, ".journal")
        return StoreStatus("head", where, problem, (), (*figures, ("journals", show_bytes(journals))))


def _which(handle: object) -> str:
    job, host = getattr(handle, "job", ""), getattr(handle, "host", "")
    if job:
        return f"job {job}"
    return host or f"process {getattr(handle, 'pid', '')}"


def _poll_redis(access: Access, url: str, problem: str, figures: list[tuple[str, str]]) -> StoreStatus:
    """The state that the server reports."""
    from shoal.cluster.stores.redis import RedisLink, key_of, worries

    where = places_of(url)
    try:
        link = RedisLink(url.split(","), key_of(access.cluster, "summary"), patience=REDIS_SECONDS)
        try:
            server, memory, clients = link.info("server"), link.info("memory"), link.info("clients")
            figures += [
                ("version", str(server.get("redis_version", ""))),
                ("memory", show_bytes(int(memory.get("used_memory", 0)))),
                ("connections", str(clients.get("connected_clients", ""))),
            ]
            return StoreStatus("redis", where, problem, tuple(worries(link).values()), tuple(figures))
        finally:
            link.close()
    except (InputError, RunError):
        return StoreStatus("redis", where, f"no Redis server replies at {where}", (), tuple(figures))


def _size_of(folder: str, ending: str) -> int:
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(ending):
                try:
                    found += os.path.getsize(os.path.join(path, name))
                except OSError:
                    pass  # removed in the meantime
    return found


def cluster_metrics(parts: Mapping[str, Any]) -> str:
    """The metrics text, from the parts of the page."""
    cluster, nodes = parts["cluster"], parts["nodes"]
    who = {"cluster": cluster["name"], "shoal": cluster["shoal"]}
    states = Counter(row["state"] for row in nodes)
    missing: list[Sample] = [({"group": group["name"]}, len(group["missing"])) for group in parts["groups"]]
    tasks: list[Sample] = [
        ({"run": run["run"], "workflow": run["name"], "state": state}, number)
        for run in parts["runs"]
        for state, number in (("over", run["over"]), ("left", run["tasks"] - run["over"]), ("ready", run["ready"]))
    ]
    lines = [
        *family("shoal_cluster", "info", "Identity of the cluster.", [(who, 1)]),
        *family(
            "shoal_cluster_answers", "gauge", "1 if an agent of the cluster responds.", [({}, float(cluster["live"]))]
        ),
        *family(
            "shoal_cluster_nodes", "gauge", "Nodes by state.", [({"state": s}, n) for s, n in sorted(states.items())]
        ),
        *family("shoal_cluster_missing_nodes", "gauge", "Nodes that were requested and have not joined.", missing),
        *family("shoal_cluster_run_tasks", "gauge", "Tasks of runs on the cluster, by state.", tasks),
        *node_families([row for row in nodes if not row["left"]]),
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


LOOK_SECONDS = 0.5
"""Nodes report their state once a second."""
PATHS = ["cluster", "events"]
MOST_NODES = 400
"""Maximum number of nodes on the page; counts and metrics cover all nodes."""


class ClusterRefresher(threading.Thread):
    """Refreshes the board while clients watch it. A second thread makes the slow requests."""

    def __init__(self, watch: ClusterWatch, board: Board) -> None:
        super().__init__(name="refresher", daemon=True)
        self._watch, self._board = watch, board
        self._wanted, self._stop_now = threading.Event(), threading.Event()
        self._slow = threading.Thread(target=self._follow_starts, name="starts", daemon=True)

    def wake(self) -> None:
        """Called for each request: wakes the thread at the first one."""
        self._wanted.set()

    def bring_up_to_date(self) -> None:
        """Refreshes the board for a client that reads it once."""
        self._watch.poll()
        self._watch.poll_starters()
        self._publish()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop_now.set()
        self._wanted.set()

    def run(self) -> None:
        self._slow.start()
        looking = GuardedWork(self._board, "agents")
        while not self._stop_now.is_set():
            if not self._board.watchers:
                self._wanted.wait()
            self._wanted.clear()
            self._stop_now.wait(LOOK_SECONDS if looking.do(self._poll) else AGAIN_SECONDS)
        self._watch.close()
        self._board.close()

    def _poll(self) -> None:
        self._watch.poll()
        self._publish()

    def _follow_starts(self) -> None:
        asking = GuardedWork(self._board, "starts")
        while not self._stop_now.is_set():
            went_well = not self._board.watchers or asking.do(self._watch.poll_starters)
            self._stop_now.wait(LOOK_SECONDS if went_well else AGAIN_SECONDS)

    def _publish(self) -> None:
        parts = self._watch.parts()
        nodes = parts.pop("nodes")[:MOST_NODES]
        self._board.publish({**parts, **in_pieces("nodes", nodes)}, gone=("nodes",))


class ClusterApi:
    """The page source of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._watch = ClusterWatch(cluster)
        self.board = Board()
        self.refresher = ClusterRefresher(self._watch, self.board)
        self.refresher.start()

    def prepare(self) -> None:
        """Nothing: a cluster page has no slow parts."""

    def answer(self, path: str, query: Query) -> Reply:
        """The reply to `/api/v1/PATH?QUERY`."""
        match path.rstrip("/"):
            case "":
                return json_reply({"version": VERSION, "shoal": __version__, "paths": PATHS})
            case "cluster":
                self.refresher.bring_up_to_date()
                return parts_reply(self.board)
        return RefusedRequest(f"{path!r} not found; this server shows a cluster", 404).reply()

    def metrics(self) -> Reply:
        self._watch.poll()
        self._watch.poll_starters()
        return Reply(cluster_metrics(self._watch.parts()).encode("utf-8", "replace"), CONTENT_TYPE)
