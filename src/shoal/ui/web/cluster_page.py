"""The parts of a cluster's live page: plain lists and numbers, computed from collected facts. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal import __version__
from shoal.cluster.agent.messages import ClusterNodeFacts, ClusterReply, ClusterRunFacts
from shoal.cluster.participants import standing
from shoal.core.quantities import show_seconds
from shoal.core.resources import FRACTION, show_amount
from shoal.core.store.directory import NodeInfo
from shoal.core.store.interface import LEASE

SILENT_SECONDS = 3.5
"""A node counts as silent after this time; on a busy machine one or two heartbeats may be late."""
MOST_DEPARTED = 50
"""Maximum number of departed nodes that are kept."""
RATE_SECONDS = 20.0
"""Window over which the rate of a run is measured."""


class SeenNode(msgspec.Struct):
    """The last known state of a node."""

    number: int
    info: NodeInfo
    note: ClusterNodeFacts
    since: float
    """When it joined."""
    last_heartbeat: float
    """Time of its last heartbeat."""
    idle_since: float | None = None
    departed: float | None = None
    """When it was noticed as missing."""
    lost: bool = False
    """It fell silent before it disappeared, so it did not leave properly."""

    def silence(self, now: float) -> float:
        """Seconds since the last heartbeat; 0 while that is within the usual range."""
        quiet = (self.departed or now) - self.last_heartbeat
        return quiet if quiet > SILENT_SECONDS else 0.0


class Presence:
    """Nodes and runs of one cluster over time."""

    def __init__(self) -> None:
        self._seen: dict[int, SeenNode] = {}
        self._left: dict[str, deque[tuple[float, int]]] = {}
        """By run: samples of the number of remaining tasks."""
        self.runs: list[ClusterRunFacts] = []

    def update(self, now: float, reply: ClusterReply) -> None:
        """Takes the cluster's current reply."""
        for number, info in reply.nodes.items():
            self._update_node(now, number, info, reply.notes.get(number, ClusterNodeFacts()))
        for seen in self._seen.values():
            if seen.number not in reply.nodes and seen.departed is None:
                seen.departed, seen.lost = now, not seen.note.draining and seen.silence(now) > 0
        departed = [seen.number for seen in self._seen.values() if seen.departed is not None]
        for number in departed[: max(0, len(departed) - MOST_DEPARTED)]:
            del self._seen[number]
        self.runs = reply.runs
        self._left = {run.run: self._left.get(run.run, deque()) for run in reply.runs}
        for run in reply.runs:
            points = self._left[run.run]
            points.append((now, run.left))
            while len(points) > 2 and now - points[1][0] >= RATE_SECONDS:
                points.popleft()

    def _update_node(self, now: float, number: int, info: NodeInfo, note: ClusterNodeFacts) -> None:
        seen = self._seen.get(number)
        if seen is None:
            self._seen[number] = seen = SeenNode(number, info, note, now - note.up_seconds, now)
        elif note.up_seconds != seen.note.up_seconds:
            seen.last_heartbeat = now
            if not seen.note.up_seconds:
                seen.since = now - note.up_seconds  # its first heartbeat
        seen.info, seen.note = info, note
        if note.idle_seconds is None:
            seen.idle_since = None
        elif seen.idle_since is None:
            seen.idle_since = now - note.idle_seconds

    def nodes(self) -> list[SeenNode]:
        """Present nodes in order of their numbers, then departed ones, the latest first."""
        there = [seen for seen in self._seen.values() if seen.departed is None]
        departed = [seen for seen in self._seen.values() if seen.departed is not None]
        return sorted(there, key=lambda seen: seen.number) + sorted(departed, key=lambda seen: -(seen.departed or 0.0))

    def rate(self, run: str) -> float | None:
        """Tasks of a run that ended per second, recently; None if not yet known."""
        points = self._left.get(run, deque())
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return None
        return max(0, points[0][1] - points[-1][1]) / (points[-1][0] - points[0][0])


