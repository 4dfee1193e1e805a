"""A static graph as a net: every task a transition, every edge a place with one producer and one consumer.

The same tasks run under the same order constraints as with `DagFlow`, which is the quicker engine for large graphs:
here each task and each edge is an object of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.flow.net.build import NO_PROFILE, Net
from shoal.flow.net.transition import Transition
from shoal.flow.net.words import Place, Port, take
from shoal.model.graph import Graph


def net_of_graph(graph: Graph, name: str = "") -> Net:
    """The net of a graph. Tasks that run nothing become steps; transitions are named `number name`."""
    net = Net(name or graph.source)
    incoming: list[list[Place]] = [[] for _ in range(len(graph))]
    outgoing: list[list[Place]] = [[] for _ in range(len(graph))]
    for task in range(len(graph)):
        if not graph.pending[task]:
            incoming[task].append(net.place(f"begin {task}", [True]))
        for child in dict.fromkeys(graph.successors_of(task)):
            edge = net.place(f"{task} before {child}")
            outgoing[task].append(edge)
            incoming[child].append(edge)
    for task in range(len(graph)):
        net.add(_transition(graph, net, task, incoming[task], outgoing[task]))
    return net


def task_number(transition: Transition) -> int:
    """The number in the graph of the task that a transition stands for."""
    return int(transition.name.partition(" ")[0])


def _transition(graph: Graph, net: Net, task: int, incoming: list[Place], outgoing: list[Place]) -> Transition:
    action = graph.actions[task]
    ports: list[Port] = [take(place) for place in incoming]
    tell = _telling(outgoing)
    return Transition(
        name=f"{task} {graph.names[task]}",
        net=net.name,
        is_task=action is not None,
        port_names=tuple(f"need_{number}" for number in range(len(ports))),
        ports=tuple(ports),
        visible=0,
        function=tell if action is None else None,
        gives=tell if action is not None else None,
        profile=graph.profile_of(task) if action is not None else NO_PROFILE,
        action=action,
    )


def _telling(outgoing: list[Place]) -> Callable[[], dict[Place, bool]]:
    """Whatever a task returned, its successors learn only that it is done."""
    return lambda: dict.fromkeys(outgoing, True)
