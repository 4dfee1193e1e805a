"""The simulator: drives the real flow and the real broker over a virtual node, in virtual time, with seeded faults."""
