"""The stand-alone monitor: runs one command, measures its whole process tree, and ends it if it exceeds its limits.

It stands in for `resource_monitor`: the same options, the same names and units in the summary. As `python -m
shoal.monitor` it is started once per command of a workflow, so nothing here imports what takes long to load (no
argparse, json or dataclasses), and nothing outside the standard library.

`fields`, `limits`, `options`, `usage`, `summary`, `series` and `plot` are pure; `tree`, `disk`, `opened`, `spawn` and
`run` look at the machine.
"""
