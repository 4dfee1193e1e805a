"""Stores of a run's state: in Redis, and with the head of a cluster over the network.

`shoal.core.store.interface` is the contract that they keep.
"""
