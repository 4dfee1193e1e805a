"""What a server shows: something whose parts stand on a board, kept up to date by a thread, and that answers questions.

A run is one such thing (`api`), a cluster another one (`clusterapi`). HTTP itself is left to `server`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from shoal.ui.web.board import Board

VERSION = 1
"""Of the interface for programs; it changes when the meaning of an answer does."""
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
Query = Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """What is sent back."""

    body: bytes
    type: str = JSON
    status: int = 200


class RefusedRequest(Exception):  # noqa: N818  an answer, not an error of ours
    """Something was asked that there is not, or wrongly."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status

    def reply(self) -> Reply:
        return Reply(msgspec.json.encode({"error": str(self)}), status=self.status)


def json_reply(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))


def parts_reply(board: Board) -> Reply:
    """All parts of a page, for somebody who asks once."""
    version, parts = board.since(0)
    return Reply(b'{"version":%d,"as_of":%d,"parts":%b}' % (VERSION, version, parts))


class Refreshing(Protocol):
    """The thread that keeps a board up to date."""

    def wake(self) -> None:
        """Somebody looks from now on."""

    def stop(self) -> None:
        """One last round, then no more."""

    def join(self, timeout: float | None = None) -> None: ...


class PageSource(Protocol):
    """What is shown."""

    @property
    def board(self) -> Board: ...

    @property
    def refresher(self) -> Refreshing: ...

    def prepare(self) -> None:
        """Does beforehand what is asked for first."""

    def answer(self, path: str, query: Query) -> Reply:
        """The answer to `/api/v1/PATH?QUERY`."""

    def metrics(self) -> Reply: ...
