"""Starting the command: fork, execute, and what can be told of its program.

A fork, not `posix_spawn`: the kernel begins the peak memory of a new program with that of the process image it
replaces. A forked copy of this small process can tell, just before it is replaced, how much that was (about 9 MB), and
how much time it took. A peak that is not above this says nothing; then what was seen in `/proc` has to do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
from collections.abc import Iterable

from shoal.errors import InputError

SHELL = "/bin/sh"
_PARENT_DEATH_SIGNAL = 1
_PAGE = 4096
_COUNTED_APART = 3
"""Kinds of pages that the kernel counts apart: anonymous, of files, shared."""


def find_program(name: str) -> str:
    """The path that will be executed."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(place, name) for place in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if "/" in name and os.path.exists(name):
        raise InputError(f"{name!r} cannot be executed", remedy="is it a program, and may you execute it?")
    raise InputError(f"there is no program {name!r}", remedy="is it spelled right, and in PATH?")


def program_type(path: str) -> str:
    """`dynamic`, `static`, the interpreter line of a script, or `unknown`."""
    try:
        with open(path, "rb") as file:
            head = file.read(_PAGE)
    except OSError:
        return "unknown"
    if head.startswith(b"#!"):
        return head.partition(b"\n")[0].decode("utf-8", "replace").strip()
    if not head.startswith(b"\x7fELF"):
        return "unknown"
    return "dynamic" if _names_a_loader(head) else "static"


def _names_a_loader(head: bytes) -> bool:
    """Whether an ELF file has a program header of the type `PT_INTERP` (3)."""
    wide, little = head[4] == 2, head[5] == 1

    def value(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], "little" if little else "big")

    table = value(32, 8) if wide else value(28, 4)
    size, count = (value(54, 2), value(56, 2)) if wide else (value(42, 2), value(44, 2))
    return any(value(table + index * size, 4) == 3 for index in range(count))


def _slack(processors: int) -> int:
    """Bytes by which the peak of the copy may still grow after its last word without its using more.

    The kernel counts pages on each processor apart and adds them up when there is a batch of them, so that a total is
    off by at most a batch for each processor that counted: the one that forked, and the one that the copy runs on.
    """
    batch = max(32, 2 * processors)
    return _COUNTED_APART * batch * min(processors, 2) * os.sysconf("SC_PAGE_SIZE")


class Command:
    """A started command.

    Below `floor` bytes its peak in `wait4` says nothing, and `head_start` seconds of its CPU time were ours.
    """

    def __init__(self, pid: int, floor: int, head_start: float) -> None:
        self.pid = pid
        self.floor = floor
        self.head_start = head_start


def start(path: str, words: list[str], mask: Iterable[int]) -> Command:
    """Starts the program and returns when it has been loaded; `mask` are the signals that it blocks."""
    libc = ctypes.CDLL(None)
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(path, words, mask, libc, parent, writer)
    os.close(writer)
    told = b""
    while chunk := os.read(reader, 64):
        told += chunk
    os.close(reader)
    numbers = [int(word) for word in told.split()]
    if len(numbers) != 2:
        os.waitpid(pid, 0)
        raise InputError(f"cannot start {words[0]!r}: {os.strerror(numbers[-1] if numbers else errno.EIO)}")
    return Command(pid, numbers[0] * 1024 + _slack(os.cpu_count() or 1), numbers[1] / 1e6)


def _become(path: str, words: list[str], mask: Iterable[int], libc: ctypes.CDLL, parent: int, writer: int) -> None:
    """The rest of the copy's life; it never comes back."""
    try:
        libc.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the program would inherit that
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execv("", words)  # fails, and touches every page that the one below needs before the peak is read
        except OSError:
            pass
        spent = resource.getrusage(resource.RUSAGE_SELF)
        os.write(writer, b"%d %d" % (spent.ru_maxrss, (spent.ru_utime + spent.ru_stime) * 1e6))
        try:
            os.execv(path, words)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv(SHELL, [SHELL, path, *words[1:]])  # a script without an interpreter line
    except OSError as error:
        os.write(writer, b" %d" % (error.errno or errno.EIO))
    finally:
        os._exit(127)
