"""Workflow Run RO-Crates: builds the metadata of a run. Pure; `shoal.ui.report.crate` collects the data and the
files."""
