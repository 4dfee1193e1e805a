"""A digest of a Python function that changes when the function, or something that it uses, is edited.

It covers bytecode, constants and defaults, what the function closes over, and every global that it or its helpers look
up: functions and classes with their methods, attributes and bases, and values of any kind. A module counts by what
`modules` says of it (`shoal.engine.modules` reads its source), an object by what pickling it would say. Line numbers
and file names are left out, so moving a function keeps its digest.

The digest is the same in every process: no hash order and no memory address gets into it, and of objects that belong to
one process (locks, open files, threads) only the type counts. Another version of Python may give another digest.

Theory of operation. A walk visits what can be reached from a value, without recursion: what has an identity (functions,
classes, lists, dictionaries, objects) is numbered when it is met first, and its lines follow in the order of the
numbers. What functions have in common is walked once per run: the digest of each global is kept.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

ModuleText: TypeAlias = Callable[[str], str]
"""From a module's name to a text that changes when the module does; empty if there is no such module."""

_KIND_FLAGS = 0x2AC
"""Of `co_flags`: *args, **kwargs, generator, coroutine, async generator. The others say how it was compiled."""
_PLAIN = frozenset({str, int, float, complex, bool, bytes, type(None), type(...), type(NotImplemented), range})
_CACHED = type(functools.lru_cache(len))
# fmt: off
_OF_THE_PROCESS = frozenset({
    "_io", "_thread", "_weakref", "asyncio", "concurrent", "contextvars", "ctypes", "io", "logging", "mmap", "os",
    "multiprocessing", "queue", "select", "selectors", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
    "threading", "weakref",
})
"""Packages whose objects belong to one process."""
_NOT_OF_A_CLASS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl", "__dataclass_params__", "__dataclass_fields__",
})
"""What stands in the namespace of a class and follows from the rest, or does not matter."""
# fmt: on
_RULES = "shoal_rules"


def fingerprint(function: Callable[..., object]) -> str:
    """32 hexadecimal digits for anything callable."""
    return Fingerprints().of(function)


class Fingerprints:
    """Fingerprints of many functions, which may share most of what they use."""

    def __init__(self, modules: ModuleText = str) -> None:
        self.modules = modules
        self._names: dict[int, _Names] = {}
        self._known: dict[int, str] = {}
        self._kept: list[object] = []
        """Everything that is known by its `id`, which must not become that of something else."""

    def of(self, function: object) -> str:
        """The digest of a function, from its own lines and the digests of what it refers to."""
        return _digest(_Walk(self, function, self._token).lines())

    def _token(self, value: object) -> str:
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = _digest(_Walk(self, value).lines())
            self._kept.append(value)
        return found

    def names_in(self, code: CodeType) -> _Names:
        found = self._names.get(id(code))
        if found is None:
            found = self._names[id(code)] = _Names(code)
            self._kept.append(code)
        return found


