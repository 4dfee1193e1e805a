"""Shapes that many nets share, written with places, steps and tasks only: loop, foreach, barrier, window.

Each is a method of `Net`. They return the place where the outcome appears, so that they can be put one behind another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.flow.net.words import Place, count, take

if TYPE_CHECKING:
    from shoal.flow.net.build import Net


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
    """One task for every token of `source`; what the function returns is the token that goes to `put`."""
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
    """Give each token of `source` to `body` again and again while `while_` holds for it, then pass it on to `put`."""
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
    """Hold the tokens of `source` back until no token is left on the places `after`, nor in a task that took one."""
    name = name or f"{source.name}.barrier"
    places = [after] if isinstance(after, Place) else list(after)
    if not places:
        raise InputError(f"net {net.name!r}: the barrier {name!r} waits for no place")
    out = put if put is not None else net.place(f"{name}.out")
    counts = {f"left_{number}": count(place) for number, place in enumerate(places)}

    def passes(token: object, **left: int) -> object:
        return token

    guards = [_guard(port, bool, wanted=False) for port in counts]
    net.step(token=take(source), **counts, name=name, when=guards, put=out)(passes)
    return out


def window(net: Net, size: int, /, name: str = "window") -> Place:
    """A place with `size` tokens: of the tasks declared `within=` it, at most so many are under way at a time."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(f"net {net.name!r}: the window {name!r} wants a size of at least 1, not {size!r}")
    return net.place(name, range(size))


def _guard(port: str, holds: Callable[[Any], object], *, wanted: bool) -> Callable[..., bool]:
    """A guard over one port, whatever the parameter of `holds` is called."""

    def guard(value: object) -> bool:
        return bool(holds(value)) is wanted

    parameter = inspect.Parameter(port, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    guard.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]  # how inspect is told
    return guard


def _name_of(net: Net, words: dict[str, Any], function: Callable[..., Any]) -> str:
    name = words.pop("name", "") or getattr(function, "__name__", "")
    if not name or not isinstance(name, str):
        raise InputError(f"net {net.name!r}: {function!r} has no name", remedy="say name=")
    return name


def _refuse(net: Net, name: str, words: dict[str, Any], *refused: str) -> None:
    for word in refused:
        if word in words:
            raise InputError(
                f"net {net.name!r}: {name!r} cannot have {word}=", remedy="write it with net.task and take"
            )


def _parameter(net: Net, name: str, function: Callable[..., Any]) -> str:
    """The parameter that takes the token."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    if not names:
        raise InputError(f"net {net.name!r}: the function of {name!r} has no parameter for the token")
    return names[0]
