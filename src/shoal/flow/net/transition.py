"""One transition of a net as it was declared: its ports, its function, its guards, and what the driver must know of it.

The checks of what a user wrote stand here: they raise `InputError` at the line that declares the transition. Nothing
here fires anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

import msgspec

from shoal.errors import InputError
from shoal.flow.net.words import Place, Port
from shoal.model.task import Action, Profile

Function = Callable[..., Any]


class Guard(msgspec.Struct, frozen=True):
    """A condition over some ports; `ports` are their positions in the transition, in the order of its parameters."""

    function: Function
    ports: tuple[int, ...]


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A step (runs in the engine) or a task (runs on a node)."""

    name: str
    net: str
    is_task: bool
    port_names: tuple[str, ...]
    ports: tuple[Port, ...]
    """In the order of the function's parameters; behind them those that no function sees (`within`)."""
    visible: int
    """How many of the ports are arguments of the function."""
    function: Function | None = None
    by_keyword: bool = False
    """Whether the function cannot be called with plain positions."""
    guards: tuple[Guard, ...] = ()
    priority: int = 0
    once: bool = False
    put: Place | None = None
    """Where all that it returns goes; without it the function returns a mapping from places to tokens."""
    within: Place | None = None
    """The window whose token the task holds while it runs; it is given back whatever becomes of the task."""
    group: str = ""
    on_error: Place | None = None
    profile: Profile = Profile()
    action: Action = None
    """Of a task that came from a graph: what the graph said."""
    command: str | Function | None = None
    gives: str | Function | None = None
    """The token that a command makes, where that is not what its driver says."""
    implementations: tuple[tuple[str, Function], ...] = ()
    """Other ways to do the same, each with the class of resources that it is for."""

    @property
    def takes(self) -> list[Place]:
        return [port.place for port in self.ports if port.kind == "take"]

    def arguments(self, values: Sequence[object]) -> dict[str, object]:
        """What the function, or the text of a command, is given."""
        return dict(zip(self.port_names[: self.visible], values, strict=False))

    def rendered(self, what: str, template: str | Function, values: Sequence[object]) -> object:
        """A command line or a token from a format string or a function of the ports."""
        arguments = self.arguments(values)
        try:
            if isinstance(template, str):
                return template.format(**arguments)
            return template(**{name: arguments[name] for name in _asked(what, template)})
        except Exception as error:
            raise InputError(self.complaint(what, error)) from error

    def complaint(self, what: str, error: BaseException) -> str:
        """One sentence for what went wrong in a user's function."""
        kind = "task" if self.is_task else "step"
        return f"net {self.net!r}: {what} of the {kind} {self.name!r} failed with {told(error)}"


def told(error: BaseException) -> str:
    """An error as people say it: `ValueError: no such thing`, on one line."""
    if isinstance(error, InputError):
        return str(error)
    text = " ".join(_said(str, error, "").split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(value: object) -> str:
    """A user's value in a sentence."""
    shown = _said(repr, value, object.__repr__(value))
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _said(say: Callable[[object], str], value: object, otherwise: str) -> str:
    """What a user's object says of itself."""
    try:
        return say(value)
    except Exception:  # a sentence about it must not fail as well
        return otherwise


def ports_in_order(what: str, ports: Mapping[str, Port], function: Function) -> tuple[list[str], bool]:
    """The names of the ports in the order in which the function wants them, and whether it wants them by name."""
    parameters = _parameters(what, function)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind not in _STARRED}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in ports:
        if name not in named and not takes_any:
            raise InputError(
                f"{what} has a port {name!r} that its function lacks",
                remedy=f"add the parameter {name!r} to the function, or leave out the port",
            )
    for name, parameter in named.items():
        if name not in ports and parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"{what}: nothing fills the parameter {name!r} of its function",
                remedy=f"declare a port for it, such as {name}=take(place)",
            )
    order = [name for name in named if name in ports] + [name for name in ports if name not in named]
    plain = [parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in named.values()]
    by_position = not takes_any and all(plain) and order == list(named)[: len(order)]
    if not by_position and any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in named.values()):
        raise InputError(f"{what}: its function has parameters without a name that a port could fill")
    return order, not by_position


def check_returns(what: str, function: Function | None) -> None:
    """Refuse functions whose calls give something that cannot leave its process."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(
            f"{what}: its function is a generator, whose values cannot be sent", remedy="return a list, or each(list)"
        )
    if inspect.iscoroutinefunction(function):
        raise InputError(
            f"{what}: its function is a coroutine, which nobody would wait for", remedy="use a plain function"
        )


def guards_of(what: str, when: object, port_names: Sequence[str]) -> tuple[Guard, ...]:
    """The guards of `when=`: one function or several, each over the ports that its parameters name."""
    if when is None:
        return ()
    functions = when if isinstance(when, (list, tuple)) else [when]
    guards = []
    for function in functions:
        if not callable(function):
            raise InputError(f"{what}: when= must be a function of its ports, or a list of such, not {function!r}")
        names = _known_ports(what, "guard", _asked(what, function), port_names)
        if not names:
            raise InputError(f"{what}: a guard must ask for at least one port")
        guards.append(Guard(function, tuple(port_names.index(name) for name in names)))
    return tuple(guards)


def check_template(what: str, word: str, template: str | Function | None, port_names: Sequence[str]) -> None:
    """Refuse a format string or function that asks for what is no port."""
    if isinstance(template, str):
        try:
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise InputError(f"{what}: {word}= is no format string: {error}", remedy="write {{ for a brace") from None
        names = [field.partition(".")[0].partition("[")[0] for field in fields]
        _known_ports(what, f"{word}=", names, port_names, remedy="write {{ for a brace; ")
    elif template is not None:
        _known_ports(what, f"{word}=", _asked(what, template), port_names)


def _asked(what: str, function: Function) -> list[str]:
    """The parameters that must be filled."""
    return [name for name, p in _parameters(what, function).items() if p.default is inspect.Parameter.empty]


def _known_ports(what: str, whose: str, names: list[str], port_names: Sequence[str], remedy: str = "") -> list[str]:
    for name in names:
        if name not in port_names:
            raise InputError(
                f"{what}: its {whose} asks for {name!r}, which is no port of it",
                remedy=f"{remedy}the ports are {', '.join(port_names) or 'none'}",
            )
    return names


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(what: str, function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InputError(
            f"{what}: the parameters of {function!r} are not known", remedy="wrap it in a function of your own"
        ) from None
