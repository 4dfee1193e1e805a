"""A modelled node that slows down when too many tasks share it, to test throttles. Pure."""
