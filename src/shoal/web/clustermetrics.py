"""A cluster in the OpenMetrics text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal.web.metrics import Sample, family, node_families


def cluster_metrics(parts: Mapping[str, Any]) -> str:
    """The text, from the parts of its page."""
    cluster, nodes = parts["cluster"], parts["nodes"]
    who = {"cluster": cluster["name"], "shoal": cluster["shoal"]}
    states = Counter(row["state"] for row in nodes)
    missing: list[Sample] = [({"group": group["name"]}, len(group["missing"])) for group in parts["groups"]]
    tasks: list[Sample] = [
        ({"run": run["run"], "workflow": run["name"], "state": state}, number)
        for run in parts["runs"]
        for state, number in (("over", run["over"]), ("left", run["tasks"] - run["over"]), ("ready", run["ready"]))
    ]
    lines = [
        *family("shoal_cluster", "info", "Identity of the cluster.", [(who, 1)]),
        *family(
            "shoal_cluster_answers", "gauge", "1 if an agent of the cluster responds.", [({}, float(cluster["live"]))]
        ),
        *family(
            "shoal_cluster_nodes", "gauge", "Nodes by state.", [({"state": s}, n) for s, n in sorted(states.items())]
        ),
        *family("shoal_cluster_missing_nodes", "gauge", "Nodes that were requested and have not joined.", missing),
        *family("shoal_cluster_run_tasks", "gauge", "Tasks of runs on the cluster, by state.", tasks),
        *node_families([row for row in nodes if not row["left"]]),
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"
