"""The ledger of a run: its records, the totals computed from them, and the decision which tasks are up to date.

Imports `shoal.core`. Public modules: `records` and `file` (the log), `status` (state of a run), `views` (tables for
pages and reports), `up_to_date` (which tasks must run), `workspace` (paths and lock of a workflow).
"""
