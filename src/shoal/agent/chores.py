"""What is done on a node before and after each attempt: room for outputs, orders for the launcher, what was written."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from shoal.agent.about import About, Deed, Deeds
from shoal.engine.orders import circumstances_of
from shoal.model.task import Profile
from shoal.runner.link import Order

OUTPUT_BYTES = 64 << 10
"""Of what a task wrote to its standard output the last so many bytes travel to the client."""
NOTHING: Order = (0, 0, b"", 0.0, b"", b"", 0)


class Chores:
    """The chores of one run on one node."""

    def __init__(self, about: About, profiles: Sequence[Profile], deeds: Deeds) -> None:
        self._base = about.base
        self._deeds = deeds
        self._circumstances = [circumstances_of(profile) for profile in profiles]
        self._memory = [profile.resources.get("memory") if about.enforced else 0 for profile in profiles]
        self._disk = [profile.resources.get("disk") if about.enforced else 0 for profile in profiles]
        self._made = {about.base}
        self._output = -1
        self._output_path = ""

    def read_output_from(self, path: str) -> None:
        self._output_path = path

    @staticmethod
    def _command(deed: Deed) -> bytes:
        if not deed.value:
            return os.fsencode(deed.command)
        words = [sys.executable, "-m", "shoal.runner.apart", deed.command, deed.value]
        return os.fsencode(shlex.join(words))

    def deed(self, task: int) -> Deed:
        return self._deeds.of(task)

    def order_in(self, folder: str, task: int, attempt: int, category: int) -> Order:
        """The order for the launcher to run a task in a folder of its own."""
        deed = self._deeds.of(task)
        limit, variables, directory = self._circumstances[category]
        place = os.path.join(os.fsencode(folder), directory)
        plain = (task, attempt, self._command(deed), limit, variables, place, self._memory[category])
        disk = self._disk[category]
        if not disk:
            return plain
        paths = b"".join(os.fsencode(os.path.join(folder, name)) + b"\0" for name in deed.outputs)
        return (*plain, disk, paths)

    def order(self, task: int, attempt: int, category: int) -> tuple[Order, str | None]:
        """The order for the launcher; or why the task cannot be started."""
        deed = self._deeds.of(task)
        for name in deed.outputs:
            obstacle = self._prepare(name, remove=deed.stale or attempt % (1 << 16) > 1 or attempt >= 1 << 16)
            if obstacle is not None:
                return NOTHING, obstacle
        plain = (task, attempt, self._command(deed), *self._circumstances[category], self._memory[category])
        disk = self._disk[category]
        if not disk:
            return plain, None
        paths = b"".join(os.fsencode(os.path.join(self._base, name)) + b"\0" for name in deed.outputs)
        return (*plain, disk, paths), None

    def _prepare(self, name: str, *, remove: bool) -> str | None:
        path = os.path.join(self._base, name)
        parent = os.path.dirname(path)
        try:
            if parent not in self._made:
                os.makedirs(parent, exist_ok=True)
                self._made.add(parent)
            if remove and not (os.path.isdir(path) and not os.path.islink(path)):
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
        except OSError as error:
            return f"cannot prepare its output {name!r}: {error.strerror}"
        return None

    def missing_output(self, task: int) -> str | None:
        """The first output that a task has not made, in a sentence."""
        for name in self._deeds.of(task).outputs:
            if not os.path.lexists(os.path.join(self._base, name)):
                return f"exit status 0, but it did not make {name!r}"
        return None

    def output_of(self, at: int, size: int, tail: bytes) -> bytes:
        """What a task wrote; only the end if that is much."""
        if not size:
            return b""
        if size <= len(tail):
            return bytes(tail[-size:])
        if self._output < 0:
            self._output = os.open(self._output_path, os.O_RDONLY | os.O_CLOEXEC)
        begin = max(at, at + size - OUTPUT_BYTES)
        return os.pread(self._output, at + size - begin, begin)

    def close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
