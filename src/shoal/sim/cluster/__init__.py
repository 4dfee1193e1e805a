"""Simulated clusters in virtual time: the real schedulers and store with simulated nodes, files, messages and
faults."""
