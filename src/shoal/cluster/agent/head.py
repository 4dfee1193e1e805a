"""The head of a cluster: holds the books where there is no Redis, and answers clients when no node is there yet.

It runs no tasks. With Redis nothing depends on it; without, agents wait for it while it is away, and when it comes back
on the same path and port it knows everything that it has answered.
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
"""How often it looks whether anybody is there for the runs."""
NOBODY_THERE = "no node is there now; the run waits for one"


class HeadAgent:
    """One head, until it is told to end."""

    def __init__(
        self,
        post: Messenger[WireMessage],
        books: ClusterStores,
        server: StoreServer | None,
        depot: NodeCache,
        publish: Callable[[list[str]], None] = lambda addresses: None,
    ) -> None:
        """`publish` notes where clients are answered while the head is away."""
        self.post, self.books, self.server = post, books, server
        self._publish = publish
        self.clock = AgentClock()
        self.desk = RequestHandler(self, post, books, depot, keeps_sources=True)
        self.leaving = False
        self._next_look = 0.0
        self._known: set[str] = set()
        """Addresses of nodes that were there the last time."""
        self._abandoned: str | None = None
        """The run whose followers know that nobody is there."""

    def serve(self) -> None:
        """Until somebody says that it is enough."""
        self.wakeup = Wakeup(SIGNALS)
        for descriptor in self.post.fds():
            self.wakeup.add(descriptor)
        try:
            synced = 0.0
            while not self.leaving:
                self.wakeup.wait(TICK_SECONDS)
                self.leaving = self.leaving or bool(self.wakeup.signals)
                self.desk.serve(self.clock())
                if self.server is not None and self.clock() >= synced + TICK_SECONDS:
                    self.server.sync()
                    synced = self.clock()
                if self.clock() >= self._next_look:
                    self._look()
                self.post.flush()
        finally:
            self.wakeup.close()
            self.desk.depot.close()
            self.post.close(linger=0.5)

    def _look(self) -> None:
        """A run that waits with nobody there says so to whoever follows it; no agent can."""
        self._next_look = self.clock() + LOOK_SECONDS
        directory = self.books.directory
        try:
            self._forget_departed({node.address for node in directory.nodes().values()})
            run = next((each.run for each in directory.runs() if each.state != "ended"), None)
            lost = directory.expired() if run is not None else []
            if run is None or any(number not in lost for number in directory.nodes()):
                self._abandoned = None
            elif self._abandoned != run:
                self.books.open(run).note(encode(LogEntry(-1, 0, "note", "", "head", message=NOBODY_THERE)))
                self._abandoned = run
        except ShoalError:
            pass  # the books are away, and everybody who asks for them notices

    def _forget_departed(self, there: set[str]) -> None:
        """What is still to be sent to a node that is gone is sent no more."""
        for address in self._known - there:
            self.post.forget(address)
        if there != self._known and self.books.outlive_head:
            self._publish(sorted(there))
        self._known = there

    def hear(self, message: WireMessage) -> WireMessage | None:
        """Agents ask the store."""
        if isinstance(message, StoreRequest) and self.server is not None:
            return StoreReply(self.server.perform(message.request, self.clock()))
        return None

    def runs_changed(self) -> None:
        """The agents would notice at their next beat; this is sooner."""
        for node in self.books.directory.nodes().values():
            self.post.send(node.address, RunsChangedEvent())

    def unwanted(self, run: str, tasks: list[int]) -> None:
        for node in self.books.directory.nodes().values():
            self.post.send(node.address, TasksUnwantedEvent(run, tasks))

    def explain(self, run: str, task: int) -> Answer | None:
        return None

    def explain_run(self, run: str) -> RunAnswer | None:
        return None

    def running_of(self, run: str) -> int:
        return 0

    def leave(self, *, at_once: bool) -> None:
        self.leaving = True
