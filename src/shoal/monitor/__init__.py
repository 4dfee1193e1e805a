"""The stand-alone monitor: runs one command, measures its whole process tree, and ends it if it exceeds its limits.

It stands in for `resource_monitor`: the same options, the same names and units in the summary. As `python -m
shoal.monitor` it is started once per command of a workflow, so nothing here imports what takes long to load (no
argparse, json, typing or dataclasses), and nothing outside the standard library.

Processes, open files and directories are measured by the launcher's modules: `shoal.runner.sampler`, `proc`, `cores`,
`series` and `footprint`. `fields`, `limits`, `options`, `usage`, `summary`, `series` and `plot` are pure.
"""
