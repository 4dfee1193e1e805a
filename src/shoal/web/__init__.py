"""The live page of a run: a small server on this machine that shows what a ledger tells, as it grows.

Read-only. The model of a run is `shoal.view`, reading is `shoal.report`, drawing is in the browser (`shoal.view`'s
assets); here is what lies between: following the ledger, parts that change, HTTP, and metrics for other programs.
"""
