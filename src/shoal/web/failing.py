"""Work that a thread does again and again for a page: when it fails the page says so, and it is tried once more."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.web.board import Board

AGAIN_SECONDS = 2.0
"""Pause after a failure."""


def in_words(error: Exception) -> str:
    """What the page says of it."""
    if isinstance(error, (ShoalError, OSError)):
        return f"This page cannot be updated at the moment: {error}"
    return f"This page is not up to date because of an internal error in Shoal: {type(error).__name__}: {error}"


class Attempts:
    """One piece of work, and the part of the board that tells of its failure."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._part = f"failed.{name}"
        self._told = ""

    def do(self, work: Callable[[], None]) -> bool:
        """Does it; false if it has failed. The top of a thread: without this it would end, and nobody would know."""
        try:
            work()
        except Exception as error:
            self._tell(error)
            return False
        if self._told:
            self._told = ""
            self._board.publish({self._part: None})
        return True

    def _tell(self, error: Exception) -> None:
        told = in_words(error)
        if told != self._told and not isinstance(error, (ShoalError, OSError)):
            traceback.print_exception(error)  # once, for whoever mends it
        self._told = told
        self._board.publish({self._part: told})
