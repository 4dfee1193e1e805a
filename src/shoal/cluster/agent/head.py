"""The head agent of a cluster: serves the store where there is no Redis, and replies to clients while there is no node.

The head runs no tasks. With Redis, nothing depends on it. Without, agents wait for it while it is down; a head that is
restarted on the same path and port restores everything that it has confirmed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.cluster.agent.messages import (
    AgentClock,
    RunsChangedEvent,
    StoreReply,
    StoreRequest,
    TasksUnwantedEvent,
    WireMessage,
)
from shoal.cluster.agent.node_cache import NodeCache
from shoal.cluster.agent.request_handler import RequestHandler
from shoal.cluster.agent.run_description import LogEntry, encode
from shoal.cluster.agent.run_store import ClusterStores
from shoal.cluster.messaging.messenger import Messenger
from shoal.core.explain.answer import Answer, RunAnswer
from shoal.errors import ShoalError
from shoal.execution.processes.wakeup import Wakeup

if TYPE_CHECKING:
    from shoal.cluster.stores.server import StoreServer

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TICK_SECONDS = 1.0
LOOK_SECONDS = 2.0
"""Seconds between two checks whether a run has no nodes."""
NOBODY_THERE = "the cluster has no node; the run waits for one"


class HeadAgent:
    """The head, until it is stopped."""

    def __init__(
        self,
        messenger: Messenger[WireMessage],
        stores: ClusterStores,
        server: StoreServer | None,
        node_cache: NodeCache,
        publish: Callable[[list[str]], None] = lambda addresses: None,
    ) -> None:
        """`publish` records the addresses where clients get replies while the head is down."""
        self.messenger, self.stores, self.server = messenger, stores, server
        self._publish = publish
        self.clock = AgentClock()
        self.request_handler = RequestHandler(self, messenger, stores, node_cache, keeps_sources=True)
        self.leaving = False
        self._next_look = 0.0
        self._known: set[str] = set()
        """Addresses of the nodes at the last check."""
        self._abandoned: str | None = None
        """The run whose followers were told that there is no node."""

    def serve(self) -> None:
        """Runs the loop until the head is stopped."""
        self.wakeup = Wakeup(SIGNALS)
        for descriptor in self.messenger.fds():
            self.wakeup.add(descriptor)
        try:
            synced = 0.0
            while not self.leaving:
                self.wakeup.wait(TICK_SECONDS)
                self.leaving = self.leaving or bool(self.wakeup.signals)
                self.request_handler.serve(self.clock())
                if self.server is not None and self.clock() >= synced + TICK_SECONDS:
                    self.server.sync()
                    synced = self.clock()
                if self.clock() >= self._next_look:
                    self._look()
                self.messenger.flush()
        finally:
            self.wakeup.close()
            self.request_handler.node_cache.close()
            self.messenger.close(linger=0.5)

    def _look(self) -> None:
        """Writes to a run's log that it has no nodes, for the clients that follow it; no agent could do that."""
        self._next_look = self.clock() + LOOK_SECONDS
        directory = self.stores.directory
        try:
            self._forget_departed({node.address for node in directory.nodes().values()})
            run = next((each.run for each in directory.runs() if each.state != "ended"), None)
            lost = directory.expired() if run is not None else []
            if run is None or any(number not in lost for number in directory.nodes()):
                self._abandoned = None
            elif self._abandoned != run:
                self.stores.open(run).note(encode(LogEntry(-1, 0, "note", "", "head", message=NOBODY_THERE)))
                self._abandoned = run
        except ShoalError:
            pass  # the store is unreachable; every agent that needs it notices

    def _forget_departed(self, there: set[str]) -> None:
        """Drops messages that are queued for nodes that have left."""
        for address in self._known - there:
            self.messenger.forget(address)
        if there != self._known and self.stores.outlive_head:
            self._publish(sorted(there))
        self._known = there

    def hear(self, message: WireMessage) -> WireMessage | None:
        """Passes requests of agents to the store."""
        if isinstance(message, StoreRequest) and self.server is not None:
            return StoreReply(self.server.perform(message.request, self.clock()))
        return None

    def runs_changed(self) -> None:
        """Notifies the agents, which would notice only with their next heartbeat."""
        for node in self.stores.directory.nodes().values():
            self.messenger.send(node.address, RunsChangedEvent())

    def unwanted(self, run: str, tasks: list[int]) -> None:
        for node in self.stores.directory.nodes().values():
            self.messenger.send(node.address, TasksUnwantedEvent(run, tasks))

    def explain(self, run: str, task: int) -> Answer | None:
        return None

    def explain_run(self, run: str) -> RunAnswer | None:
        return None

    def running_of(self, run: str) -> int:
        return 0

    def leave(self, *, at_once: bool) -> None:
        self.leaving = True
