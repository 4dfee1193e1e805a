"""Allocations over the shared memory of a cluster's nodes; `shoal.memory` is their public face."""
