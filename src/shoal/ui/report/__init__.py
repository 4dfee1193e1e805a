"""Reports of runs: a self-contained HTML page, sentences about a run, and RO-Crates."""
