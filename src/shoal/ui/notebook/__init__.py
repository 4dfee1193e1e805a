"""Live displays of runs, executors and futures in notebooks."""
