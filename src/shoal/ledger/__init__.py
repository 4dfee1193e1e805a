"""The ledger of a workflow: an append-only event log, journal for recovery and source of status, report and `why`."""
