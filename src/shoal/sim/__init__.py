"""The scheduler in virtual time: seeded fault simulations with oracles, predictions of run times, workloads and bounds.

Imports `shoal.cluster` and the layers below it. `python -m shoal.sim --seed N` reproduces a simulated run. Only few
users load this package.
"""