def _digest(lines: Iterator[str]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for line in lines:
        state.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


class _Names:
    """What a code object, and those in it, look up outside of themselves."""

    def __init__(self, code: CodeType) -> None:
        import dis  # a few milliseconds, for rules files with functions only

        looked_up: dict[str, None] = {}
        imported: dict[str, None] = {}
        self.everything: dict[str, None] = {}
        """Also names of attributes."""
        codes = [code]
        for current in codes:  # grows while we walk it
            parts: list[str] = []
            whole: list[str] = []
            for step in dis.get_instructions(current):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                    looked_up[step.argval] = None
                elif step.opname == "IMPORT_NAME":
                    whole.append(step.argval)
                elif step.opname == "IMPORT_FROM":
                    parts.append(step.argval)
            imported.update(dict.fromkeys(whole))
            imported.update(dict.fromkeys(f"{module}.{part}" for module in whole for part in parts))
            self.everything.update(dict.fromkeys(current.co_names))
            codes += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        self.looked_up = sorted(looked_up)
        self.imported = sorted(imported)


class _Walk:
    """One walk over what can be reached from a value."""

    def __init__(self, shared: Fingerprints, value: object, token: Callable[[object], str] | None = None) -> None:
        """With `token` only the lines of the value itself are made here; it gives what stands for the others."""
        self._shared = shared
        self._numbers = {id(value): 0}
        self._waiting = [value]
        """Also keeps alive what is known by its `id`."""
        self._elsewhere = token

    def lines(self) -> Iterator[str]:
        for value in self._waiting:  # grows while we walk it
            yield from self._lines(value)

    def _token(self, value: object) -> str:
        """What stands for a value in the lines of another."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if type(value) is tuple:
            return f"({len(value)}: {', '.join(map(self._token, value))})"
        if isinstance(value, CodeType):
            return "\n".join(self._code(value))
        if isinstance(value, (set, frozenset)) and type(value) in (set, frozenset):
            return self._set(value)
        if self._elsewhere is not None:
            return self._elsewhere(value)
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._waiting)
            self._waiting.append(value)
        return f"#{number}"

    def _set(self, value: set[object] | frozenset[object]) -> str:
        """Without the order, which differs from process to process. Members that are alike at a first look are only
        counted: which of them comes first could not be said."""
        flat: list[str] = []
        others: dict[str, list[object]] = {}
        for item in value:
            text = _flat(item)
            if text is not None:
                flat.append(text)
            else:
                others.setdefault(_look(item), []).append(item)
        for key in sorted(others):
            alike = others[key]
            flat.append(self._token(alike[0]) if len(alike) == 1 else f"{len(alike)} of {key}")
        return f"{type(value).__name__} {len(value)}: {', '.join(sorted(flat))}"

    def _lines(self, value: Any) -> Iterator[str]:
        kind = type(value)
        if kind in _PLAIN or kind in (tuple, set, frozenset, CodeType):
            yield self._token(value)
        elif kind is list:
            yield f"list {len(value)}"
            yield from map(self._token, value)
        elif kind in (dict, MappingProxyType):
            yield f"dict {len(value)}"
            yield from self._pairs(value)
        elif kind is FunctionType:
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, ModuleType):
            yield f"module {self._shared.modules(value.__name__)}"
        elif kind is _CACHED:
            yield f"cached {value.cache_parameters()['typed']}"
            yield self._token(value.__wrapped__)
        elif kind in (staticmethod, classmethod):
            yield kind.__name__
            yield self._token(value.__func__)
        elif kind is property:
            yield "property"
            yield from map(self._token, (value.fget, value.fset, value.fdel))
        elif kind is MethodType:
            yield from self._method(value)
        elif kind is BuiltinFunctionType:
            yield f"builtin {value.__module__} {value.__qualname__}"
            if not isinstance(value.__self__, (ModuleType, type)) and type(value.__self__).__module__ != "random":
                yield self._token(value.__self__)
        elif kind in (MemberDescriptorType, GetSetDescriptorType):
            yield f"slot {value.__name__}"
        else:
            yield from self._object(value)

    def _pairs(self, mapping: Mapping[Any, object]) -> Iterator[str]:
        for key, value in mapping.items():
            yield self._token(key)
            yield self._token(value)

    def _method(self, method: MethodType) -> Iterator[str]:
        yield f"method {method.__name__}"
        owner = method.__self__
        if not isinstance(owner, type) and type(owner).__module__ == "random":
            yield "of a generator"  # `from random import choice`: that of the module, which differs in each process
            return
        yield self._token(owner)
        yield self._token(method.__func__)

    # ---- functions -----------------------------------------------------------------------------------------------

    def _function(self, function: FunctionType) -> Iterator[str]:
        home = function.__globals__.get("__name__", "")
        yield "function"
        if self._is_own(home):
            yield from self._code(function.__code__)
            yield from self._globals(function)
        else:
            yield f"of {self._shared.modules(home)} {function.__qualname__}"
        yield self._token(function.__defaults__)
        yield from self._pairs(function.__kwdefaults__ or {})
        for cell in function.__closure__ or ():
            try:
                yield self._token(cell.cell_contents)
            except ValueError:  # not assigned yet
                yield "empty cell"
        if function.__dict__:
            yield from self._pairs(function.__dict__)

    def _is_own(self, module: str) -> bool:
        """Whether code of this module is looked into; of others the whole file counts."""
        return module.startswith(_RULES) or module == "__main__"

    def _code(self, code: CodeType) -> Iterator[str]:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND_FLAGS
        yield f"code {counts}"
        yield code.co_code.hex()
        yield code.co_exceptiontable.hex()
        yield " ".join(code.co_names + code.co_varnames + code.co_freevars + code.co_cellvars)
        yield from map(self._token, code.co_consts)

    def _globals(self, function: FunctionType) -> Iterator[str]:
        names = self._shared.names_in(function.__code__)
        for name in names.looked_up:
            value = function.__globals__.get(name, names)
            if value is not names:
                yield f"global {name}"
                yield self._token(value)
                if isinstance(value, ModuleType):
                    yield from self._inside(value, names)
        for name in names.imported:
            yield f"import {self._shared.modules(name)}"

    def _inside(self, module: ModuleType, names: _Names) -> Iterator[str]:
        """What the function may use of a module: modules in a package, anything in a file that was included."""
        found = [module]
        for current in found:  # grows while we walk it
            is_own = self._is_own(current.__name__)
            for name in sorted(names.everything):
                value = current.__dict__.get(name)
                if isinstance(value, ModuleType) and value not in found:
                    if is_own or value.__name__.startswith(current.__name__ + "."):
                        found.append(value)
                        yield f"{name} {self._shared.modules(value.__name__)}"
                elif is_own and value is not None:
                    yield f"{name} {self._token(value)}"

    # ---- classes and objects -------------------------------------------------------------------------------------

    def _class(self, kind: type) -> Iterator[str]:
        yield f"class {kind.__qualname__}"
        if not self._is_own(kind.__module__):
            yield f"of {self._shared.modules(kind.__module__)}"
            return
        yield self._token(type(kind))
        yield from map(self._token, kind.__bases__)
        for name in sorted(vars(kind)):
            if name not in _NOT_OF_A_CLASS:
                yield name
                yield self._token(vars(kind)[name])

    def _object(self, value: object) -> Iterator[str]:
        """An object counts by its type and by what pickling it would say, if it can be pickled."""
        kind = type(value)
        yield "object"
        yield self._token(kind)
        package = kind.__module__.partition(".")[0]
        if package in _OF_THE_PROCESS or (package == "shoal" and not isinstance(value, (list, tuple, dict, str))):
            return
        if isinstance(value, (set, frozenset)):  # pickling says the members in an order that differs each time
            yield self._set(value)
            yield self._token(getattr(value, "__dict__", None))
            return
        yield from map(self._token, _parts(value))


def _parts(value: object) -> list[object]:
    """What pickling an object would say of it; nothing if it cannot be pickled."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return [reduced]
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return [made, arguments, state, list(items or ()), list(pairs or ())]
    except Exception:  # this is the user's own code, which may raise anything
        return []


def _flat(value: object) -> str | None:
    """What is to be said of a value in a set that consists of plain values; None if it does not."""
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__} {value.name}"
    if type(value) is tuple or isinstance(value, frozenset):
        assert isinstance(value, (tuple, frozenset))
        parts = [_flat(item) for item in value]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return f"{type(value).__name__} {', '.join(known if isinstance(value, tuple) else sorted(known))}"
    return None


def _look(value: object) -> str:
    """What can be said of a value without looking far: enough to tell most values apart."""
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} {value.__code__.co_code.hex()}"
    if isinstance(value, type):
        return f"{value.__module__} {value.__qualname__}"
    words = [type(value).__qualname__]
    for part in _parts(value):
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else [part]
        words += [text for text in map(_flat, inside) if text is not None]
    return " ".join(words)
