"""The steward: grants parts of machines to runs, whole or not at all, and lets nobody starve. Pure."""
