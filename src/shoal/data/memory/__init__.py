"""Allocations in the shared memory of a cluster's nodes; the public API is `shoal.memory`."""
