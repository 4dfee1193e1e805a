"""A digest of a Python function that changes when the function is edited, and only then.

It covers bytecode, constants, names and defaults, what the function closes over, and from its own file the plain
constants and functions it refers to. Line numbers and file names are left out, so moving a function keeps its digest.
Mutable globals (tables that a rules file reads in) are left out too: what matters of them stands in the names of needs.
The digest is the same in every process, whatever the hash seed; another version of Python may give another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType

_KIND_FLAGS = 0x2AC
"""Of `co_flags`: *args, **kwargs, generator, coroutine, async generator. The others say how it was compiled."""
_PLAIN = (str, int, float, complex, bytes, type(None), type(...))


def fingerprint(function: Callable[..., object]) -> str:
    """32 hexadecimal digits for anything callable."""
    return _Digest().of(function)


class _Digest:
    """One walk over a function and what it refers to; each function is visited once, so recursion ends."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, value: object) -> str:
        return hashlib.blake2b(
            "\n".join(self._lines(value)).encode("utf-8", "surrogatepass"), digest_size=16
        ).hexdigest()

    def _lines(self, value: object) -> list[str]:
        if isinstance(value, _PLAIN):
            return [f"{type(value).__name__} {value!r}"]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, partial):
            return ["partial", *self._items([value.func, value.args, value.keywords])]
        if isinstance(value, (tuple, list)):
            return [f"{type(value).__name__} {len(value)}", *self._items(value)]
        if isinstance(value, (set, frozenset)):
            return [type(value).__name__, *sorted(self.of(item) for item in value)]
        if isinstance(value, dict):
            return ["dict", *self._items([part for pair in value.items() for part in pair])]
        # Objects we cannot look into: their type is all that is stable from process to process.
        named = value if hasattr(value, "__qualname__") else type(value)
        return [f"object {getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"]

    def _items(self, values: tuple[object, ...] | list[object]) -> list[str]:
        return [line for value in values for line in self._lines(value)]

    def _function(self, function: FunctionType) -> list[str]:
        if id(function) in self._seen:
            return [f"seen {self._seen[id(function)]}"]
        self._seen[id(function)] = len(self._seen)
        lines = ["function", *self._code(function.__code__)]
        lines += self._lines(function.__defaults__) + self._lines(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                lines += self._lines(cell.cell_contents)
            except ValueError:  # not assigned yet
                lines.append("empty cell")
        for name in _global_names(function.__code__):
            value = function.__globals__.get(name)
            own = isinstance(value, FunctionType) and value.__module__ == function.__module__
            if own or (value is not None and _is_constant(value)):
                lines += [f"global {name}", *self._lines(value)]
        return lines

    def _code(self, code: CodeType) -> list[str]:
        lines = [
            f"code {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags & _KIND_FLAGS}",
            code.co_code.hex(),
            code.co_exceptiontable.hex(),
            " ".join(code.co_names + code.co_varnames + code.co_freevars + code.co_cellvars),
        ]
        return lines + self._items(code.co_consts)


def _is_constant(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_constant, value)))


def _global_names(code: CodeType) -> list[str]:
    """Names the code may look up in its module, also from inside nested functions; sorted."""
    names: dict[str, None] = {}
    codes = [code]
    for current in codes:  # grows while we walk it
        names.update(dict.fromkeys(current.co_names))
        codes += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
    return sorted(names)
