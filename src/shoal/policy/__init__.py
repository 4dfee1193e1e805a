"""Policies that plug into the broker: order of a queue, admission to a node, retries. Each is small, pure and named."""
