"""The language of rules files: plain Python whose calls of `rule`, `file` and `task` define a workflow."""
