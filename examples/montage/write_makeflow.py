"""Writes the workflow for N by N images as a Makeflow: `write_makeflow.py N > montage.makeflow`.

The images and their overlaps are known from the layout of the survey; what is in them is left to Montage's programs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from observe import tiles

HEAD = """\
# A mosaic of {count} images with Montage.
#
# Each image is projected onto the pixels of the mosaic. Where two overlap, a plane is fitted to their difference; from
# all planes follows what background to take out of each image. The corrected images are added up.

PYTHON=python3
VIEW=mViewer -ct 0 -gray
STRETCH=-1s 99.9% gaussian-log
"""


def neighbours(n: int) -> Iterator[tuple[str, str]]:
    """Images that overlap, each pair once: side by side, one above the other, corner to corner."""
    names = tiles(n)
    for row in range(n):
        for column in range(n):
            for down, right in ((0, 1), (1, -1), (1, 0), (1, 1)):
                if row + down < n and 0 <= column + right < n:
                    yield names[row * n + column], names[(row + down) * n + column + right]


def image(stage: str, tile: str) -> str:
    """An image and the file with the weight of each of its pixels."""
    return f"{stage}/{tile}.fits {stage}/{tile}_area.fits"


def rule(outputs: str, inputs: str, command: str) -> str:
    return f"\n{outputs}: {inputs}\n\t{command}\n"


def category(name: str, memory_mb: int) -> str:
    return f"\nCATEGORY={name}\nCORES=1\nMEMORY={memory_mb}\n"


def rules_of_each_image(n: int) -> Iterator[str]:
    yield category("project", 100)
    for tile in tiles(n):
        command = f"mkdir -p projected && mProjectPP raw/{tile}.fits projected/{tile}.fits template.hdr"
        yield rule(image("projected", tile), f"raw/{tile}.fits template.hdr", command)
    yield category("correct", 100)
    for tile in tiles(n):
        # mBackground finds an image in the table only by the very name it is called with.
        names = f"{tile}.fits ../corrected/{tile}.fits ../projected.tbl ../corrections.tbl"
        command = f"mkdir -p corrected && cd projected && mBackground -t {names}"
        yield rule(image("corrected", tile), f"{image('projected', tile)} projected.tbl corrections.tbl", command)


def rules_of_each_overlap(n: int) -> Iterator[str]:
    yield category("compare", 100)
    for one, other in neighbours(n):
        pair = f"{one}_{other}"
        names = f"projected/{one}.fits projected/{other}.fits differences/{pair}.fits"
        inputs = f"{image('projected', one)} {image('projected', other)} template.hdr"
        command = f"mkdir -p differences && mDiff {names} template.hdr"
        yield rule(image("differences", pair), inputs, command)
        command = f"mkdir -p planes && mFitplane -s planes/{pair}.txt differences/{pair}.fits"
        yield rule(f"planes/{pair}.txt", image("differences", pair), command)


def rules_of_the_whole(n: int) -> Iterator[str]:
    raw = " ".join(f"raw/{tile}.fits" for tile in tiles(n))
    projected, corrected = (" ".join(image(stage, tile) for tile in tiles(n)) for stage in ("projected", "corrected"))
    planes = " ".join(f"planes/{one}_{other}.txt" for one, other in neighbours(n))
    yield category("table", 200)
    yield rule("raw.tbl", f"tiles.tbl {raw}", "mImgtbl -t tiles.tbl raw raw.tbl")
    yield rule("template.hdr", "raw.tbl", "mMakeHdr -n raw.tbl template.hdr")
    yield rule("projected.tbl", f"tiles.tbl {projected}", "mImgtbl -t tiles.tbl projected projected.tbl")
    yield rule("overlaps.tbl", "projected.tbl", "mOverlaps projected.tbl overlaps.tbl")
    planes_command = "$PYTHON plane_table.py overlaps.tbl > planes.tbl"
    yield rule("planes.tbl", f"plane_table.py overlaps.tbl {planes}", planes_command)
    model_command = "mBgModel -i 10000 projected.tbl planes.tbl corrections.tbl"
    yield rule("corrections.tbl", "projected.tbl planes.tbl", model_command)
    yield rule("corrected.tbl", f"tiles.tbl {corrected}", "mImgtbl -t tiles.tbl corrected corrected.tbl")
    yield category("mosaic", 200)
    for name, stage, images in (("mosaic", "corrected", corrected), ("uncorrected", "projected", projected)):
        command = f"mAdd -p {stage} {stage}.tbl template.hdr {name}.fits"
        yield rule(f"{name}.fits {name}_area.fits", f"{stage}.tbl template.hdr {images}", command)
        yield rule(f"{name}.png", f"{name}.fits", f"$VIEW {name}.fits $STRETCH -png {name}.png")


def write(n: int) -> Iterator[str]:
    """The parts of the file, in order."""
    yield HEAD.format(count=n * n)
    yield from rules_of_each_image(n)
    yield from rules_of_each_overlap(n)
    yield from rules_of_the_whole(n)


if __name__ == "__main__":
    sys.stdout.writelines(write(int(sys.argv[1])))
