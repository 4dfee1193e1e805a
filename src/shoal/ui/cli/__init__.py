"""The command line: one module per command, and helpers shared by several commands."""
