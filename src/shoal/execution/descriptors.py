"""How many descriptors (open files, connections) this process may have, and how many are left.

A process with many connections raises its soft limit to the hard one. The programs that it starts get the limit that
it was given: some of them have a table of that size, or close all descriptors up to it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_RESERVED = 64
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Error numbers: this process has as many as it may have, or the machine has."""

_given: int | None = None
"""The soft limit before it was raised; None: it was not raised."""


def raise_limit() -> int:
    """Raises the soft limit to the hard one; returns the soft limit that this process was given."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _given is None and soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # some containers do not permit it: then it stays as it is
        _given = soft
    return soft if _given is None else _given


@contextmanager
def given_limit() -> Iterator[None]:
    """While this lasts, programs are started with the soft limit that this process was given.

    Descriptors above it stay open. Another thread that wants a new one may be refused meanwhile, so it must be short.
    """
    if _given is None:
        yield
        return
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_given, raised[1]), raised[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, raised)


def is_above_given_limit(descriptor: int) -> bool:
    """Whether a program with the limit that we were given cannot be started with this descriptor at another number."""
    return _given is not None and descriptor >= _given


def with_given_limit(words: Sequence[str]) -> list[str]:
    """The same command, which sets its limit to the one that we were given itself."""
    return ["/bin/sh", "-c", 'ulimit -S -n "$1" && shift && exec "$@"', "shoal", str(_given), *words]


def limit() -> int:
    """The most descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_left(descriptor: int) -> int:
    """An upper bound of how many descriptors are left, found by copying `descriptor`.

    The system gives the lowest free number, so all below it are in use.
    """
    try:
        lowest = os.dup(descriptor)
    except OSError:
        return 0
    os.close(lowest)
    return limit() - lowest


def reserve() -> int:
    """How many are kept for files and programs; when fewer are left, no new connections are taken."""
    return min(MOST_RESERVED, limit() // 8)


def is_scarce(descriptor: int) -> bool:
    """Whether no new connections should be taken."""
    return most_left(descriptor) < reserve()


def shortage() -> str:
    """What is said of it."""
    return (
        f"no more open files are left than are needed here (limit: {limit()}): new connections wait, existing ones go "
        "on; a higher hard limit ('ulimit -Hn') would permit more"
    )
