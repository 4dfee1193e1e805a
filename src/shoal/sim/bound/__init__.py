"""How fast a workflow could run at best: a lower bound that holds, and the bound of the MATRIX paper for comparison.

`lower` and `paper` take any `Work`; `streamed` does the same for four regular graphs of any size without holding them.
These are the only modules that load numpy, so nothing here is imported before a bound is asked for.
"""
