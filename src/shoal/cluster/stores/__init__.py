"""Stores of a run's state: in Redis, and at the head of a cluster over the network.

`shoal.core.store.interface` is their contract.
"""
