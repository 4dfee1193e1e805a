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

from random import Random

from shoal.model.work import Work
from shoal.sim.workloads.stages import StageBuilder

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
