"""Graphs as a test writes them: one task per line, `name: what it needs`; a name in brackets runs nothing."""

from __future__ import annotations

from shoal.core.graph import Graph, GraphBuilder
from shoal.core.task import Profile


def graph_of(text: str, profile: Profile | None = None) -> Graph:
    """Each task makes a file of its own name and reads the files it needs; `(name)` is a group."""
    builder = GraphBuilder("test")
    for line, row in enumerate(text.strip().splitlines(), 1):
        name, _, needs = row.partition(":")
        name = name.strip()
        bare = name.strip("()")
        action = None if name.startswith("(") else f"make {bare}"
        builder.task(bare, action, inputs=needs.split(), outputs=[bare], profile=profile, line=line)
    return builder.build()


def names(graph: Graph, tasks: list[int]) -> list[str]:
    return [graph.names[task] for task in tasks]
