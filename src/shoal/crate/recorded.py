"""What the ledger says of a run beyond what is shown of it: sizes and times of files, and whether it is of a net."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.ledger.records import RunStarted, SourcesSeen, TaskEnded, decode
from shoal.report.reading import LedgerTail

_RUN, _NET, _SOURCES, _END = b"\xa3run", b"\xa3net", b"\xa3src", b"\xa3end"
"""How records begin, behind the few bytes that say how long the array is."""


def run_numbered(ledger: str, identity: str) -> int | None:
    """The number of the last run of this identity, counted from 1."""
    found, runs = None, 0
    for payload in _payloads(ledger, (_RUN,)):
        record = decode(payload)
        if isinstance(record, RunStarted):
            runs += 1
            found = runs if record.run == identity else found
    return found


def is_net(ledger: str) -> bool:
    """Whether the ledger is that of a net: one workflow file is always one or the other."""
    return any(True for _ in _payloads(ledger, (_NET,)))


def file_records(ledger: str, run: int) -> Iterator[tuple[bool, SourcesSeen | TaskEnded]]:
    """How every attempt ended up to the run of this number, and what sources that one has seen.

    With each record it is said whether it is of that run; those of earlier ones come first.
    """
    runs = 0
    for payload in _payloads(ledger, (_RUN, _SOURCES, _END)):
        if _RUN in payload[:8]:
            runs += isinstance(decode(payload), RunStarted)
            if runs > run:
                return
        elif runs == run or _END in payload[:8]:
            record = decode(payload)
            if isinstance(record, SourcesSeen | TaskEnded):
                yield runs == run, record


def _payloads(ledger: str, kinds: tuple[bytes, ...]) -> Iterator[bytes]:
    for payloads in LedgerTail(ledger).pieces():
        for payload in payloads:
            head = payload[:8]
            for kind in kinds:
                if kind in head:
                    yield payload
                    break
