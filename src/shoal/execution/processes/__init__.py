"""Commands as processes: the launcher that starts them, their output, measurements and limits, and the node's topology.

`native/` holds the launcher in C; `launcher.py` is the same in Python, for machines without a compiler.
"""
