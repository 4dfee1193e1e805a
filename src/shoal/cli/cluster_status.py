"""`shoal cluster status`: who is there, group by group, what is missing and why, and what is run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.agent.messages import ClusterTold, NodeNote
    from shoal.cluster.home import ClusterHome, Started
    from shoal.store.directory import NodeInfo

OTHERS = ""
"""Stands for nodes that are in no group: they were started by hand."""


def show(name: str) -> None:
    """Prints it; what was asked for and is not there is known only where the cluster was started."""
    from shoal.agent.messages import make_codec
    from shoal.cli.cells import printable
    from shoal.cluster.groups import told
    from shoal.cluster.home import ClusterHome, Started
    from shoal.wire.access import read
    from shoal.wire.caller import Caller
    from shoal.wire.places import access_path

    path = access_path(name)
    with Caller(read(path), make_codec()) as caller:
        found = told(caller)
    home = ClusterHome(name) if path != name else None
    started = home.read_started() if home is not None else Started()
    lines = {} if home is None else _of_starts(home, started, found)
    for line in described(found, started, lines):
        print(printable(line))


def _of_starts(home: ClusterHome, started: Started, found: ClusterTold) -> dict[str, list[str]]:
    """By group, what has been asked for and is not there, and who decides how much is asked for."""
    from shoal.cluster.manage import absent, factory_says
    from shoal.cluster.starters import Phase

    missing = absent(home, started, found)
    lines: dict[str, list[str]] = {}
    for group in started.groups:
        words = lines.setdefault(group.name, [])
        for handle, standing in missing[group.name]:
            if group.closing and standing.phase is Phase.ENDED:
                continue
            job = getattr(handle, "job", "")
            which = f"job {job}" if job else handle.name
            words.append(f"  {standing.phase.value}  {which}  {standing.reason}".rstrip())
        factory = factory_says(home, started, group)
        if factory:
            words.append(f"  {factory}")
    return lines


def described(found: ClusterTold, started: Started, more: Mapping[str, list[str]]) -> list[str]:
    """The lines of the answer; a single group without a name of its own needs no heading."""
    from shoal.agent.messages import NodeNote
    from shoal.cluster.home import MAIN

    groups: dict[str, list[int]] = {group.name: [] for group in started.groups}
    for number, node in found.nodes.items():
        groups.setdefault(node.labels.get("group", OTHERS), []).append(number)
    kept = {group.name: group for group in started.groups}
    shown = [name for name in groups if groups[name] or more.get(name) or not (name in kept and kept[name].closing)]
    plain = not {*shown} - {MAIN, OTHERS} or shown == [OTHERS]
    lines = [f"{len(found.nodes)} node{'s' * (len(found.nodes) != 1)}"]
    for name in sorted(shown, key=lambda name: name == OTHERS):
        if not plain:
            kind = f", {kept[name].kind}" if name in kept else ""
            closing = ", is being removed" if name in kept and kept[name].closing else ""
            count = len(groups[name])
            title = f"group {name}{kind}{closing}" if name != OTHERS else "in no group"
            lines.append(f"  {title}: {count} {'node' if count == 1 else 'nodes'}")
        for number in groups[name]:
            lines.append(_row(number, found.nodes[number], found))
            lines += [f"        throttle: {words}" for words in found.notes.get(number, NodeNote()).throttle]
        lines += [line if plain else f"  {line}" for line in more.get(name, [])]
    lines += [
        f"  run {run.run}  {run.name}  {run.state}  {run.tasks - run.left} of {run.tasks} tasks" for run in found.runs
    ]
    return lines


def _row(number: int, node: NodeInfo, found: ClusterTold) -> str:
    from shoal.agent.messages import NodeNote
    from shoal.model.resources import show_amount

    offers = ", ".join(f"{what} {show_amount(what, amount)}" for what, amount in node.resources.amounts if amount)
    labels = " ".join(f"{key}={value}" for key, value in sorted(node.labels.items()) if key not in ("node", "group"))
    doing = _doing(found.notes.get(number, NodeNote()), node.ends_at)
    return f"  {number:>4}  {node.name}  {node.address}  {offers}  {labels}  {doing}"


def _doing(note: NodeNote, ends_at: float | None) -> str:
    """What a node does, in words."""
    from shoal.model.quantities import show_bytes, show_seconds

    words = f"{note.running} run, {note.shared + note.local} wait"
    if note.idle_seconds is not None:
        words = f"idle for {show_seconds(round(note.idle_seconds))}"
    if note.draining:
        words += ", starts nothing more"
    if note.ahead:
        words += f", its clock is {show_seconds(round(abs(note.ahead)))} {'ahead' if note.ahead > 0 else 'behind'}"
    if note.fetched:
        words += f", {show_bytes(note.fetched)} fetched"
    if ends_at is not None:
        words += f", there for {show_seconds(round(max(0.0, ends_at - time.time())))}"
    return f"({words})"
