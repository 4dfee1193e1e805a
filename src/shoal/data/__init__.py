"""Bytes on nodes: a cache of objects, transfer between nodes, and shared memory. Encrypted and authenticated.

Imports `shoal.execution` and the layers below it. One listener per process serves all of it.
"""
