"""Authenticated, encrypted messages between agents, clients and viewers. Knows nothing of tasks."""
