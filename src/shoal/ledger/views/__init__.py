"""What pages, reports and tables show of a run, computed from its records. Pure."""
