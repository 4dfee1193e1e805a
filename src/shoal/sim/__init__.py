"""The same scheduler in virtual time: seeded runs with faults, predictions, workloads and bounds.

Imports `shoal.cluster` and the layers below it. `python -m shoal.sim --seed N` repeats a run. Few users load it.
"""
