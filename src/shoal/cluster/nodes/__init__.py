"""Starting nodes: as local processes, over SSH or by Slurm, and how many of them there should be."""
