"""Construction of nets: `Net` with places, steps and tasks; loops, barriers, windows; drawing; nets of static graphs.

A net is a description without running state; it rejects what can never work. `shoal.petri.interpreter.NetFlow` runs it,
any number of times.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shoal.core.graph import Graph
from shoal.core.task import Profile
from shoal.errors import InputError
from shoal.petri.language import Failure, Place, Port, count, eureka, result, take
from shoal.petri.transition import (
    Function,
    PortOptions,
    Transition,
    check_returns,
    check_template,
    guards_of,
    ports_in_order,
    shortened,
)

if TYPE_CHECKING:
    from shoal.petri.transition import Transition


class Arc(msgspec.Struct, frozen=True):
    """Connection of a transition and a place; `put` and `on_error` lead to the place, the others from it."""

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

    Where a transition puts tokens is known only from `put=` and `on_error=`, or after it has returned.
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
    """Places that the function refers to by a global or closure variable: probably the places where it puts tokens."""
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
    """Values of the global and closure variables that a function uses."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    around = getattr(function, "__globals__", {})
    found = [around.get(name) for name in code.co_names]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a closure variable without a value yet
            continue
    return found


_STYLE = {
    "read": " [style=dashed, dir=both, arrowtail=none]",
    "count": " [style=dotted, arrowhead=none]",
    "on_error": ' [color=red, label="on_error"]',
}


def dot(net: Net, tokens: dict[str, int] | None = None) -> str:
    """The net for Graphviz: places as ellipses with their number of tokens, steps as bars, tasks as boxes.

    `tokens` shows a marking other than the initial one.
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


def foreach(
    net: Net,
    source: Place,
    function: Callable[..., Any],
    /,
    put: Place | None = None,
    *,
    step: bool = False,
    **words: Any,
) -> Place:
    """One task for every token of `source`; the return value is the token for `put`."""
    name = _name_of(net, words, function)
    _refuse(net, name, words, "command", "implementations")
    out = put if put is not None else net.place(f"{name}.out")
    make = net.step if step else net.task
    make(**{_parameter(net, name, function): take(source)}, name=name, put=out, **words)(function)
    return out


def loop(
    net: Net,
    source: Place,
    body: Callable[..., Any],
    /,
    while_: Callable[[Any], object],
    put: Place | None = None,
    *,
    step: bool = False,
    **words: Any,
) -> Place:
    """Passes each token of `source` to `body` repeatedly while `while_` is true for it, then on to `put`."""
    name = _name_of(net, words, body)
    _refuse(net, name, words, "command", "implementations", "when")
    if not callable(while_):
        raise InputError(f"net {net.name!r}: while_= of the loop {name!r} must be a function of a token")
    out = put if put is not None else net.place(f"{name}.out")
    parameter = _parameter(net, name, body)
    make = net.step if step else net.task
    again = _guard(parameter, while_, wanted=True)
    make(**{parameter: take(source)}, name=name, when=again, put=source, **words)(body)

    def leave(value: object) -> object:
        return value

    net.step(value=take(source), name=f"{name}.leave", when=_guard("value", while_, wanted=False), put=out)(leave)
    return out


def barrier(
    net: Net, source: Place, /, after: Place | Iterable[Place], put: Place | None = None, name: str = ""
) -> Place:
    """Holds the tokens of `source` back until no token is left on the places `after`, nor in a task that took one."""
    name = name or f"{source.name}.barrier"
    places = [after] if isinstance(after, Place) else list(after)
    if not places:
        raise InputError(f"net {net.name!r}: the barrier {name!r} has no place to wait for")
    out = put if put is not None else net.place(f"{name}.out")
    counts = {f"left_{number}": count(place) for number, place in enumerate(places)}

    def passes(token: object, **left: int) -> object:
        return token

    guards = [_guard(port, bool, wanted=False) for port in counts]
    net.step(token=take(source), **counts, name=name, when=guards, put=out)(passes)
    return out


def window(net: Net, size: int, /, name: str = "window") -> Place:
    """A place with `size` tokens: at most this many of the tasks declared `within=` it run concurrently."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"net {net.name!r}: the size of window {name!r} must be at least 1, not {size!r}")
    return net.place(name, range(size))


def _guard(port: str, holds: Callable[[Any], object], *, wanted: bool) -> Callable[..., bool]:
    """A guard over one port, independent of the parameter name of `holds`."""

    def guard(value: object) -> bool:
        return bool(holds(value)) is wanted

    parameter = inspect.Parameter(port, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    guard.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]  # how inspect is told
    return guard


