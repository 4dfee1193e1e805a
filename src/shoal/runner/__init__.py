"""Runners start, measure, limit and reap tasks: commands as processes, Python calls in worker processes."""
