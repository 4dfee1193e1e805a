"""A run for showing: what its ledger tells, as columns, and everything that pages and reports draw from them.

Pure: records come in one at a time or in batches, the time of now is an argument, figures go out. `assets/` holds what
draws them in a browser. Reading ledgers and writing pages is left to `shoal.report`.
"""