OWN_LABELS = ("node", "group", "host")
"""Labels that every node has."""
SOON = 120.0
"""Seconds before the end of an allocation from which on the page mentions it."""
UNEXPLAINED = {"running": "it has not joined, or cannot reach the other nodes", "waiting": "it has not started"}
"""By phase: the text for a missing node without a reported reason."""
_STANDING = ("running", "wait", "local", "shared", "cores_held", "memory_used")
_COUNTED = ("fetched", "fetched_files", "hits", "hit_bytes", "stolen", "pushed")


class Missing(msgspec.Struct, frozen=True):
    """A node that was requested and has not joined."""

    name: str
    """The name under which it will join."""
    phase: str
    which: str
    reason: str


class GroupState(msgspec.Struct, frozen=True):
    """State of a group of nodes as its node starter knows it."""

    name: str
    kind: str = ""
    closing: bool = False
    factory: str = ""
    missing: tuple[Missing, ...] = ()


class StoreStatus(msgspec.Struct, frozen=True):
    """State of the cluster's run store."""

    kind: str = ""
    """`head`, `redis`, or empty if the client may not know."""
    where: str = ""
    problem: str = ""
    worries: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """Everything known at one moment."""

    name: str
    presence: Presence
    now: float
    problem: str = ""
    """Why no agent responds."""
    groups: tuple[GroupState, ...] = ()
    store: StoreStatus = StoreStatus()


def cluster_parts(facts: Facts) -> dict[str, Any]:
    """All parts; the rows of nodes are still in one list, as `nodes`."""
    facts = _without_those_that_came(facts)
    nodes = [node_row(seen, facts) for seen in facts.presence.nodes()]
    there = [row for row in nodes if not row["left"]]
    return {
        "cluster": {
            "name": facts.name,
            "live": not facts.problem,
            "problem": facts.problem,
            "nodes": len(there),
            "missing": sum(len(group.missing) for group in facts.groups),
            "cores": sum(row["cores"] for row in there),
            "cores_held": round(sum(row["cores_held"] or 0 for row in there), 2),
            "running": sum(row["running"] or 0 for row in there),
            "queued": sum((row["wait"] or 0) + (row["local"] or 0) + (row["shared"] or 0) for row in there),
            "shoal": __version__,
        },
        "nodes": nodes,
        "runs": [_run(run, facts, there) for run in facts.presence.runs],
        "groups": _groups(facts, there),
        "store": msgspec.to_builtins(facts.store),
        "troubles": troubles(facts, nodes),
    }


def _without_those_that_came(facts: Facts) -> Facts:
    """Removes nodes from the missing ones that have joined since: node starters are polled less often than agents."""
    there = {seen.info.labels.get("node") for seen in facts.presence.nodes() if seen.departed is None}
    groups = tuple(
        msgspec.structs.replace(group, missing=tuple(each for each in group.missing if each.name not in there))
        for group in facts.groups
    )
    return msgspec.structs.replace(facts, groups=groups)


def node_row(seen: SeenNode, facts: Facts) -> dict[str, Any]:
    """One node, present or departed."""
    info, note = seen.info, seen.note
    is_known = seen.departed is None and not facts.problem and bool(note.up_seconds)
    now = dict(zip(_STANDING, standing(note), strict=True)) if is_known else dict.fromkeys(_STANDING)
    if now["cores_held"] is not None:
        now["cores_held"] = round(now["cores_held"] / FRACTION, 2)
    return {
        "number": seen.number,
        "name": info.name,
        "address": info.address,
        "group": info.labels.get("group", ""),
        "labels": {name: value for name, value in sorted(info.labels.items()) if name not in OWN_LABELS},
        "version": info.version,
        "resources": [[name, show_amount(name, amount)] for name, amount in info.resources.amounts if amount],
        "cores": info.resources.get("cores") / FRACTION,
        "memory": info.resources.get("memory"),
        "since": round(seen.since, 1),
        "ends": info.ends_at,
        "state": _state(seen, facts),
        "idle_since": None if seen.idle_since is None else round(seen.idle_since, 1),
        "left": seen.departed is not None,
        "run": note.run if is_known else "",
        "doing": [list(pair) for pair in note.doing] if is_known else [],
        "throttle": list(note.throttle),
        **now,
        **{name: getattr(note, name) for name in _COUNTED},
        "trouble": _trouble(seen, facts),
    }


