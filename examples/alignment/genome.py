"""The genomes of this example: a reference, and a sample that differs from it in single letters. Both are made up.

They follow from their length alone, so whoever reads the results can compare them with the truth.
"""

from __future__ import annotations

from random import Random

LETTERS = "ACGT"
CHROMOSOMES = ("chr1", "chr2")
EVERY = 500
"""One letter in so many differs between reference and sample."""
COMPLEMENT = str.maketrans("ACGT", "TGCA")

Genome = dict[str, str]


def reference(length: int) -> Genome:
    dice = Random(f"reference {length}")
    return {name: "".join(dice.choices(LETTERS, k=length // len(CHROMOSOMES))) for name in CHROMOSOMES}


def sample(length: int) -> Genome:
    """The reference with some letters replaced by others."""
    dice = Random(f"sample {length}")
    return {name: altered(text, len(text) // EVERY, dice) for name, text in reference(length).items()}


def altered(text: str, count: int, dice: Random) -> str:
    letters = list(text)
    for place in dice.sample(range(len(text)), count):
        letters[place] = dice.choice(LETTERS.replace(letters[place], ""))
    return "".join(letters)


def other_strand(text: str) -> str:
    return text.translate(COMPLEMENT)[::-1]


def write_fasta(path: str, genome: Genome, width: int = 70) -> None:
    with open(path, "w") as stream:
        for name, text in genome.items():
            lines = [text[start : start + width] for start in range(0, len(text), width)]
            stream.write("\n".join([f">{name}", *lines]) + "\n")


def read_fasta(path: str) -> Genome:
    with open(path) as stream:
        parts = stream.read().split(">")[1:]
    split = [part.partition("\n") for part in parts]
    return {head.split()[0]: body.replace("\n", "") for head, _, body in split}
