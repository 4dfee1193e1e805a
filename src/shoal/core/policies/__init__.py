"""Policies of the scheduler: order, admission, placement, stealing, retries, sizes and throttles. Pure.

Each is small and has a name; `order.ORDERS` and `stealing.POLICIES` list those that a user chooses by name.
"""
