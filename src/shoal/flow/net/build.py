"""Building a net: `Net` takes places, steps and tasks, and refuses what can never work.

A net is a description. It holds no running state: `shoal.flow.net.flow.NetFlow` runs it, any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.flow.net import drawing, sugar
from shoal.flow.net.options import Words
from shoal.flow.net.transition import (
    Function,
    Transition,
    check_returns,
    check_template,
    guards_of,
    ports_in_order,
    shortened,
)
from shoal.flow.net.words import Failure, Place, eureka, result, take
from shoal.model.task import Profile

F = TypeVar("F", bound=Callable[..., Any])
NO_PROFILE = Profile()
"""Of a step: it runs on no node."""


class PlaceSpec(msgspec.Struct, frozen=True):
    """A place as it was declared."""

    place: Place
    tokens: tuple[object, ...]
    type: type | tuple[type, ...] | None


class Net:
    """Places and transitions under their names; see `shoal.flow.net` for what they mean."""

    def __init__(self, name: str = "net", *, keep_open: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"a net wants a name, not {name!r}")
        self.name = name
        self.keep_open = keep_open
        """Whether a run of it waits for tokens from outside when nothing is left to do, until it is closed."""
        self.places: dict[str, PlaceSpec] = {}
        self.transitions: dict[str, Transition] = {}
        self._prefix = ""

    def sub(self, prefix: str) -> Net:
        """The same net seen through a prefix: what is made through it is called `prefix.name`.

        A sub-net is a plain function that takes a net and some places: `halve(net.sub("left"), source, out)`.
        """
        if not isinstance(prefix, str) or not prefix:
            raise InputError(f"net {self.name!r}: a sub-net wants a prefix, not {prefix!r}")
        view = Net(self.name, keep_open=self.keep_open)
        view.places, view.transitions = self.places, self.transitions
        view._prefix = f"{self._prefix}{prefix}."
        return view

    def place(self, name: str, tokens: Iterable[object] = (), type: type | tuple[type, ...] | None = None) -> Place:
        """A new place with its first tokens; with `type=` every token must be an instance of it."""
        if not isinstance(name, str) or not name:
            raise InputError(f"net {self.name!r}: a place wants a name, not {name!r}")
        full = self._prefix + name
        if full in self.places:
            raise InputError(f"net {self.name!r} has two places called {full!r}", remedy="give one another name")
        try:
            isinstance(None, type or object)
        except TypeError:
            raise InputError(f"net {self.name!r}: the type of the place {full!r} is {type!r}, not a class") from None
        try:
            first = tuple(tokens)
        except TypeError:
            raise InputError(
                f"net {self.name!r}: the first tokens of the place {full!r} are {tokens!r}, not a list"
            ) from None
        spec = PlaceSpec(Place(self.name, full), first, type)
        for token in first:
            check_type(self.name, spec, token)
        self.places[full] = spec
        return spec.place

    def step(self, /, **words: Any) -> Callable[[F], F]:
        """A transition that runs in the engine: quick, and a pure function of its tokens.

        Keywords that are ports are the parameters of the function. The others: `when` (a guard, or a list of them),
        `priority`, `once`, `put` (the one place that gets what is returned), `name`.
        """
        found = Words(self.name, "step", words)

        def declare(function: F) -> F:
            self._declare("step", found, function)
            return function

        return declare

    def task(self, /, **words: Any) -> Callable[[F], F]:
        """A transition that runs on a node; a decorator, unless `command=` or `implementations=` says what to run.

        As `step`, and: `category`, `cores`, `memory`, `disk`, `gpus` and other resources, `retries`, `timeout`,
        `environment`, `directory`, `prefers`, `group` (for `eureka`), `on_error` (a place for a `Failure`), `within` (a
        window), `command` and `gives` (format strings or functions of the ports), `implementations` (by class).
        """
        found = Words(self.name, "task", words)
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
    loop = sugar.loop
    foreach = sugar.foreach
    barrier = sugar.barrier
    window = sugar.window
    dot = drawing.dot
    describe = drawing.describe

    def _declare(self, kind: str, words: Words, function: Function | None) -> None:
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
        """Take a transition that is complete; refuses what contradicts the net."""
        what = f"net {self.name!r}: the {'task' if transition.is_task else 'step'} {transition.name!r}"
        if transition.name in self.transitions:
            raise InputError(
                f"net {self.name!r} has two transitions called {transition.name!r}", remedy="give one of them name="
            )
        for place in (*(port.place for port in transition.ports), transition.put, transition.on_error):
            if place is not None:
                self.spec_of(place, what)
        if transition.on_error is not None:
            check_type(self.name, self.spec_of(transition.on_error, what), Failure("", "", {}))
        if not transition.takes and not transition.once:
            raise InputError(f"{what} takes no token and would fire for ever", remedy="take one, or say once=True")
        keyed = [port for port in transition.ports if port.key is not None]
        if len(keyed) == 1:
            raise InputError(
                f"{what} has key= at one port only", remedy="give it to every port whose tokens belong together"
            )
        self.transitions[transition.name] = transition

    def spec_of(self, place: object, what: str = "") -> PlaceSpec:
        """The declaration of a place that is given as such or by its name."""
        name = place.name if isinstance(place, Place) else place
        spec = self.places.get(name) if isinstance(name, str) else None
        if spec is None or (isinstance(place, Place) and place.net != self.name):
            shown = name if isinstance(name, str) else repr(place)
            remedy = f"its places are {', '.join(self.places)}" if self.places else "it has no place yet"
            start = f"{what} names" if what else f"net {self.name!r} is asked for"
            raise InputError(f"{start} the place {shown!r}, which the net does not have", remedy=remedy)
        return spec


def check_type(net: str, spec: PlaceSpec, token: object) -> None:
    """Raise `InputError` for a token that the place does not take."""
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
