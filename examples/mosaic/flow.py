"""An image mosaic, after Montage: many exposures of a patch of sky become one picture without seams.

A telescope covered the sky with n by n overlapping exposures in three colours. Each points a little aside and has its
own stray light. They are brought onto common pixels; what neighbours disagree about in their overlaps tells how much
stray light each has; it is taken out, and the exposures are joined:

    observe -> archive -> project -> difference -> fit -> background -> correct -> strip -> mosaic -> picture

Try `shoal run flow.py`, `shoal run flow.py n=3`, `shoal plan flow.py`, or edit a script and run it again.
"""

import shlex
import sys

from background import balance, fit_plane, seen_from
from images import BANDS, load, middle_tile, save, subtract
from picture import below, beside, colours, side_by_side, write_png

from shoal import file, param, rule, task

n = param("n", 5)
if n < 2:
    raise ValueError("n must be at least 2: without overlaps there is nothing to compare")
python = shlex.quote(sys.executable) + " -S"  # no installed packages are needed, and it starts in half the time

PAIRS = [(f"{r}-{c}", f"{r}-{c + 1}") for r in range(n) for c in range(n - 1)]
PAIRS += [(f"{r}-{c}", f"{r + 1}-{c}") for r in range(n - 1) for c in range(n)]

task("all", needs=["mosaic.png", "before-and-after.png", "stray-light.txt"])

# Commands. A script is among its own needs, so editing it runs again whatever it made.

rule(
    "raw/{band}/{tile}.img",
    needs="observe.py",
    run="{python} {needs} {band} {tile} {n} > {out}",
    category="observe",
)

rule(
    "archive/{band}/{tile}.img.gz",
    needs="raw/{band}/{tile}.img",
    run="gzip -1 -c {needs} > {out}",
    category="archive",
)

rule(
    "projected/{band}/{tile}.img",
    needs={"script": "project.py", "raw": "archive/{band}/{tile}.img.gz"},
    run="gzip -dc {needs.raw} | {python} {needs.script} > {out}",
    category="project",
)

rule(
    "corrected/{band}/{tile}.img",
    needs={"script": "correct.py", "image": "projected/{band}/{tile}.img", "planes": "background/{band}.txt"},
    run="{python} {needs.script} {tile} {needs.image} {needs.planes} > {out}",
    category="correct",
)

file("stray-light.txt", needs=[f"background/{band}.txt" for band in BANDS], run="cat {needs} | sort -k 3 -g > {out}")

# Python functions. They are part of this file, and what they return goes to the tasks that need theirs.


@rule("difference/{band}/{one}+{other}.img", needs=["projected/{band}/{one}.img", "projected/{band}/{other}.img"])
def difference(t):
    save(subtract(load(t.needs[0]), load(t.needs[1])), t.out)


def fit(t):
    return fit_plane(load(t.source))


for band in BANDS:
    for one, other in PAIRS:
        task(f"fit {band} {one} {other}", needs=f"difference/{band}/{one}+{other}.img", run=fit)


@rule("background/{band}.txt", needs=lambda w: [f"fit {w.band} {one} {other}" for one, other in PAIRS])
def background(t):
    fits = {pair: need.value for pair, need in zip(PAIRS, t.needs, strict=True)}
    planes = balance(fits, reference=middle_tile(n))
    with open(t.out, "w") as table:
        for tile, plane in planes.items():
            print(t.band, tile, *(f"{number:.4f}" for number in seen_from(tile, plane)), file=table)


@rule("strip/{stage}/{band}/{row}.img", needs=lambda w: [f"{w.stage}/{w.band}/{w.row}-{c}.img" for c in range(n)])
def strip(t):
    save(beside([load(tile) for tile in t.needs]), t.out)


@rule("mosaic/{stage}/{band}.img", needs=lambda w: [f"strip/{w.stage}/{w.band}/{row}.img" for row in range(n)])
def mosaic(t):
    save(below([load(row) for row in t.needs]), t.out)


@file("mosaic.png", needs=[f"mosaic/corrected/{band}.img" for band in BANDS])
def picture(t):
    write_png(t.out, colours([load(band) for band in t.needs]))


@file(
    "before-and-after.png",
    needs={
        "before": [f"mosaic/projected/{band}.img" for band in BANDS],
        "after": [f"mosaic/corrected/{band}.img" for band in BANDS],
    },
)
def preview(t):
    halves = [colours([load(band) for band in bands], shrink=2) for bands in (t.needs.before, t.needs.after)]
    write_png(t.out, side_by_side(*halves))
