"""How many tasks of a category run together on a node, learned from what the node measures. Pure.

`registry` knows the controllers by name; `shoal.core.throttle_controller` connects one of them to a scheduler.
"""
