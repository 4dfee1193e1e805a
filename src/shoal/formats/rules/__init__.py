"""Rules files: Python files that define a workflow by calling `rule`, `file` and `task`."""
