"""Runs the `shoal` command in a fork of this process, which has it imported: a tenth of the cost of an interpreter."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cluster import Cluster

PATIENCE = 60.0
_SUBREAPER = 36
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Said:
    """How a command ended: its exit status (negative for a signal) and what it wrote."""

    status: int
    text: str
    timed_out: bool = False


class Command:
    """Runs `shoal WORDS`; everything it leaves behind becomes a child of this process."""

    def __init__(self, control: str, cluster: Cluster) -> None:
        self.control, self.cluster = control, cluster
        self.killed = 0
        """How many commands were ended by SIGKILL."""
        os.makedirs(control, exist_ok=True)
        self._become_subreaper()
        self.environment: dict[str, str] = {
            name: value for name, value in os.environ.items() if not name.startswith(("SHOAL", "PYTEST"))
        } | {"NO_COLOR": "1", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}

    def need_cluster(self) -> None:
        """Starts the cluster when it is needed for the first time."""
        if not self.cluster.began:
            self.cluster.start()
            self.environment["SHOAL_HOME"] = self.cluster.home

    @staticmethod
    def _become_subreaper() -> None:
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

    def run(
        self,
        directory: str,
        *words: str,
        surroundings: dict[str, str] | None = None,
        skew: float = 0.0,
        strike: Callable[[int], None] | None = None,
    ) -> Said:
        """Runs the command to its end; `strike` is called with its process as soon as it is there.

        `skew` is how far its clock goes before that of the files.
        """
        said = os.path.join(self.control, "said")
        open(said, "w").close()  # it may be struck before it has opened it
        # An interrupt between the fork and `main` would be lost, or leave the modules of the interpreter half prepared.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = os.fork()
        if pid == 0:
            self._step_clock(skew)
            self._be(directory, words, said, self.environment | (surroundings or {}))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            if strike is not None:
                strike(pid)
            status, timed_out = self._await(pid)
            self.killed += status == KILLED and not timed_out
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        with open(said, encoding="utf-8", errors="replace") as stream:
            return Said(status, stream.read(), timed_out)

    @staticmethod
    def _step_clock(skew: float) -> None:
        clock, clock_ns = time.time, time.time_ns
        time.time = lambda: clock() + skew
        time.time_ns = lambda: clock_ns() + int(skew * 1e9)

    def _be(self, directory: str, words: Sequence[str], said: str, environment: dict[str, str]) -> None:
        """The child: never returns."""
        status = 70
        try:
            os.setpgid(0, 0)
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with open(os.path.join(self.control, "pid"), "w") as stream:
                stream.write(str(os.getpid()))
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(directory)
            sys.path.insert(0, directory)
            importlib.invalidate_caches()
            main = importlib.import_module("shoal.ui.cli.main").main
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            status = main(list(words))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    @staticmethod
    def _await(pid: int) -> tuple[int, bool]:
        poll = select.poll()
        descriptor = os.pidfd_open(pid)
        try:
            poll.register(descriptor, select.POLLIN)
            late = not poll.poll(PATIENCE * 1000)
            if late:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), late

    @staticmethod
    def await_leftovers(patience: float = 20.0) -> bool:
        """Waits until everything that the commands left behind has ended; whether it has."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)  # polls with a deadline
            except ChildProcessError:
                return True
        return False

    def load_modules(self, directory: str, *commands: Sequence[str]) -> None:
        """Plays commands once and imports here what they imported, so that forks need not."""
        listed = os.path.join(self.control, "modules")
        for words in commands:
            pid = os.fork()
            if pid == 0:
                self._list_modules(directory, words, listed)
            os.waitpid(pid, 0)
            with open(listed) as stream:
                for name in stream.read().split():
                    if name.startswith("shoal.") or name.partition(".")[0] in sys.stdlib_module_names:
                        importlib.import_module(name)
        gc.collect()
        gc.freeze()

    def _list_modules(self, directory: str, words: Sequence[str], listed: str) -> None:
        known = set(sys.modules)
        exit_now = os._exit

        def note_and_exit(status: int) -> None:
            with open(listed, "w") as stream:
                stream.write("\n".join(sorted(set(sys.modules) - known)))
            exit_now(status)

        os._exit = note_and_exit  # type: ignore[assignment]
        self._be(directory, words, os.path.join(self.control, "said"), self.environment)
