"""Which files the processes had open, as far as it was seen: by looking at `/proc/PID/fd` now and then.

A file that was opened and closed between two looks is not listed; what has opened it is not slowed down either.
"""

from __future__ import annotations

import os

from shoal.monitor.fields import MEGABYTE
from shoal.runner.proc import is_open_for_writing, open_files
from shoal.runner.sampler import Process


class OpenedFile:
    """What is known of one file."""

    __slots__ = ("device", "first_size", "last_size", "written")

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.first_size = size
        self.last_size = size
        self.written = False


class OpenedFiles:
    """All files that were seen open, in the order in which they were seen."""

    def __init__(self) -> None:
        self.files: dict[str, OpenedFile] = {}

    def look(self, processes: list[Process]) -> None:
        for process in processes:
            for descriptor, about in open_files(process.pid):
                self._note(descriptor, about)

    def _note(self, descriptor: str, about: os.stat_result) -> None:
        try:
            path = os.readlink(descriptor)
        except OSError:
            return
        if not path.startswith("/"):
            return
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = OpenedFile(about.st_dev, about.st_size)
        file.last_size = about.st_size
        file.written |= is_open_for_writing(descriptor)

    def listed(self) -> dict[str, list[tuple[str, int]]]:
        """What was read and what was written, with sizes in MB, for the summary."""
        kinds: dict[str, list[tuple[str, int]]] = {"input_files": [], "output_files": []}
        for path, file in self.files.items():
            size = -(-file.last_size // MEGABYTE)
            kinds["output_files" if file.written else "input_files"].append((path, size))
        return kinds

    def table(self) -> str:
        """The text of the `.files` file; opens, closes, reads and writes are not counted."""
        lines = [f"{'#path':15}", f"#{'device':>21} {'size_initial(B)':>20} {'size_final(B)':>20}"]
        for path, file in self.files.items():
            lines += [f"{path:15}", f"{file.device:22} {file.first_size:20} {file.last_size:20}"]
        return "\n".join(lines) + "\n"
