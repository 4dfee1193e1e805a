"""The agent of one node: its scheduler, launcher, call server, and its share of runs and files."""
