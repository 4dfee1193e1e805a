"""What a server beside a run takes of memory and processor time.

Memory that the C library would keep is given back: a server that has read a million tasks must stay small. glibc makes
a heap for every thread, and keeps what was freed in the middle of one. Elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Names of `mallopt`, in malloc.h."""
_LARGE = 1 << 20
_NICE = 10


def use_one_heap() -> None:
    """To be called before there are threads, and before numpy is loaded: what it would start of them costs more than
    they ever do here."""
    _mallopt(_ARENA_MAX, 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def yield_to_others() -> None:
    """Takes what processor time others leave, and does not interrupt them to get it."""
    os.nice(_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some containers do not permit it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_back() -> None:
    """Gives back what is free, and from now on everything large as soon as it is."""
    _mallopt(_MMAP_THRESHOLD, _LARGE)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mallopt(name: int, value: int) -> None:
    found = getattr(ctypes.CDLL(None), "mallopt", None)
    if found is not None:
        found(name, value)
