"""Start of nodes: as local processes, over SSH or by Slurm; and the factories that decide how many nodes there should
be."""
