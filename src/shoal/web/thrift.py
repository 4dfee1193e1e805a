"""Memory that the C library would keep is given back: a server that has read a million tasks must stay small.

glibc makes a heap for every thread, and keeps what was freed in the middle of one. Elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Names of `mallopt`, in malloc.h."""
_LARGE = 1 << 20


def use_one_heap() -> None:
    """To be called before there are threads."""
    _mallopt(_ARENA_MAX, 1)


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
