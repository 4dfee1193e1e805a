"""The Python rules front end: a plain Python file whose calls of `rule`, `file` and `task` define a workflow.

`api` holds the functions a rules file calls; they write into the current `Rules` (`registry`), whose `graph` searches
backwards from the targets (`search`) and builds the columnar graph (`assemble`). Reading and executing the user's file
is left to `shoal.engine.rulesfile`.
"""
