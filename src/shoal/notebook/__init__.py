"""Runs, executors and futures as they show themselves in notebooks, live and afterwards.

What is shown is one `card` of plain values; `markup` and `plain` make HTML and text of it. These are pure, like `runs`
and `calls`, which make cards of what `shoal.view` and `shoal.futures` know. `live` sends them to a kernel's front ends.
"""
