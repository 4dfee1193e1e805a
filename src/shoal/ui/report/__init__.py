"""Reports of runs: one page with everything in it, sentences about a run, and RO-Crates."""