def _state(seen: SeenNode, facts: Facts) -> str:
    if seen.departed is not None:
        return "lost" if seen.lost else "left"
    if facts.problem:
        return "not known"
    if seen.silence(facts.now):
        return "silent"
    if seen.note.draining:
        return "ending"
    if not seen.note.up_seconds:
        return "new"
    return "idle" if seen.note.idle_seconds is not None else "busy"


def _trouble(seen: SeenNode, facts: Facts) -> list[str]:
    """Problems of a node, as sentences without its name."""
    found = []
    silence = seen.silence(facts.now)
    silent = show_seconds(round(silence))
    if seen.departed is not None and seen.lost:
        found.append(f"sent no heartbeat for {silent} and counts as lost; its tasks run on other nodes")
    elif seen.departed is None and silence and not facts.problem:
        found.append(f"no heartbeat for {silent}; after {show_seconds(LEASE)} it counts as lost")
    if seen.departed is not None:
        return found
    if seen.note.ahead:
        where = "ahead of" if seen.note.ahead > 0 else "behind"
        found.append(
            f"its clock is {show_seconds(round(abs(seen.note.ahead)))} {where} the cluster's; synchronise it with NTP"
        )
    if seen.info.version != __version__:
        found.append(f"it runs Shoal {seen.info.version}, this server {__version__}")
    ends = seen.info.ends_at
    if ends is not None and ends - facts.now < SOON:
        found.append(f"its time limit ends in {show_seconds(round(max(0.0, ends - facts.now)))}")
    return found


def _run(run: Any, facts: Facts, there: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rate = facts.presence.rate(run.run) if run.state == "active" else None
    return {
        "run": run.run,
        "name": run.name,
        "state": str(run.state),
        "tasks": run.tasks,
        "over": run.tasks - run.left,
        "ready": run.ready,
        "rate": None if rate is None else round(rate, 2),
        "left": None if not rate else round(run.left / rate, 1),
        "nodes": sum(row["run"] == run.run for row in there),
    }


def _groups(facts: Facts, there: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups started from here, then groups known only from the labels of their nodes."""
    known = {group.name: group for group in facts.groups}
    names = [*known, *dict.fromkeys(row["group"] for row in there if row["group"] not in known)]
    found = []
    for name in names:
        group = known.get(name, GroupState(name))
        mine = [row for row in there if row["group"] == name]
        found.append(
            msgspec.to_builtins(group)
            | {"missing": [_missing(each) for each in group.missing]}
            | {"nodes": len(mine), "cores": sum(row["cores"] for row in mine), "running": _sum(mine, "running")}
        )
    return [group for group in found if group["nodes"] or group["missing"] or not group["closing"]]


def _missing(missing: Missing) -> dict[str, str]:
    return {"which": missing.which, "phase": missing.phase, "reason": _reason(missing)}


def _reason(missing: Missing) -> str:
    return missing.reason or UNEXPLAINED.get(missing.phase, "reason unknown")


def _sum(rows: Sequence[dict[str, Any]], name: str) -> float:
    return sum(row[name] or 0 for row in rows)


def troubles(facts: Facts, nodes: Sequence[dict[str, Any]]) -> list[str]:
    """All problems, as sentences."""
    found = [facts.problem] if facts.problem else []
    found += [facts.store.problem] if facts.store.problem else []
    found += [f"{row['name']}: {sentence}" for row in nodes for sentence in row["trouble"]]
    for group in facts.groups:
        where = f" of group {group.name}" if len(facts.groups) > 1 else ""
        for missing in group.missing:
            reason = _reason(missing)
            state = "" if reason.startswith(missing.phase) else f", {missing.phase}"
            found.append(f"a node{where} is missing ({missing.which}{state}): {reason}")
    return [*found, *facts.store.worries]
