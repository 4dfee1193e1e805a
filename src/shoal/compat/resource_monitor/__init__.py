"""`shoal monitor`: measures one command like `resource_monitor`, and kills it if it exceeds its limits."""
