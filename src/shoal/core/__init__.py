"""The scheduler: workflow graphs, dependencies, queues, policies, and decisions about starts and retries. Pure.

Imports only `shoal.errors`. Main entry points: `graph.Graph`, `dependencies.DagFlow`, `scheduler.Scheduler` (one node)
and `peer_scheduler.PeerScheduler` (several nodes). Both schedulers are used as `handle(now, event) -> [command]`.
"""
