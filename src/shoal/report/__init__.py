"""Reports of runs: reads a ledger into a view, and writes what is shown of it as one page.

What is shown is decided in `shoal.view`, how it is drawn in `shoal.view`'s assets; here is only what touches files.
"""
