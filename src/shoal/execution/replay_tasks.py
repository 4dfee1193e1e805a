"""The function that a replayed task runs in a worker process: reads, burns CPU time, writes, holds memory and waits.

A module of its own because every worker imports it, and start-up time matters. `shoal.execution.replay` computes the
arguments.
"""

from __future__ import annotations

import time
from hashlib import blake2b, shake_128
from resource import getpagesize

_BLOCK = 1 << 18
_HASHED = 4096
"""Bytes hashed between two clock readings: this takes some microseconds, and lets other threads run meanwhile."""


def replay_task(
    reads: tuple[str, ...],
    writes: tuple[tuple[str, int], ...],
    seconds: float,
    cpu_seconds: float,
    threads: int,
    memory: int,
) -> None:
    """Takes `seconds` in total, or longer if reading, `cpu_seconds` of CPU time in `threads` threads and writing take
    longer."""
    began = time.monotonic()
    cpu_began = time.thread_time()
    held = hold(memory) if memory else None
    for name in reads:
        read_all(name)
    burn(cpu_began + cpu_seconds / threads, threads)
    for name, size in writes:
        write(name, size)
    left = began + seconds - time.monotonic()
    if left > 0:
        time.sleep(left)
    del held


def read_all(name: str) -> None:
    with open(name, "rb", buffering=0) as file:
        while file.read(_BLOCK):
            pass


def write(name: str, size: int) -> None:
    """Writes `size` bytes that the file system can neither leave as a hole nor compress."""
    block = filler()
    with open(name, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block if left >= len(block) else block[:left])


_filler: list[bytes] = []


def filler() -> bytes:
    """Returns bytes that do not compress, the same in every process and run."""
    if not _filler:
        _filler.append(shake_128(b"shoal").digest(_BLOCK))
    return _filler[0]


def burn(until: float, threads: int) -> None:
    """Keeps the CPU busy until this thread has used that much CPU time, and `threads - 1` other threads for as long."""
    share = until - time.thread_time()
    if share <= 0:
        return
    others = []
    if threads > 1:
        from threading import Thread

        others = [Thread(target=_spin, args=(share,)) for _ in range(threads - 1)]
    for other in others:
        other.start()
    _spin(share)
    for other in others:
        other.join()


def _spin(seconds: float) -> None:
    data = bytes(_HASHED)
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        blake2b(data).digest()


def hold(memory: int) -> bytearray | None:
    """Allocates and touches memory, so that the process uses `memory` bytes in total."""
    with open("/proc/self/statm", "rb") as statm:
        missing = memory - int(statm.read().split()[1]) * getpagesize()
    return bytearray(b"\1") * missing if missing > 0 else None
