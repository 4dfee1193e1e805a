"""Runs tasks on this machine: processes and Python calls, their limits, files, outputs and records.

Imports `shoal.ledger` and the layers below it. Main entry points: `session.Session` (a workflow), `executor` (futures
of calls), `nets` (Petri nets).
"""
