"""Runs as Workflow Run RO-Crates: what ran, on what, with what result, in a form that other programs read.

`names`, `moments`, `facts`, `steps`, `entities` and `build` make the metadata out of plain data and do nothing else.
`recorded`, `graphed`, `tasks`, `files` and `gather` find that data in ledger, workflow and disk. `sink` writes
directories and ZIP files.
"""
