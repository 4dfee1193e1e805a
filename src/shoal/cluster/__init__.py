"""Runs on several machines: agents, clients that submit and follow runs, and the start of nodes.

Imports `shoal.data` and the layers below it. Public classes: `session.ClusterSession` (a run), `lifecycle` (start and
stop a cluster), `agent.agent.Agent` (one node). Needs the extra `cluster`.
"""
