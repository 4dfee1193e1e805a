"""`shoal makeflow`: runs a Makeflow like the original program, with its messages, log, wrappers and file removal."""
