"""The metadata of Workflow Run RO-Crates, from plain data. Pure; `shoal.ui.report.crate` gathers the data."""
