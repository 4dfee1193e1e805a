"""Runs Petri nets: the driver takes tasks from a net and feeds their results back; a journal makes runs resumable."""
