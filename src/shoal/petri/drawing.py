"""A net as text for graphviz, and as plain data for whoever shows it in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.petri.language import Place

if TYPE_CHECKING:
    from shoal.petri.net import Net
    from shoal.petri.transition import Transition


class Arc(msgspec.Struct, frozen=True):
    """How a transition uses a place; `put` and `on_error` lead to the place, the others from it."""

    transition: str
    place: str
    kind: str
    port: str = ""


class PlaceShown(msgspec.Struct, frozen=True):
    name: str
    tokens: int
    type: str = ""


class TransitionShown(msgspec.Struct, frozen=True):
    name: str
    kind: str
    priority: int
    guards: int
    category: str = ""
    group: str = ""
    command: str = ""
    implementations: tuple[str, ...] = ()


class NetShown(msgspec.Struct, frozen=True):
    """Places, transitions and arcs, in the order of their declaration."""

    name: str
    places: list[PlaceShown]
    transitions: list[TransitionShown]
    arcs: list[Arc]


def describe(net: Net) -> NetShown:
    """The net as plain data.

    Where a transition puts tokens is known only from `put=` and `on_error=`, or once it has returned.
    """
    places = []
    for name, spec in net.places.items():
        kinds = spec.type if isinstance(spec.type, tuple) else (spec.type,) if spec.type else ()
        places.append(PlaceShown(name, len(spec.tokens), " or ".join(kind.__name__ for kind in kinds)))
    transitions = [_shown(transition) for transition in net.transitions.values()]
    arcs = [arc for transition in net.transitions.values() for arc in _arcs(net, transition)]
    return NetShown(net.name, places, transitions, arcs)


def _shown(transition: Transition) -> TransitionShown:
    command = transition.command if isinstance(transition.command, str) else ""
    return TransitionShown(
        transition.name,
        "task" if transition.is_task else "step",
        transition.priority,
        len(transition.guards),
        transition.profile.category,
        transition.group,
        command or (transition.action if isinstance(transition.action, str) else ""),
        tuple(name for name, _ in transition.implementations),
    )


def _arcs(net: Net, transition: Transition) -> list[Arc]:
    name = transition.name
    arcs = [
        Arc(name, port.place.name, port.kind, port_name)
        for port_name, port in zip(transition.port_names, transition.ports, strict=True)
    ]
    if transition.put is not None:
        arcs.append(Arc(name, transition.put.name, "put"))
    if transition.within is not None:
        arcs.append(Arc(name, transition.within.name, "put"))
    if transition.on_error is not None:
        arcs.append(Arc(name, transition.on_error.name, "on_error"))
    return arcs + [Arc(name, place, "put") for place in _mentioned(net, transition)]


def _mentioned(net: Net, transition: Transition) -> list[str]:
    """Places that the function refers to by a variable of its own or around it: where its tokens most likely go."""
    if transition.put is not None:
        return []
    names: dict[str, None] = {}
    for function in (transition.function, transition.gives):
        for thing in _variables(function):
            for place in thing if isinstance(thing, (list, tuple)) else (thing,):
                if isinstance(place, Place) and place.net == net.name and place.name in net.places:
                    names[place.name] = None
    return list(names)


def _variables(function: object) -> list[object]:
    """The values of the variables around a function that it uses."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    around = getattr(function, "__globals__", {})
    found = [around.get(name) for name in code.co_names]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    return found


_STYLE = {
    "read": " [style=dashed, dir=both, arrowtail=none]",
    "count": " [style=dotted, arrowhead=none]",
    "on_error": ' [color=red, label="on_error"]',
}


def dot(net: Net, tokens: dict[str, int] | None = None) -> str:
    """The net for graphviz: places as circles with their number of tokens, steps as bars, tasks as boxes.

    `tokens` shows a marking other than the first one.
    """
    shown = describe(net)
    lines = [f"digraph {_quoted(net.name)} {{", "  rankdir=LR;"]
    for place in shown.places:
        number = tokens.get(place.name, 0) if tokens is not None else place.tokens
        label = f"{place.name}\\n{number}" if number else place.name
        lines.append(f"  {_quoted('place ' + place.name)} [shape=ellipse, label={_quoted(label)}];")
    for transition in shown.transitions:
        look = "shape=box, style=filled" if transition.kind == "task" else "shape=box, height=0.2"
        guarded = "?" if transition.guards else ""
        label = _quoted(transition.name + guarded)
        lines.append(f"  {_quoted('transition ' + transition.name)} [{look}, label={label}];")
    for arc in shown.arcs:
        ends = [_quoted("place " + arc.place), _quoted("transition " + arc.transition)]
        if arc.kind in ("put", "on_error"):
            ends.reverse()
        lines.append(f"  {ends[0]} -> {ends[1]}{_STYLE.get(arc.kind, '')};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
