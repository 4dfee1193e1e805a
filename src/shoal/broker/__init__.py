"""The scheduler of one node: events in, commands out."""
