"""Workloads of published papers: fMRI and molecular dynamics (Swift), image stacking and all-pairs (data diffusion),
Copyfile and Montage (Pwrake).

Copyfile is 100 files of 3 GiB. A task A copies each of them, and a task B copies the copy. Tasks compute nothing: all
their time is input and output, which the simulated cluster adds.

Of Pwrake's Montage only totals are published: 421 input images of 2.52 MB, 2,707 tasks, 4,720 intermediate images, 63.5
GB. With the stages of the program's Rakefile of that time, these counts have one solution with a grid of tiles: 1,175
overlaps and 12 x 19 tiles. The images are frames of the SDSS camera (2048 x 1489 pixels, 14 columns of 30, every other
column half a frame higher, and one additional frame). This layout gives those overlaps, 62.8 GB, and the inputs of each
task.

Three things are estimates, because the papers show them in figures only: the seconds of each stage (`STAGES`), their
spread of 15 %, and the even random distribution of the inputs over the nodes. A table of images precedes the coverage
checks. In the Rakefile from April 2014 on, it lists the projected images. In the version before, which the published
runs probably used, it lists the corrected ones, so all of these must exist before the first tile starts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from random import Random

import numpy as np

from shoal.core.task import Profile
from shoal.core.work import EVERYWHERE, Work, assemble
from shoal.errors import InputError
from shoal.sim.workloads.matrix import numbers


class StageBuilder:
    """Builds a `Work` from files and tasks; producers must be added before consumers."""

    def __init__(self, random: Random, stages: Mapping[str, float], spread: float) -> None:
        """Durations are uniform around the mean seconds of a stage, with the relative range `spread`."""
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
        """Adds a file: with a home, a source file on that node; without, an output of a task or a file on the shared
        file system."""
        self._file_bytes.append(size_bytes)
        self._file_home.append(home)
        return len(self._file_bytes) - 1

    def task(self, stage: str, reads: Sequence[int], makes_bytes: Sequence[int]) -> list[int]:
        """Adds a task of the stage; returns the files it makes, one for each size."""
        made = [self.file(size_bytes) for size_bytes in makes_bytes]
        self._seconds.append(self._stages[stage] * self._random.uniform(1 - self._spread, 1 + self._spread))
        self._category.append(self._number[stage])
        self._reads.append(reads)
        self._makes.append(made)
        return made

    def work(self, name: str) -> Work:
        """Returns the finished work; the builder must not be used afterwards."""
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


SWIFT_SPREAD = 0.2

FMRI_STAGES: dict[str, float] = {"reorient-y": 2.0, "reorient-x": 2.0, "alignlinear": 6.0, "reslice": 4.0}
VOLUMES = 120
VOLUME_BYTES = 200_000
TRANSFORM_BYTES = 1_000

MOLDYN_STAGES: dict[str, float] = {
    "annotate": 10.0,
    "charges": 300.0,
    "topology": 30.0,
    "equilibrate": 600.0,
    "sample": 150.0,
    "analyse": 10.0,
    "combine": 5.0,
    "report": 5.0,
}
MOLECULES = 50
KINDS, WINDOWS, ANALYSES = 3, 68, 9
"""For each molecule: kinds of interaction, windows sampled over all of them, and tasks that analyse windows. The number
of analyses is a multiple of the number of kinds, so each analysis reads windows of one kind."""
STRUCTURE_BYTES, STATE_BYTES, ENERGIES_BYTES, TABLE_BYTES = 50_000, 2_000_000, 500_000, 10_000


def fmri(seed: int, volumes: int = VOLUMES) -> Work:
    """Four stages for each volume; the alignment of every volume also reads the first one."""
    maker = StageBuilder(Random(seed), FMRI_STAGES, SWIFT_SPREAD)
    raw = [maker.file(VOLUME_BYTES, home) for home in range(volumes)]
    turned = [maker.task("reorient-y", [file], [VOLUME_BYTES]) for file in raw]
    upright = [maker.task("reorient-x", files, [VOLUME_BYTES]) for files in turned]
    reference = upright[0]
    aligned = [
        maker.task("alignlinear", files if files is reference else files + reference, [TRANSFORM_BYTES])
        for files in upright
    ]
    for files, transform in zip(upright, aligned, strict=True):
        maker.task("reslice", files + transform, [VOLUME_BYTES])
    return maker.work("fmri")


def moldyn(seed: int, molecules: int = MOLECULES) -> Work:
    """Eight stages: the first is common to all molecules, the others form a fan for each molecule."""
    maker = StageBuilder(Random(seed), MOLDYN_STAGES, SWIFT_SPREAD)
    library = maker.file(molecules * STRUCTURE_BYTES)
    annotated = maker.task("annotate", [library], [molecules * TABLE_BYTES])
    for molecule in range(molecules):
        structure = maker.file(STRUCTURE_BYTES, molecule)
        charges = maker.task("charges", [structure, *annotated], [STRUCTURE_BYTES])
        topology = maker.task("topology", charges, [STATE_BYTES])
        settled = [maker.task("equilibrate", topology, [STATE_BYTES]) for _ in range(KINDS)]
        energies = [maker.task("sample", settled[at % KINDS], [ENERGIES_BYTES])[0] for at in range(WINDOWS)]
        analysed = [maker.task("analyse", energies[at::ANALYSES], [TABLE_BYTES])[0] for at in range(ANALYSES)]
        combined = maker.task("combine", analysed, [TABLE_BYTES])
        maker.task("report", combined, [TABLE_BYTES])
    return maker.work("moldyn")


FILES = 100
FILE_BYTES = 3 * 2**30

STAGES: dict[str, float] = {
    "mProjectPP": 10.0,
    "mDiff": 0.3,
    "mConcatFit": 2.0,
    "mBgModel": 10.0,
    "mBackground": 0.6,
    "mImgtbl": 1.0,
    "mCoverageCheck": 0.1,
    "mAdd": 2.5,
    "mShrink": 0.5,
    "mAddShrunk": 1.0,
    "mJPEG": 1.0,
}
"""Stages in the order of their first tasks, with the mean compute seconds of one task."""
SPREAD = 0.15

WIDTH, HEIGHT = 2048, 1489
COLUMN_PITCH, ROW_PITCH = 1909, 1361
COLUMNS, ROWS = 14, 30
TILE_COLUMNS, TILE_ROWS = 12, 19
TILE_BORDER = 10
SHRINKING = 400
"""Number of pixels that are merged into one."""
PIXEL_BYTES, HEADER_BYTES, RAW_BYTES = 8, 5760, 2_520_000

Box = tuple[float, float, float, float]
"""Left, lower, right and upper border in pixels."""


def copyfile(seed: int, files: int = FILES, file_bytes: int = FILE_BYTES) -> Work:
    """All tasks A, then all tasks B."""
    homes = list(range(files))
    Random(seed).shuffle(homes)
    return assemble(
        "copyfile",
        array("d", [0.0]) * (2 * files),
        ((file,) for file in range(2 * files)),
        ((file,) for file in range(files, 3 * files)),
        array("q", [file_bytes]) * (3 * files),
        file_home=array("i", homes) + array("i", [EVERYWHERE]) * (2 * files),
        category=bytes(files) + bytes([1]) * files,
        profiles=[Profile("A"), Profile("B")],
    )


def montage(seed: int, scale: float = 1.0, *, of_2013: bool = False) -> Work:
    """The mosaic; `scale` changes its height, while its width and stages stay the same.

    `of_2013`: the table before the coverage checks lists the corrected images.
    """
    random = Random(seed)
    sky = _Sky(max(1, round(ROWS * scale)))
    maker = StageBuilder(random, STAGES, SPREAD)
    homes = list(range(len(sky.corners)))
    random.shuffle(homes)
    raw = [maker.file(RAW_BYTES, home) for home in homes]
    frame_bytes = _image_bytes(WIDTH * HEIGHT)
    projected = [maker.task("mProjectPP", [file], [frame_bytes] * 2) for file in raw]
    fits = []
    for one, other, pixels in sky.overlaps():
        difference = [_image_bytes(pixels)] * 2
        fits.append(maker.task("mDiff", projected[one] + projected[other], difference)[0])
    table = maker.task("mConcatFit", fits, [200 * len(fits)])
    corrections = maker.task("mBgModel", table, [60 * len(raw)])
    corrected = [maker.task("mBackground", frame + corrections, [frame_bytes] * 2) for frame in projected]
    listed = corrected if of_2013 else projected
    catalogue = maker.task("mImgtbl", [frame[0] for frame in listed], [300 * len(raw)])
    shrunk = []
    for box in sky.tiles(max(1, round(TILE_ROWS * scale))):
        covered = maker.task("mCoverageCheck", catalogue, [3000])
        pixels = int((box[2] - box[0]) * (box[3] - box[1]))
        parts = [file for frame in sky.under(box) for file in corrected[frame]]
        tile = maker.task("mAdd", covered + parts, [_image_bytes(pixels)] * 2)
        shrunk += maker.task("mShrink", tile[:1], [_image_bytes(pixels // SHRINKING)])
    last_table = maker.task("mImgtbl", shrunk, [300 * len(shrunk)])
    pixels = sky.width * sky.height // SHRINKING
    mosaic = maker.task("mAddShrunk", last_table + shrunk, [_image_bytes(pixels)] * 2)
    maker.task("mJPEG", mosaic[:1], [pixels])
    return maker.work("montage-pwrake")


def _image_bytes(pixels: int) -> int:
    return pixels * PIXEL_BYTES + HEADER_BYTES


class _Sky:
    """Positions of the frames: column by column, then one more above the first column."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        places = [(column, row) for column in range(COLUMNS) for row in range(rows)]
        places.append((0, rows))
        self._frame_at = {place: frame for frame, place in enumerate(places)}
        self.corners = [
            (column * COLUMN_PITCH, row * ROW_PITCH + column % 2 * (ROW_PITCH // 2)) for column, row in places
        ]
        self.width = max(x for x, _ in self.corners) + WIDTH
        self.height = max(y for _, y in self.corners) + HEIGHT

    def box(self, frame: int) -> Box:
        x, y = self.corners[frame]
        return x, y, x + WIDTH, y + HEIGHT

    def under(self, box: Box) -> list[int]:
        """The frames that overlap with the box; searches only the rows and columns in reach."""
        found = []
        for column in range(int((box[0] - WIDTH) // COLUMN_PITCH), int(box[2] // COLUMN_PITCH) + 1):
            for row in range(int((box[1] - HEIGHT) // ROW_PITCH) - 1, int(box[3] // ROW_PITCH) + 1):
                frame = self._frame_at.get((column, row))
                if frame is not None and _common_pixels(box, self.box(frame)) > 0:
                    found.append(frame)
        return sorted(found)

    def overlaps(self) -> Iterator[tuple[int, int, int]]:
        """Pairs of overlapping frames, and their number of common pixels."""
        for frame in range(len(self.corners)):
            box = self.box(frame)
            for other in self.under(box):
                if other > frame:
                    yield frame, other, int(_common_pixels(box, self.box(other)))

    def tiles(self, tile_rows: int) -> Iterator[Box]:
        """Divides the mosaic into equal tiles, each with a border around it."""
        width, height = self.width / TILE_COLUMNS, self.height / tile_rows
        for column in range(TILE_COLUMNS):
            for row in range(tile_rows):
                left, lower = column * width - TILE_BORDER, row * height - TILE_BORDER
                yield left, lower, left + width + 2 * TILE_BORDER, lower + height + 2 * TILE_BORDER


def _common_pixels(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


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
"""Number of files and tasks for each locality."""

SECONDS = 0.158
IMAGE_BYTES = 2_000_000
CUTOUT_BYTES = 10_000
ADDING_SECONDS = 0.001


def stacking(
    seed: int, locality: float = 30, tasks: int | None = None, nodes: int | None = None, aggregate: bool = False
) -> Work:
    """The workload of one locality, or `tasks` of it with a proportional number of files.

    With `nodes`, the files are on that number of nodes; otherwise on all nodes.
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
STACKING_FILE_BYTES = 12_000_000


def all_pairs(
    side: int = SIDE,
    seconds: float = ALL_PAIRS_SECONDS,
    file_bytes: int = STACKING_FILE_BYTES,
    nodes: int | None = None,
) -> Work:
    """The tasks of a `side` x `side` comparison; with `nodes`, the files are on that number of nodes."""
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
