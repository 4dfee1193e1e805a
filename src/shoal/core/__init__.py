"""The scheduler: what a workflow is, what is ready, what starts next and where. Pure.

Imports only `shoal.errors`. Its face: `graph.Graph`, `dependencies.DagFlow`, `scheduler.Scheduler` on one node and
`peer_scheduler.PeerScheduler` among several, both used as `handle(now, event) -> [command]`.
"""
