"""Two workflows of the Swift and Falkon papers: fMRI, chains with a common reference, and MolDyn, a fan per molecule.

fMRI: each volume of a run is reoriented twice, aligned with the first volume of the run and resliced, so 120 volumes
are 480 tasks. (The MATRIX paper draws a longer variant with twelve tasks on the dominant path; it names no numbers.)
MolDyn: one task at first and 84 for each molecule in seven more stages, so 50 molecules are 4,201 tasks and 244 are
20,497; stages alternately widen and narrow.

Guesses: all lengths and sizes, the spread of 20 %, and how the 84 tasks of a molecule are divided among the stages
(1, 1, 3, 68, 9, 1, 1). The lengths are chosen so that an fMRI task takes a few seconds and a molecule three and a half
hours of one core, which is the order of what was reported.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from random import Random

from shoal.core.task import Profile
from shoal.core.work import EVERYWHERE, Work, assemble


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


SPREAD = 0.2

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
"""Of each molecule: kinds of interaction, windows sampled over all of them, and tasks that analyse windows. The number
of analyses is a multiple of that of kinds, so an analysis sees windows of one kind."""
STRUCTURE_BYTES, STATE_BYTES, ENERGIES_BYTES, TABLE_BYTES = 50_000, 2_000_000, 500_000, 10_000


def fmri(seed: int, volumes: int = VOLUMES) -> Work:
    """Four stages for each volume; the aligning of every volume also reads the first one."""
    maker = StageBuilder(Random(seed), FMRI_STAGES, SPREAD)
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
    """Eight stages: the first is common to all molecules, the others are a fan of each molecule's own."""
    maker = StageBuilder(Random(seed), MOLDYN_STAGES, SPREAD)
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
