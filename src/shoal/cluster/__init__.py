"""Several machines: agents, the runs that clients bring to them, and starting nodes.

Imports `shoal.data` and the layers below it. Its face: `session.ClusterSession` (a run), `lifecycle` (start and
stop a cluster), `agent.agent.Agent` (one node). Needs the extra `cluster`.
"""
