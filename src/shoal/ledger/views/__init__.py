"""Views of a run, computed from its records: tables and series for pages, reports and status. Pure."""
