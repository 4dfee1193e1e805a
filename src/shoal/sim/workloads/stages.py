"""A builder for workloads made of stages: each stage is a category with a mean length, tasks are added one by one.

For workloads of moderate size whose files matter; it keeps a list per task until `work()`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from random import Random

from shoal.model.task import Profile
from shoal.model.work import EVERYWHERE, Work, assemble


class StageBuilder:
    """Takes files and tasks in any order that has producers before consumers."""

    def __init__(self, random: Random, stages: Mapping[str, float], spread: float) -> None:
        """Lengths are drawn evenly around the mean seconds of a stage, at most the share `spread` away from it."""
        self._random = random
        self._stages = stages
        self._number = {stage: number for number, stage in enumerate(stages)}
        self._spread = spread
        self._seconds = array("d")
        self._category = array("i")
        self._reads: list[Sequence[int]] = []
        self._makes: list[Sequence[int]] = []
        self._file_bytes = array("q")
        self._file_home = array("i")

    def file(self, size_bytes: int, home: int = EVERYWHERE) -> int:
        """A source file, or with no home given one that a task makes or that lies on the shared file system."""
        self._file_bytes.append(size_bytes)
        self._file_home.append(home)
        return len(self._file_bytes) - 1

    def task(self, stage: str, reads: Sequence[int], makes_bytes: Sequence[int]) -> list[int]:
        """A task of the stage; returns the files it makes, one for each size."""
        made = [self.file(size_bytes) for size_bytes in makes_bytes]
        self._seconds.append(self._stages[stage] * self._random.uniform(1 - self._spread, 1 + self._spread))
        self._category.append(self._number[stage])
        self._reads.append(reads)
        self._makes.append(made)
        return made

    def work(self, name: str) -> Work:
        """All that was added; the builder must not be used afterwards."""
        return assemble(
            name,
            self._seconds,
            self._reads,
            self._makes,
            self._file_bytes,
            file_home=self._file_home,
            category=self._category,
            profiles=[Profile(stage) for stage in self._stages],
        )
