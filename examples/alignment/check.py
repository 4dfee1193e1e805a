"""Compares the results with the truth: `check.py LENGTH`, the length the genomes were made with."""

from __future__ import annotations

import re
import subprocess
import sys

from genome import Genome, read_fasta, reference, sample

NEEDED_READS = 0.99
NEEDED_DIFFERENCES = 0.95
"""Shares that must be right. Where few reads happen to lie, a difference cannot be told from a misread letter."""
MOST_FALSE = 0.001
"""Of all letters, so many may differ from the sample where sample and reference agree."""
REVERSED, SECONDARY, SUPPLEMENTARY = 0x10, 0x100, 0x800


def alignments() -> list[list[str]]:
    """The main alignment of each read, as the fields of a line of SAM."""
    skipped = str(SECONDARY | SUPPLEMENTARY)
    words = ["samtools", "view", "-F", skipped, "alignment.bam"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit("alignment.bam cannot be read")
    return [line.split("\t") for line in done.stdout.splitlines()]


def at_its_place(fields: list[str]) -> bool:
    """Whether a read lies where its name says. A read that is cut at the front begins later by what was cut off."""
    name, flags, chromosome, start, _, shape = fields[:6]
    cut = re.match(r"(\d+)S", shape)
    begin = int(start) - (int(cut[1]) if cut else 0)
    strand = "-" if int(flags) & REVERSED else "+"
    return name.split(":")[1:] == [chromosome, str(begin), strand]


def compare(found: Genome, length: int) -> tuple[int, int, int]:
    """How many letters of the sample differ from the reference, how many of them were found, and how many are false."""
    truth, known = sample(length), reference(length)
    different = right = false = 0
    for name, text in truth.items():
        if len(found.get(name, "")) != len(text):
            raise SystemExit(f"consensus.fa has {len(found.get(name, ''))} letters of {name} instead of {len(text)}")
        for letter, true, old in zip(found[name], text, known[name], strict=True):
            different += true != old
            right += letter == true != old
            false += letter not in (true, "N") and true == old
    return different, right, false


def main(length: int) -> None:
    reads = alignments()
    names = {fields[0] for fields in reads}
    placed = sum(map(at_its_place, reads))
    different, right, false = compare(read_fasta("consensus.fa"), length)
    print(f"{placed} of {len(names)} reads lie where they come from; {right} of {different} differences between")
    print(f"reference and sample were found; {false} of {length} letters are taken for different and are not.")
    if placed < NEEDED_READS * len(names) or right < NEEDED_DIFFERENCES * different or false > MOST_FALSE * length:
        raise SystemExit("that is not good enough")


if __name__ == "__main__":
    main(int(sys.argv[1]))
