"""A modelled cluster in virtual time, driven by the same brokers and the same store as a real one."""
