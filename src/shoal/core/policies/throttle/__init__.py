"""Throttles: how many tasks of a category run concurrently on a node, learned from measurements of the node. Pure.

`registry` creates controllers by name; `shoal.core.throttle_controller` connects a throttle to a scheduler.
"""
