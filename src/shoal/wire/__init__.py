"""Authenticated, encrypted messages between the agents, clients and viewers of one cluster. Knows nothing of tasks."""
