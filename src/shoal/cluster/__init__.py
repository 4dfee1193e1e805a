"""Starting nodes: what each offers, how it is started here, over SSH or by Slurm, and how many there should be."""
