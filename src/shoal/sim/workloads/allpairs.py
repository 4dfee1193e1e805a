"""All-pairs: every file of one set is compared with every file of another, as MATRIX was measured with.

500 x 500 tasks of 100 ms, each reading two files of 12 MB; the files of both sets lie round robin on the nodes. The
paper names no output, so there is none. Tasks are numbered row by row: those of one row share their first file.
"""

from __future__ import annotations

from array import array

import numpy as np

from shoal.model.task import Profile
from shoal.model.work import Work
from shoal.sim.workloads.draws import numbers

SIDE = 500
SECONDS = 0.1
FILE_BYTES = 12_000_000


def all_pairs(
    side: int = SIDE, seconds: float = SECONDS, file_bytes: int = FILE_BYTES, nodes: int | None = None
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
