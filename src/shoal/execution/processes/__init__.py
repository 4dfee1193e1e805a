"""Commands as processes: the launcher that starts them, measurements, limits, and what the node has.

`native/` holds the launcher in C; `launcher.py` is the same in Python, for machines without a compiler.
"""
