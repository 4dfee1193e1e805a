"""Workflow engines: they hand out tasks whose inputs exist and take results. The dependency counters live here."""
