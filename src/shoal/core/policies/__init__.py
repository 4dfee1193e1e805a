"""Policies of the scheduler: order, admission, placement, stealing, retries, sizing and throttling. Pure.

Policies are selected by name; `order.ORDERS`, `stealing.POLICIES` and `throttle.registry` contain the names.
"""
