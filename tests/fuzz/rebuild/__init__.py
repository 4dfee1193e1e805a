"""The rebuild oracle: random workflows with random histories; after each run all files are compared with a model.

`python -m tests.fuzz.rebuild --seeds A..B --jobs N` plays one history per seed (a fifth to a third of a second of
processor time each) and makes those that differ small: it leaves out steps and tasks as long as the same kind of
difference remains. What it prints ends with the command that plays the small history again. `--only` names the features
that workflows and histories may have, `--ignore` promises that are not to be checked, `--shrink 0` saves the time.

`python -m tests.fuzz.rebuild.mutants [DEFECT...]` puts known defects back one by one and says which seed finds each.

Where to look: `generate` draws workflows and steps, `workflow` writes a workflow down and computes what its outputs
must hold, `play` does what a user does between runs, `run` is one run and the comparison after it, `project` the files,
`command` runs `shoal` in forks of a process that has it imported, `cluster` is the one node for runs on a cluster.

A difference is a defect of Shoal or of the model. Histories with SIGKILL after a number of milliseconds depend on the
speed of the machine: they may play differently the next time.
"""
