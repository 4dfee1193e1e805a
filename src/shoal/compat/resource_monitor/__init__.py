"""Measures one command as `resource_monitor` does, and ends it if it exceeds its limits."""
