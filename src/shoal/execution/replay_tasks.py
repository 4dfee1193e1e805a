"""What a replayed task does, in a worker process: reads, burns CPU time, writes, holds memory and waits.

A module of its own because every worker imports it, and start-up time counts. What a task is to do is in its arguments;
`shoal.execution.replay` makes those.
"""

from __future__ import annotations

import time
from hashlib import blake2b, shake_128
from resource import getpagesize

_BLOCK = 1 << 18
_HASHED = 4096
"""Bytes hashed between two looks at the clock: some microseconds, and enough for other threads to run meanwhile."""


def replay_task(
    reads: tuple[str, ...],
    writes: tuple[tuple[str, int], ...],
    seconds: float,
    cpu_seconds: float,
    threads: int,
    memory: int,
) -> None:
    """Takes `seconds` in all, unless reading, burning `cpu_seconds` in so many threads and writing take longer."""
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
    """Writes that many bytes, really: neither a hole nor something that a file system could compress."""
    block = filler()
    with open(name, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block if left >= len(block) else block[:left])


_filler: list[bytes] = []


def filler() -> bytes:
    """Bytes that do not compress, the same in every process and every run."""
    if not _filler:
        _filler.append(shake_128(b"shoal").digest(_BLOCK))
    return _filler[0]


def burn(until: float, threads: int) -> None:
    """Keeps the processor busy until this thread has used that much CPU time, and further threads as long."""
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
    """Memory that is really there, so much that with what the process has anyway it is `memory` bytes."""
    with open("/proc/self/statm", "rb") as statm:
        missing = memory - int(statm.read().split()[1]) * getpagesize()
    return bytearray(b"\1") * missing if missing > 0 else None
