"""Runs that are being brought: their pieces arrive one after another, and become books when all are there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.cluster.agent.messages import SubmissionPiece
from shoal.cluster.agent.run_description import RunDescription
from shoal.cluster.agent.run_store import ClusterStores
from shoal.cluster.agent.task_files import SOURCES, decode_sources
from shoal.core.store.packed_columns import ColumnsSummary, flaw, unpack_work
from shoal.core.work import Work
from shoal.errors import InputError

PATIENCE = 600.0
"""Seconds after which a run that nobody finished bringing is dropped."""
MOST_BYTES = 4 << 30
SUMMARY, DEEDS = "summary", "deeds:"

_decode_summary = msgspec.msgpack.Decoder(ColumnsSummary).decode


class IncompleteError(InputError):
    """Something that was brought before is not here, as after a restart."""


class _Arriving:
    def __init__(self) -> None:
        self.pieces: dict[str, bytearray] = {}
        self.touched = 0.0
        self.bytes = 0


class Submissions:
    """What one agent has been sent of runs that are not there yet."""

    def __init__(self) -> None:
        self._arriving: dict[str, _Arriving] = {}

    def take(self, piece: SubmissionPiece, now: float) -> None:
        """A piece that arrives a second time changes nothing."""
        for run, arriving in list(self._arriving.items()):
            if now - arriving.touched > PATIENCE:
                del self._arriving[run]
        arriving = self._arriving.setdefault(piece.run, _Arriving())
        arriving.touched = now
        column = arriving.pieces.setdefault(piece.name, bytearray())
        if piece.at < len(column):
            return
        if piece.at > len(column):
            raise IncompleteError(f"a piece of {piece.name} of the run {piece.run} is missing", remedy="bring it again")
        arriving.bytes += len(piece.data)
        if arriving.bytes > MOST_BYTES:
            del self._arriving[piece.run]
            raise InputError(f"the run {piece.run} is too large", remedy="split it into several")
        column += piece.data

    def under_way(self) -> list[str]:
        """Runs of which something has arrived."""
        return list(self._arriving)

    def bring(
        self, run: str, about: RunDescription, books: ClusterStores, has_source: Callable[[str, int], bool]
    ) -> None:
        """Everything has arrived."""
        arriving = self._arriving.pop(run, None)
        if arriving is None:
            raise IncompleteError(f"nothing of the run {run} has arrived", remedy="bring it again")
        pieces = {name: bytes(column) for name, column in arriving.pieces.items()}
        work = work_of(pieces)
        if len(work) != about.tasks:
            raise IncompleteError(f"the run {run} has arrived in parts only", remedy="bring it again")
        what = flaw(work)
        if what is not None:
            raise InputError(f"what was brought is not a run: {what}")
        if about.managed:
            _look_for_sources(run, work, pieces, has_source)
        try:
            books.open(run).forget()  # whoever took it before was ended before the cluster was told of it
        except InputError:
            pass  # there is none, as there should not be
        kept = {name: data for name, data in pieces.items() if name.startswith(DEEDS) or name == SOURCES}
        books.bring(run, work, kept, managed=about.managed)


def _look_for_sources(run: str, work: Work, pieces: dict[str, bytes], has_source: Callable[[str, int], bool]) -> None:
    """Every file that no task makes must have been brought, or tasks would look for it for ever."""
    told = decode_sources(pieces.get(SOURCES, b"\x80"))
    made = set(work.outputs)
    for file in set(work.inputs) - made:
        if file not in told or not has_source(run, file):
            raise IncompleteError("a file that no task makes has not arrived", remedy="bring it again")


def work_of(pieces: dict[str, bytes]) -> Work:
    """The work that was sent; `InputError` if it is none."""
    try:
        return unpack_work(_decode_summary(pieces[SUMMARY]), pieces)
    except KeyError:
        raise IncompleteError("the run has arrived in parts only", remedy="bring it again") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"what was brought is not a run: {error}") from None
