"""Writes the workflow as a Makeflow: `write_makeflow.py READS PARTS > alignment.makeflow`.

The reads are split in parts that are aligned on their own; the result is the same for any number of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

INDEX = " ".join(f"reference.fa.{kind}" for kind in ("amb", "ann", "bwt", "pac", "sa"))
LINES_PER_READ = 4

HEAD = """\
# Aligns the reads of a sample to a reference, in {count} parts, and reads off the sample's genome.

REFERENCE=reference.fa
READS=reads.fastq
LINES={lines}

CATEGORY=prepare
CORES=1
MEMORY=200

{index}: reference.fa
	bwa index $REFERENCE

{reads}: reads.fastq
	split -d -a 3 -l $LINES --additional-suffix=.fastq $READS part.

CATEGORY=align
CORES=1
MEMORY=300
"""

PART = """
{part}.sam: {part}.fastq reference.fa {index}
	bwa mem -t $CORES -R '@RG\\\\tID:sample\\\\tSM:sample' -o {part}.sam $REFERENCE {part}.fastq

{part}.bam: {part}.sam
	samtools sort --no-PG -o {part}.bam {part}.sam
"""

TAIL = """
CATEGORY=finish
CORES=1
MEMORY=300

alignment.bam: {bams}
	LOCAL samtools merge --no-PG -c -p -f alignment.bam {bams}

alignment.bam.bai: alignment.bam
	samtools index alignment.bam

coverage.txt: alignment.bam alignment.bam.bai
	samtools coverage -o coverage.txt alignment.bam

consensus.fa: alignment.bam alignment.bam.bai
	samtools consensus -a -o consensus.fa alignment.bam
"""


def write(reads: int, count: int) -> Iterator[str]:
    """The sections of the file, in order."""
    reads_per_part = -(-reads // count)
    # Rounding up can leave the last parts with nothing; `split` then does not write them.
    parts = [f"part.{number:03}" for number in range(-(-reads // reads_per_part))]
    names = {kind: " ".join(f"{part}.{kind}" for part in parts) for kind in ("fastq", "bam")}
    yield HEAD.format(count=len(parts), lines=LINES_PER_READ * reads_per_part, index=INDEX, reads=names["fastq"])
    for part in parts:
        yield PART.format(part=part, index=INDEX)
    yield TAIL.format(bams=names["bam"])


if __name__ == "__main__":
    sys.stdout.writelines(write(int(sys.argv[1]), int(sys.argv[2])))
