"""A cluster of one node on this machine, which lives as long as the process that plays histories."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Self

NAME = "fuzz"
_START, _STARTED, _FAILED = b"s", b"1", b"0"


class Cluster:
    """Its processes are children of a keeper that is none of ours: nobody waits for them between two commands."""

    def __init__(self, folder: str) -> None:
        self.home = os.path.join(folder, "home")
        asked, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        self.began = False
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.close(self._ask)
                os.close(self._answers)
                self._keep(asked, answer)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(asked)
        os.close(answer)

    def _keep(self, asked: int, answer: int) -> None:
        """The keeper: starts the cluster when it is asked to, and ends it when nobody can ask any more."""
        try:
            os.setsid()
            while os.read(asked, 1) == _START:
                started = self._shoal("start", NAME, "--local", "1").returncode == 0
                os.write(answer, _STARTED if started else _FAILED)
            if os.path.isdir(self.home):
                self._shoal("stop", NAME)
        finally:
            os._exit(0)

    def _shoal(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL", "PYTEST"))}
        return subprocess.run(
            [sys.executable, "-m", "shoal", "cluster", *words],
            env=inherited | {"SHOAL_HOME": self.home, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def start(self) -> None:
        if not self.began:
            os.write(self._ask, _START)
            if os.read(self._answers, 1) != _STARTED:
                raise RuntimeError("the cluster cannot be started")
            self.began = True

    def stop(self) -> None:
        os.close(self._ask)
        os.read(self._answers, 1)
        os.close(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
