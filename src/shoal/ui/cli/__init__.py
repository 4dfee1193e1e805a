"""The command line: one module per command, and what several commands share."""
