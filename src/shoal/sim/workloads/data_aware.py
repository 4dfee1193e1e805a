"""Image stacking as MATRIX was measured with: many tasks that each cut an object out of one image file.

A task reads one file of 2 MB, computes 158 ms and makes 10 KB. *Locality* is the number of tasks per file; the paper
cites a table of files and tasks for each locality, which stands here. Files lie round robin on the nodes. Which task
reads which file is printed nowhere: here every file has as many readers as any other, give or take one, and the seed
shuffles them, because objects to be stacked come from all over the sky.

The paper also describes a last task that adds up all outputs; the tables and figures are without it, and so is this
unless `aggregate` is set. How long that task takes (1 ms for each output) and what it makes (2 MB) are guesses.
"""

from __future__ import annotations

from array import array
from itertools import chain
from random import Random

import numpy as np

from shoal.core.task import Profile
from shoal.core.work import EVERYWHERE, Work, assemble
from shoal.errors import InputError
from shoal.sim.workloads.matrix import numbers

FILES_AND_TASKS: dict[float, tuple[int, int]] = {
    1: (111_700, 111_700),
    1.38: (111_699, 154_354),
    2: (49_000, 97_999),
    3: (29_620, 88_857),
    4: (19_145, 76_575),
    5: (12_120, 60_590),
    10: (4_650, 46_480),
    20: (2_025, 40_460),
    30: (790, 23_695),
}
"""For each locality, how many files and tasks there are."""

SECONDS = 0.158
IMAGE_BYTES = 2_000_000
CUTOUT_BYTES = 10_000
ADDING_SECONDS = 0.001


def stacking(
    seed: int, locality: float = 30, tasks: int | None = None, nodes: int | None = None, aggregate: bool = False
) -> Work:
    """The workload of one locality, or as many `tasks` of it with files in proportion.

    With `nodes`, the files lie on so many of the nodes; without, on all there are.
    """
    if locality not in FILES_AND_TASKS:
        known = ", ".join(f"{at:g}" for at in FILES_AND_TASKS)
        raise InputError(f"image stacking has no locality {locality:g}", remedy=f"the paper has {known}")
    files, all_tasks = FILES_AND_TASKS[locality]
    if tasks is None:
        tasks = all_tasks
    else:
        files = max(1, round(files * tasks / all_tasks))
    read = [task % files for task in range(tasks)]
    Random(seed).shuffle(read)
    cutouts = range(files, files + tasks)
    last = 1 if aggregate else 0
    homes = range(files) if nodes is None else (file % nodes for file in range(files))
    return assemble(
        "stacking",
        array("d", [SECONDS]) * tasks + array("d", [ADDING_SECONDS * tasks]) * last,
        chain(((file,) for file in read), (cutouts for _ in range(last))),
        chain(((file,) for file in cutouts), ((files + tasks,) for _ in range(last))),
        array("q", [IMAGE_BYTES]) * files + array("q", [CUTOUT_BYTES]) * tasks + array("q", [IMAGE_BYTES]) * last,
        file_home=array("i", homes) + array("i", [EVERYWHERE]) * (tasks + last),
        category=bytes(tasks) + bytes([1]) * last,
        profiles=[Profile("stack"), Profile("aggregate")][: 1 + last],
    )


SIDE = 500
ALL_PAIRS_SECONDS = 0.1
FILE_BYTES = 12_000_000


def all_pairs(
    side: int = SIDE, seconds: float = ALL_PAIRS_SECONDS, file_bytes: int = FILE_BYTES, nodes: int | None = None
) -> Work:
    """The tasks of a square of `side` x `side`; with `nodes`, the files lie on so many of the nodes."""
    tasks, files = side * side, 2 * side
    position = np.arange(side, dtype=np.int64)
    inputs = np.stack((np.repeat(position, side), np.tile(position + side, side)), axis=1)
    return Work(
        name="all-pairs",
        seconds=array("d", [seconds]) * tasks,
        category=bytes(tasks),
        profiles=[Profile("compare")],
        waits_for=array("i", bytes(4 * tasks)),
        child_start=array("i", bytes(4 * (tasks + 1))),
        children=array("i"),
        input_start=array("i", range(0, 2 * tasks + 1, 2)),
        inputs=numbers(inputs.reshape(-1)),
        file_bytes=array("q", [file_bytes]) * files,
        file_home=array("i", (file % nodes if nodes else file for file in range(files))),
        rank=array("i", bytes(4 * tasks)),
        weight=array("q", [2 * file_bytes]) * tasks,
    )
