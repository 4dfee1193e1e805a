"""Runs Petri nets: the driver draws tasks from a net and injects their results; a journal resumes them."""
