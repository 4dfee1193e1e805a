"""Run stores: what the schedulers of several nodes share (dependencies, owners, attempts, file locations). Pure.

`interface.Store` is the contract, `memory` its implementation in memory, `directory` the registry of nodes and runs.
Stores in Redis and over the network are in `shoal.cluster.stores`.
"""
