"""A modelled cluster in virtual time, with the schedulers and the store of a real one."""
