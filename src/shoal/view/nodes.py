"""The machines of a run: what each has done, and while the run goes on how each stands.

Of a cluster both come from what its nodes said; how they stood when a run was over says nothing, and is left out. A run
on one machine has one node, of which its own records tell.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from shoal.ledger.records import NodeTold
from shoal.model.resources import FRACTION
from shoal.view.fold import LOCAL, Node
from shoal.view.gantt import node_name
from shoal.view.graph import Needs
from shoal.view.run import RunView


class NodeRow(msgspec.Struct, frozen=True):
    """One machine."""

    name: str
    cores: float
    memory: int
    tasks: int
    failed: int
    busy: float
    """Core seconds of its attempts."""
    share: float | None
    """Of its cores, while it was there; None if it was gone before anybody knew how many it has."""
    made: float
    fetched: int
    stolen: int
    pushed: int
    present: float
    left: bool
    fetched_files: int = 0
    hits: int = 0
    """How often a task has read a file for which nothing had to be fetched."""
    hit_bytes: int = 0
    running: int | None = None
    """Tasks now; None, with the following: not known, or the run is over."""
    wait: int | None = None
    """Those that cannot start yet."""
    local: int | None = None
    """Ready ones that stay here."""
    shared: int | None = None
    """Ready ones that any node may take."""
    cores_held: float | None = None
    memory_used: float | None = None
    """The share of the machine's memory, by whomever."""


class Moved(msgspec.Struct, frozen=True):
    """What all nodes together have got from each other."""

    fetched: int
    fetched_files: int
    hits: int
    hit_bytes: int
    stolen: int
    pushed: int


def moved(view: RunView) -> Moved:
    """Of all nodes that took part."""
    told = [_moved(node.told) for node in view.nodes.values()]
    return Moved(*(sum(each[name] for each in told) for name in Moved.__struct_fields__))


def node_rows(view: RunView, until: float | None = None, needs: Needs | None = None) -> list[NodeRow]:
    """Every machine that took part. `until` is given for a run that goes on; with `needs` it is known what is ready."""
    view.settle()
    rows, last = view.attempts, view.until(until)
    there, is_live = view.there(last), view.goes_on(until)
    size = 1 + max((*view.nodes, int(rows.node.max(initial=0))), default=0)
    ok = (rows.outcome == 0) & rows.final
    work = np.bincount(rows.node, view.held() * view.within(), size)
    done, failed = np.bincount(rows.node[ok], minlength=size), np.bincount(rows.node[~ok], minlength=size)
    made = np.bincount(rows.node[ok], rows.made[ok], size)
    found = []
    for number in range(size):
        node = view.nodes.get(number)
        if node is None and not done[number] + failed[number]:
            continue
        spans = node.present if node is not None else []
        present = sum(end - begin for at, _, begin, end in there if at == number)
        cores, busy = node.cores if node is not None else 0.0, float(work[number])
        found.append(
            NodeRow(
                node_name(view, number),
                cores,
                node.resources.get("memory", 0) if node is not None else 0,
                int(done[number]),
                int(failed[number]),
                busy,
                min(1.0, busy / (cores * present)) if cores and present > 0 else None,
                float(made[number]),
                present=present,
                left=bool(spans) and spans[-1][1] is not None,
                **_moved(node.told if node is not None else None),
                **(_standing(view, number, node, needs) if is_live and node is not None else {}),
            )
        )
    return found


def standing_rows(view: RunView) -> list[dict[str, Any]]:
    """Of every node of a cluster that is there: what it said last. This takes no look at attempts."""
    return [
        {"name": node.name, **_moved(node.told), **_standing(view, number, node, None)}
        for number, node in sorted(view.nodes.items())
        if number != LOCAL and node.is_there
    ]


def _moved(told: NodeTold | None) -> dict[str, int]:
    return {name: getattr(told, name) if told is not None else 0 for name in Moved.__struct_fields__}


def _standing(view: RunView, number: int, node: Node, needs: Needs | None) -> dict[str, Any]:
    """How a node stands at this moment."""
    if number == LOCAL:
        return _alone(view, needs)
    told = node.stands
    if told is None or told.running is None:
        return {}
    return {
        "running": told.running,
        "wait": told.wait,
        "local": told.local,
        "shared": told.shared,
        "cores_held": told.cores / FRACTION,
        "memory_used": told.memory_used,
    }


def _alone(view: RunView, needs: Needs | None) -> dict[str, Any]:
    """Of a run on one machine: what waits is in no queue of a node, and what is ready stays here."""
    open_ones = view.waiting()
    ready = min(open_ones, int(needs.ready(view).sum())) if needs is not None else None
    return {
        "running": view.running_now(),
        "wait": open_ones - ready if ready is not None else open_ones,
        "local": ready,
        "cores_held": cores_held(view),
    }


def cores_held(view: RunView) -> float:
    """At this moment, by all tasks that run; of nodes of a cluster as they said last."""
    if view.is_cluster():
        return sum(node.stands.cores for node in view.nodes.values() if node.stands is not None) / FRACTION
    going = np.array(list(view.running), np.int64)
    unseen = view.running_now() - len(going)  # short ones; most tasks hold one core
    return min(view.total_cores(), float(view.cores_of(going, view.category_of(going)).sum()) + unseen)
