"""What can be asked of a watched cluster, the thread that keeps its page up to date, and metrics."""

from __future__ import annotations

import threading

from shoal import __version__
from shoal.web.board import Board
from shoal.web.clustermetrics import cluster_metrics
from shoal.web.clusterwatch import ClusterWatch
from shoal.web.failing import AGAIN_SECONDS, Attempts
from shoal.web.metrics import CONTENT_TYPE
from shoal.web.pieces import in_pieces
from shoal.web.source import VERSION, Query, Refused, Reply, json_reply, parts_reply

LOOK_SECONDS = 0.5
"""Nodes tell once a second how they are doing."""
PATHS = ["cluster", "events"]
MOST_NODES = 400
"""On the page; all of them are counted, and have metrics."""


class ClusterRefresher(threading.Thread):
    """Looks and publishes while anybody looks at the board; what takes long is asked by a second thread."""

    def __init__(self, watch: ClusterWatch, board: Board) -> None:
        super().__init__(name="refresher", daemon=True)
        self._watch, self._board = watch, board
        self._wanted, self._stop_now = threading.Event(), threading.Event()
        self._slow = threading.Thread(target=self._follow_starts, name="starts", daemon=True)

    def wake(self) -> None:
        """Somebody looks from now on."""
        self._wanted.set()

    def bring_up_to_date(self) -> None:
        """For somebody who looks once."""
        self._watch.look()
        self._watch.look_at_starts()
        self._publish()

    def stop(self) -> None:
        """No more."""
        self._stop_now.set()
        self._wanted.set()

    def run(self) -> None:
        self._slow.start()
        looking = Attempts(self._board, "agents")
        while not self._stop_now.is_set():
            if not self._board.watchers:
                self._wanted.wait()
            self._wanted.clear()
            self._stop_now.wait(LOOK_SECONDS if looking.do(self._look) else AGAIN_SECONDS)
        self._watch.close()
        self._board.close()

    def _look(self) -> None:
        self._watch.look()
        self._publish()

    def _follow_starts(self) -> None:
        asking = Attempts(self._board, "starts")
        while not self._stop_now.is_set():
            went_well = not self._board.watchers or asking.do(self._watch.look_at_starts)
            self._stop_now.wait(LOOK_SECONDS if went_well else AGAIN_SECONDS)

    def _publish(self) -> None:
        parts = self._watch.parts()
        nodes = parts.pop("nodes")[:MOST_NODES]
        self._board.publish({**parts, **in_pieces("nodes", nodes)}, gone=("nodes",))


class ClusterApi:
    """One cluster, and everything that can be asked about it."""

    def __init__(self, cluster: str) -> None:
        self._watch = ClusterWatch(cluster)
        self.board = Board()
        self.refresher = ClusterRefresher(self._watch, self.board)
        self.refresher.start()

    def prepare(self) -> None:
        """There is nothing that takes long and that everybody wants."""

    def answer(self, path: str, query: Query) -> Reply:
        """The answer to `/api/v1/PATH?QUERY`."""
        match path.rstrip("/"):
            case "":
                return json_reply({"version": VERSION, "shoal": __version__, "paths": PATHS})
            case "cluster":
                self.refresher.bring_up_to_date()
                return parts_reply(self.board)
        return Refused(f"{path!r} not found; this server shows a cluster", 404).reply()

    def metrics(self) -> Reply:
        self._watch.look()
        self._watch.look_at_starts()
        return Reply(cluster_metrics(self._watch.parts()).encode("utf-8", "replace"), CONTENT_TYPE)
