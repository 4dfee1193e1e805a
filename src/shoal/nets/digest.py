"""What must not change while a run of a net is interrupted, as a short text.

Going on repeats the steps, guards and keys that were there, from the same first tokens: these count, with the code of
the user's own functions that they call. What tasks do does not count, so that a task can be mended and the run gone on
with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import CodeType, FunctionType

from shoal.flow.net import Net
from shoal.flow.net.transition import Transition

PLAIN = (str, int, float, complex, bool, bytes, type(None))
_DEEPEST = 8
"""Functions that call functions are followed so far."""


def digest_of(net: Net, words: Sequence[str] = ()) -> str:
    """The digest of a net that was made with these words of a command line."""
    seen: dict[int, None] = {}
    told: list[object] = [net.name, net.keep_open, list(words)]
    for name, spec in net.places.items():
        told += [name, repr(spec.type), [_plain(token) for token in spec.tokens]]
    for transition in net.transitions.values():
        told += [_arcs(transition), [_function(function, seen) for function in _repeated(transition)]]
    return hashlib.sha256(repr(told).encode(errors="replace")).hexdigest()[:16]


def _arcs(transition: Transition) -> list[object]:
    ports = zip(transition.port_names, transition.ports, strict=True)
    places = [transition.put, transition.within, transition.on_error]
    return [
        transition.name,
        transition.is_task,
        [(name, port.kind, port.place.name) for name, port in ports],
        [place.name if place is not None else "" for place in places],
        transition.priority,
        transition.once,
        transition.group,
    ]


def _repeated(transition: Transition) -> list[object]:
    """The functions that going on calls again."""
    functions: list[object] = [guard.function for guard in transition.guards]
    functions += [port.key for port in transition.ports if port.key is not None]
    functions += [transition.gives] if transition.gives is not None else []
    return functions if transition.is_task else [*functions, transition.function]


def _plain(value: object) -> object:
    """The value, if it is one that says the same in every process."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return type(value).__qualname__


def _function(function: object, seen: dict[int, None], depth: int = 0) -> object:
    """The code of a function, of those it calls, and the plain values around it."""
    if not isinstance(function, FunctionType) or id(function) in seen or depth > _DEEPEST:
        return _plain(function)
    seen[id(function)] = None
    code = function.__code__
    found: list[object] = [_code(code), _plain(function.__defaults__)]
    around = [function.__globals__.get(name) for name in code.co_names]
    for cell in function.__closure__ or ():
        try:
            around.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    return found + [_function(value, seen, depth + 1) for value in around]


def _code(code: CodeType) -> list[object]:
    constants = [_code(each) if isinstance(each, CodeType) else _plain(each) for each in code.co_consts]
    return [code.co_code, code.co_names, constants]
