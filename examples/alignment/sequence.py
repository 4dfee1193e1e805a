"""Stands in for the laboratory: `sequence.py LENGTH READS` writes `reference.fa` and reads of a sample, `reads.fastq`.

A read is a piece of the sample from either strand, with a few letters misread. Its name tells where it comes from, for
`check.py`; the programs that align reads do not look at it.
"""

from __future__ import annotations

import sys
from random import Random

from genome import altered, other_strand, reference, sample, write_fasta

READ_LENGTH = 100
MOST_ERRORS = 4


def main(length: int, reads: int) -> None:
    write_fasta("reference.fa", reference(length))
    dice = Random(f"reads {length}")
    genome = sample(length)
    names = list(genome)
    with open("reads.fastq", "w") as stream:
        for number in range(reads):
            name = dice.choice(names)
            start = dice.randrange(len(genome[name]) - READ_LENGTH)
            text = genome[name][start : start + READ_LENGTH]
            strand = dice.choice("+-")
            if strand == "-":
                text = other_strand(text)
            text = altered(text, dice.randint(0, MOST_ERRORS), dice)
            stream.write(f"@{number}:{name}:{start + 1}:{strand}\n{text}\n+\n{'I' * READ_LENGTH}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
