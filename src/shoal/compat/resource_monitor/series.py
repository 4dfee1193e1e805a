"""The format of the time series: a header that explains the columns, then one row per sample. Pure.

Columns and their order are those of `resource_monitor`; the comments are additions.
"""

from __future__ import annotations

from shoal.compat.resource_monitor.summary import MEGABYTE, printed
from shoal.errors import InputError
from shoal.execution.processes.sampler import TreeUsage
from shoal.execution.processes.time_series import COLUMNS, row


class SeriesRow:
    """One sample, as numbers in the units of the columns."""

    __slots__ = ("cores", "disk", "load", "look", "total_files", "wall_clock")

    def __init__(
        self, wall_clock: float, look: TreeUsage, cores: float, load: float, footprint: tuple[int, int] | None
    ) -> None:
        self.wall_clock = wall_clock
        self.look = look
        self.cores = cores
        self.load = load
        self.total_files, self.disk = footprint or (0, 0)

    @property
    def memory(self) -> float:
        """Resident memory in MB."""
        return self.look.resident / MEGABYTE

    def text(self, with_footprint: bool) -> str:
        words = row(self.wall_clock, self.look, self.cores, self.load)
        if with_footprint:
            words += f" {self.total_files} {printed('disk', self.disk / MEGABYTE)}"
        return words + "\n"


class PlotPoint:
    """The values of a row that a plot needs."""

    __slots__ = ("cores", "memory", "wall_clock")

    def __init__(self, wall_clock: float, cores: float, memory: float) -> None:
        self.wall_clock = wall_clock
        self.cores = cores
        self.memory = memory


def read_series(text: str, file: str) -> tuple[list[PlotPoint], str]:
    """Returns the rows of a series, and the task of its first line, if any, as a title."""
    points = []
    title = ""
    for at, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if line.startswith("#"):
            title = line[1:].strip() if at == 1 and line.startswith("# task ") else title
        elif words:
            points.append(_point(words, file, at))
    if not points:
        raise InputError("the time series has no rows", file=file)
    return points, title


def _point(words: list[str], file: str, line: int) -> PlotPoint:
    try:
        return PlotPoint(*(float(words[COLUMNS.index(name)]) for name in ("wall_clock", "cores", "memory")))
    except (ValueError, IndexError):
        raise InputError("not a row of a time series", file=file, line=line) from None