def _name_of(net: Net, words: dict[str, Any], function: Callable[..., Any]) -> str:
    name = words.pop("name", "") or getattr(function, "__name__", "")
    if not name or not isinstance(name, str):
        raise InputError(f"net {net.name!r}: {function!r} has no name", remedy="give name=")
    return name


def _refuse(net: Net, name: str, words: dict[str, Any], *refused: str) -> None:
    for word in refused:
        if word in words:
            raise InputError(
                f"net {net.name!r}: {name!r} cannot have {word}=", remedy="write it with net.task and take"
            )


def _parameter(net: Net, name: str, function: Callable[..., Any]) -> str:
    """The name of the parameter for the token."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    if not names:
        raise InputError(f"net {net.name!r}: the function of {name!r} has no parameter for the token")
    return names[0]


F = TypeVar("F", bound=Callable[..., Any])
NO_PROFILE = Profile()
"""Profile of steps, which run on no node."""


class PlaceSpec(msgspec.Struct, frozen=True):
    """A declared place."""

    place: Place
    tokens: tuple[object, ...]
    type: type | tuple[type, ...] | None


class Net:
    """A net: places and transitions by name; see `shoal.petri` for their meaning."""

    def __init__(self, name: str = "net", *, keep_open: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"the name of a net must be text, not {name!r}")
        self.name = name
        self.keep_open = keep_open
        """Whether a run waits for tokens from outside when nothing is left to do, until it is closed."""
        self.places: dict[str, PlaceSpec] = {}
        self.transitions: dict[str, Transition] = {}
        self._prefix = ""

    def sub(self, prefix: str) -> Net:
        """A view of the same net whose new places and transitions are named `prefix.name`.

        A sub-net is a plain function that takes a net and some places: `halve(net.sub("left"), source, out)`.
        """
        if not isinstance(prefix, str) or not prefix:
            raise InputError(f"net {self.name!r}: the prefix of a sub-net must be text, not {prefix!r}")
        view = Net(self.name, keep_open=self.keep_open)
        view.places, view.transitions = self.places, self.transitions
        view._prefix = f"{self._prefix}{prefix}."
        return view

    def place(self, name: str, tokens: Iterable[object] = (), type: type | tuple[type, ...] | None = None) -> Place:
        """Adds a place with its initial tokens; with `type=` every token must be an instance of it."""
        if not isinstance(name, str) or not name:
            raise InputError(f"net {self.name!r}: the name of a place must be text, not {name!r}")
        full = self._prefix + name
        if full in self.places:
            raise InputError(f"net {self.name!r} has two places named {full!r}", remedy="rename one of them")
        try:
            isinstance(None, type or object)
        except TypeError:
            raise InputError(f"net {self.name!r}: the type of the place {full!r} is {type!r}, not a class") from None
        try:
            first = tuple(tokens)
        except TypeError:
            raise InputError(
                f"net {self.name!r}: the initial tokens of the place {full!r} must be a list, not {tokens!r}"
            ) from None
        spec = PlaceSpec(Place(self.name, full), first, type)
        for token in first:
            check_type(self.name, spec, token)
        self.places[full] = spec
        return spec.place

    def step(self, /, **words: Any) -> Callable[[F], F]:
        """Declares a transition that runs in the engine: fast, and a pure function of its tokens.

        Keywords with ports as values are the parameters of the function. The others: `when` (a guard, or a list of
        them), `priority`, `once`, `put` (the only place for the return value), `name`.
        """
        found = PortOptions(self.name, "step", words)

        def declare(function: F) -> F:
            self._declare("step", found, function)
            return function

        return declare

    def task(self, /, **words: Any) -> Callable[[F], F]:
        """Declares a transition that runs on a node; a decorator, unless `command=` or `implementations=` is given.

        As `step`, and: `category`, `cores`, `memory`, `disk`, `gpus` and other resources, `retries`, `timeout`,
        `environment`, `directory`, `prefers`, `group` (for `eureka`), `on_error` (a place for a `Failure`), `within` (a
        window), `command` and `gives` (format strings or functions of the ports), `implementations` (by class).
        """
        found = PortOptions(self.name, "task", words)
        said = [word for word in ("command", "implementations") if word in found.options]
        if said:
            self._declare("task", found, None)

        def declare(function: F) -> F:
            if said:
                raise InputError(f"{found.what} has {said[0]}= and a function", remedy="give one of them")
            self._declare("task", found, function)
            return function

        return declare

    result = staticmethod(result)
    eureka = staticmethod(eureka)
    loop = loop
    foreach = foreach
    barrier = barrier
    window = window
    dot = dot
    describe = describe

    def _declare(self, kind: str, words: PortOptions, function: Function | None) -> None:
        implementations = words.implementations()
        command, gives = words.template("command"), words.template("gives")
        if command is not None and implementations:
            raise InputError(f"{words.what} has a command and implementations", remedy="give one of them")
        if function is None and implementations:
            function = implementations[0][1]
        name = words.text("name") or getattr(function, "__name__", "") or _first_word(command)
        words.named(self.name, kind, name)
        if function is not None and not callable(function):
            raise InputError(f"{words.what} must be a function, not {function!r}")
        if kind == "task":
            for each in (function, *(implementation for _, implementation in implementations)):
                check_returns(words.what, each)
        order, by_keyword = list(words.ports), False
        if function is not None:
            order, by_keyword = ports_in_order(words.what, words.ports, function)
        for other, implementation in implementations[1:]:
            ports_in_order(f"{words.what} as {other!r}", words.ports, implementation)
        check_template(words.what, "command", command, order)
        check_template(words.what, "gives", gives, order)
        within = words.place("within")
        hidden = {"within": take(within)} if within is not None else {}
        self.add(
            Transition(
                name=self._prefix + name,
                net=self.name,
                is_task=kind == "task",
                port_names=(*order, *hidden),
                ports=(*(words.ports[port] for port in order), *hidden.values()),
                visible=len(order),
                function=function,
                by_keyword=by_keyword,
                guards=guards_of(words.what, words.options.get("when"), order),
                priority=words.number("priority", -(1 << 31)),
                once=words.flag("once"),
                put=words.place("put"),
                within=within,
                group=words.text("group"),
                on_error=words.place("on_error"),
                profile=words.profile(self._prefix + name) if kind == "task" else NO_PROFILE,
                command=command,
                gives=gives,
                implementations=implementations,
            )
        )

    def add(self, transition: Transition) -> None:
        """Adds a complete transition; rejects one that contradicts the net."""
        what = f"net {self.name!r}: the {'task' if transition.is_task else 'step'} {transition.name!r}"
        if transition.name in self.transitions:
            raise InputError(
                f"net {self.name!r} has two transitions named {transition.name!r}", remedy="give one of them name="
            )
        for place in (*(port.place for port in transition.ports), transition.put, transition.on_error):
            if place is not None:
                self.spec_of(place, what)
        if transition.on_error is not None:
            check_type(self.name, self.spec_of(transition.on_error, what), Failure("", "", {}))
        if not transition.takes and not transition.once:
            raise InputError(f"{what} takes no token and would fire forever", remedy="take one, or give once=True")
        keyed = [port for port in transition.ports if port.key is not None]
        if len(keyed) == 1:
            raise InputError(
                f"{what} has key= at only one port", remedy="give it to every port whose tokens belong together"
            )
        self.transitions[transition.name] = transition

    def spec_of(self, place: object, what: str = "") -> PlaceSpec:
        """The declaration of a place, given as an object or by name."""
        name = place.name if isinstance(place, Place) else place
        spec = self.places.get(name) if isinstance(name, str) else None
        if spec is None or (isinstance(place, Place) and place.net != self.name):
            shown = name if isinstance(name, str) else repr(place)
            remedy = f"its places are {', '.join(self.places)}" if self.places else "it has no place yet"
            start = f"{what} names" if what else f"net {self.name!r} is asked for"
            raise InputError(f"{start} the place {shown!r}, which the net does not have", remedy=remedy)
        return spec


def check_type(net: str, spec: PlaceSpec, token: object) -> None:
    """Raises `InputError` for a token of the wrong type."""
    if spec.type is not None and not isinstance(token, spec.type):
        kinds = spec.type if isinstance(spec.type, tuple) else (spec.type,)
        wanted = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise InputError(
            f"net {net!r}: the place {spec.place.name!r} takes tokens of type {wanted}, "
            f"not {shortened(token)} of type {type(token).__name__}"
        )


def _first_word(command: object) -> str:
    if isinstance(command, str) and command.split():
        return command.split()[0]
    return getattr(command, "__name__", "") or "command"


def net_of_graph(graph: Graph, name: str = "") -> Net:
    """The net of a static graph. Tasks without an action become steps; transitions are named `number name`."""
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
    """The number in the graph of a transition's task."""
    return int(transition.name.partition(" ")[0])


def _transition(graph: Graph, net: Net, task: int, incoming: list[Place], outgoing: list[Place]) -> Transition:
    action = graph.actions[task]
    ports: list[Port] = [take(place) for place in incoming]
    tell = _done_signal(outgoing)
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


def _done_signal(outgoing: list[Place]) -> Callable[[], dict[Place, bool]]:
    """A function that ignores the result of a task and only signals its successors that it is done."""
    return lambda: dict.fromkeys(outgoing, True)
