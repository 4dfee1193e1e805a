"""Copyfile and the Montage of 2,707 tasks: the two workflows that Pwrake's orders and placement were measured with.

Copyfile is 100 files of 3 GiB, each copied by a task A and the copy again by a task B. It computes nothing: all its
time is reading and writing, which the modelled cluster adds.

Of the Montage only totals are printed: 421 input images of 2.52 MB, 2,707 tasks, 4,720 intermediate images, 63.5 GB.
With the stages of the program's Rakefile of that time, the counts leave one solution that has a grid of tiles: 1,175
overlaps and 12 x 19 tiles. The images are frames of the SDSS camera (2048 x 1489 pixels, 14 columns of 30 with every
other column half a frame higher, and one more), which gives those overlaps, 62.8 GB, and who reads what.

Guesses, because the papers have them only in figures: the seconds of each stage (`STAGES`), their spread of 15 %, and
that the inputs lie evenly but in no order on the nodes. A table of images comes before the coverage checks: of the
projected ones in the Rakefile from April 2014 on, and in the one before it, with which the published runs were probably
made, of the corrected ones, so that all of these must be there before the first tile is begun.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

from shoal.core.task import Profile
from shoal.core.work import EVERYWHERE, Work, assemble
from shoal.sim.workloads.swift import StageBuilder

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
"""Stages in the order of their first tasks, with the mean seconds that one task computes."""
SPREAD = 0.15

WIDTH, HEIGHT = 2048, 1489
COLUMN_PITCH, ROW_PITCH = 1909, 1361
COLUMNS, ROWS = 14, 30
TILE_COLUMNS, TILE_ROWS = 12, 19
TILE_BORDER = 10
SHRINKING = 400
"""Pixels that become one."""
PIXEL_BYTES, HEADER_BYTES, RAW_BYTES = 8, 5760, 2_520_000

Box = tuple[float, float, float, float]
"""Left, lower, right and upper border in pixels."""


def copyfile(seed: int, files: int = FILES, file_bytes: int = FILE_BYTES) -> Work:
    """First the tasks A of all files, then the tasks B."""
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
    """The mosaic; `scale` makes it taller or shorter and leaves its width and its stages as they are.

    `of_2013`: the table before the coverage checks is that of the corrected images.
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
    """Where the frames lie: column by column, then one more above the first column."""

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
        """The frames that have pixels inside the box; looks only at the rows and columns that may."""
        found = []
        for column in range(int((box[0] - WIDTH) // COLUMN_PITCH), int(box[2] // COLUMN_PITCH) + 1):
            for row in range(int((box[1] - HEIGHT) // ROW_PITCH) - 1, int(box[3] // ROW_PITCH) + 1):
                frame = self._frame_at.get((column, row))
                if frame is not None and _common_pixels(box, self.box(frame)) > 0:
                    found.append(frame)
        return sorted(found)

    def overlaps(self) -> Iterator[tuple[int, int, int]]:
        """Pairs of frames that share pixels, and how many."""
        for frame in range(len(self.corners)):
            box = self.box(frame)
            for other in self.under(box):
                if other > frame:
                    yield frame, other, int(_common_pixels(box, self.box(other)))

    def tiles(self, tile_rows: int) -> Iterator[Box]:
        """The mosaic cut into equal tiles, each with a border around it."""
        width, height = self.width / TILE_COLUMNS, self.height / tile_rows
        for column in range(TILE_COLUMNS):
            for row in range(tile_rows):
                left, lower = column * width - TILE_BORDER, row * height - TILE_BORDER
                yield left, lower, left + width + 2 * TILE_BORDER, lower + height + 2 * TILE_BORDER


def _common_pixels(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0
