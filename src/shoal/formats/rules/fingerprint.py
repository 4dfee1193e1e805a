"""Fingerprints of Python functions: a digest that changes when the function, or anything that it uses, is edited.

The digest covers bytecode, constants, defaults, closures, and every global that the function or its helpers look up:
functions, classes with their methods, attributes and bases, and values of any kind. A module is represented by the text
that `modules` returns for it (`shoal.execution.rules_loader` reads its source), an object by what pickle would store.
Code whose module cannot be found is inspected like the code of the rules file. Line numbers and file names are left
out, so moving a function does not change its digest.

The digest is the same in every process: it contains no hash order and no memory address. Of objects that belong to one
process (locks, open files, threads) only the type counts; most cannot be pickled anyway. Another version of Python may
give another digest.

Theory of operation. A walk visits everything that can be reached from a value, without recursion. Values with an
identity (functions, classes, lists, dictionaries, objects) are numbered at the first visit, and their lines follow in
the order of the numbers. What several functions use is walked once per run: the digest of each global is cached.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
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
"""Maps a module's name to a text that changes with the module; empty if there is no such module.

Also maps the absolute path of a file that was loaded under a name by which it cannot be found; empty if the file is not
in the project."""

_KIND_FLAGS = 0x2AC
"""Bits of `co_flags`: *args, **kwargs, generator, coroutine, async generator. The other bits depend on compilation."""
_GENERATORS = {"random": "_inst", "numpy.random.mtrand": "_rand"}
"""By module: the name of the global random generator whose methods are the module's functions."""
_FLAGS_OF_CLASSES, _MADE_BY_PYTHON = 0x300, 0x200
"""Bits of a class's `__flags__`: created at run time, and mutable. Most classes written in C are immutable."""
_PLAIN = frozenset({str, int, float, complex, bool, bytes, type(None), type(...), type(NotImplemented), range})
_VIEWS: tuple[Any, ...] = type({}.keys()), type({}.values()), type({}.items())
"""Views of dictionaries: they cannot be pickled, but their elements can."""
_CACHED = type(functools.lru_cache(len))
# fmt: off
_OF_THE_PROCESS = frozenset({
    "_thread", "_weakref", "_weakrefset", "asyncio", "concurrent", "contextvars", "mmap", "multiprocessing", "select",
    "selectors", "socket", "sqlite3", "ssl", "tempfile", "weakref",
})
"""Packages whose objects belong to one process, except those of the types in `_VALUES`."""
_ALSO_OF_THE_PROCESS = frozenset({
    "ctypes.CDLL", "ctypes.PyDLL", "logging.Manager", "os._Environ", "subprocess.Popen", "threading.Thread",
    "threading.Timer", "threading._DummyThread", "threading._MainThread", "threading._RLock",
})
"""Other types whose objects (nearly) can be pickled, but contain numbers that differ in each process."""
_VALUES = (Enum, BaseException, tuple)
_COPIED = (list, tuple, dict, str)
"""Of objects of Shoal's classes, only subclasses of these contain values from the user."""
_NOT_OF_A_CLASS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl", "__dataclass_params__",
})
"""Entries of a class's namespace that follow from the rest, or do not matter."""
# fmt: on
_FIELDS = "__dataclass_fields__"
_RULES = "shoal_rules"
_STEPS = 8
"""Maximum number of references to follow from a member of a set, to distinguish it from other members."""
_DEPTH = 2
"""Maximum nesting of sets whose indistinguishable members are walked one by one; deeper ones are only counted."""
_MANY = 200
"""Maximum number of members of sets that are walked one by one during one walk: each may lead to everything else."""


def fingerprint(function: Callable[..., object]) -> str:
    """Returns the fingerprint of a callable, 32 hexadecimal digits."""
    return Fingerprints().of(function)


class Fingerprints:
    """Fingerprints of many functions, with a cache of the digests of everything that they share."""

    def __init__(self, modules: ModuleText = str) -> None:
        self.modules = modules
        self._names: dict[int, _Names] = {}
        self._known: dict[tuple[int, int], str] = {}
        self._summaries: dict[tuple[int, int], str] = {}
        self._alive: list[object] = []
        """Keeps alive everything that is cached by its `id`, so that no id is reused."""

    def of(self, function: object) -> str:
        """Returns the digest of a function, made of its own lines and the digests of what it refers to."""
        return _digest(_Walk(self, function, self.token).lines())

    def token(self, value: object, depth: int = _DEPTH) -> str:
        """Returns the digest of any value; `depth` is the remaining nesting of sets, see `_DEPTH`."""
        found = self._known.get((id(value), depth))
        if found is None:
            found = self._known[id(value), depth] = _digest(_Walk(self, value, depth=depth).lines())
            self._alive.append(value)
        return found

    def summary(self, value: object, steps: int) -> str:
        """Returns a description of everything at most `steps` references away, independent of the order of sets."""
        plain = _flat(value)
        if plain is not None:
            return plain
        if not steps or isinstance(value, (type, ModuleType)):
            return _summary(value)
        found = self._summaries.get((id(value), steps))
        if found is None:
            summaries = [self.summary(part, steps - 1) for part in _inside(value)]
            if isinstance(value, (set, frozenset)):
                summaries.sort()
            found = self._summaries[id(value), steps] = _digest(iter((type(value).__qualname__, *summaries)))
            self._alive.append(value)
        return found

    def of_module(self, module: ModuleType) -> str:
        return self.of_code(module.__name__, module.__dict__)

    def of_code(self, name: str, names: Mapping[str, object]) -> str:
        """Returns the text that represents the module with this name and these globals.

        Uses the file of the module if no module, or another one, is registered under the name.
        """
        found = sys.modules.get(name)
        file = names.get("__file__")
        if isinstance(file, str) and file.startswith("/") and getattr(found, "__dict__", None) is not names:
            return self.modules(file) or self.modules(name)
        return self.modules(name)

    def of_class(self, kind: type) -> str:
        """Returns the text that represents the module of a class.

        Empty if its module does not contain the class: the class itself is inspected then.
        """
        names = _globals_of(kind)
        if not names and kind.__flags__ & _FLAGS_OF_CLASSES == _MADE_BY_PYTHON and not _is_in_its_module(kind):
            return ""
        return self.of_code(kind.__module__, names)

    def names_in(self, code: CodeType) -> _Names:
        found = self._names.get(id(code))
        if found is None:
            found = self._names[id(code)] = _Names(code)
            self._alive.append(code)
        return found


def _digest(lines: Iterator[str]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for line in lines:
        state.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


class _Names:
    """The global names and imports that a code object, including nested ones, uses."""

    def __init__(self, code: CodeType) -> None:
        import dis  # takes milliseconds to import, needed for rules files with functions only

        looked_up: dict[str, None] = {}
        imported: dict[str, None] = {}
        self.everything: dict[str, None] = {}
        """All names in the code, including names of attributes."""
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
    """One walk over everything that can be reached from a value."""

    def __init__(
        self, shared: Fingerprints, value: object, token: Callable[[object], str] | None = None, depth: int = _DEPTH
    ) -> None:
        """With `token`, yields the lines of the value itself only, and `token` represents the values it refers to."""
        self._shared = shared
        self._depth = depth
        self._walked_alone = 0
        """Number of members of sets that were walked one by one."""
        self._numbers = {id(value): 0}
        self._pending = [value]
        """Values to visit. Also keeps alive everything that is numbered by its `id`."""
        self._token_of_others = token

    def lines(self) -> Iterator[str]:
        for value in self._pending:  # grows while we walk it
            yield from self._lines(value)

    def _token(self, value: object) -> str:
        """Returns the text that represents a value in the lines of another value."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if type(value) is tuple:
            return f"({len(value)}: {', '.join(map(self._token, value))})"
        if isinstance(value, CodeType):
            return "\n".join(self._code(value))
        if isinstance(value, (set, frozenset)) and type(value) in (set, frozenset):
            return self._set(value)
        if self._token_of_others is not None:
            return self._token_of_others(value)
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._pending)
            self._pending.append(value)
        return f"#{number}"

    def _set(self, value: set[object] | frozenset[object]) -> str:
        """Returns the text of a set, independent of its order, which differs from process to process.

        Members are ordered by their summaries. Members with equal summaries are walked one by one and their digests
        sorted. This is limited (`_DEPTH`, `_MANY`), because members may refer to the set.
        """
        flat: list[str] = []
        others: dict[str, list[object]] = {}
        for item in value:
            text = _flat(item)
            if text is not None:
                flat.append(text)
            else:
                others.setdefault(_summary(item), []).append(item)
        for key in sorted(others):
            if len(others[key]) == 1:
                flat.append(self._token(others[key][0]))
            else:
                flat += self._alike(others[key])
        return f"{type(value).__name__} {len(value)}: {', '.join(sorted(flat))}"

    def _alike(self, members: list[object]) -> Iterator[str]:
        """Yields the texts of members of a set whose short summaries are equal."""
        summaries: dict[str, list[object]] = {}
        for item in members:
            summaries.setdefault(self._shared.summary(item, _STEPS), []).append(item)
        for key in sorted(summaries):
            alike = summaries[key]
            if len(alike) == 1:
                yield self._token(alike[0])
            elif self._depth and self._walked_alone + len(alike) <= _MANY:
                self._walked_alone += len(alike)
                yield from (self._shared.token(item, self._depth - 1) for item in alike)
            else:
                yield f"{len(alike)} of {key}"

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
            yield f"module {self._shared.of_module(value)}"
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
            if not isinstance(value.__self__, ModuleType) and not _is_hidden(value.__self__):
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
        if _is_hidden(method.__self__):
            yield "of a generator"
            return
        yield self._token(method.__self__)
        yield self._token(method.__func__)

    # ---- functions -----------------------------------------------------------------------------------------------

    def _function(self, function: FunctionType) -> Iterator[str]:
        home = str(function.__globals__.get("__name__", ""))
        yield "function"
        module = "" if self._is_own(home) else self._shared.of_code(home, function.__globals__)
        if module:
            yield f"of {module} {function.__qualname__}"
        else:
            yield from self._code(function.__code__)
            yield from self._globals(function)
        yield self._token(function.__defaults__)
        yield from self._pairs(function.__kwdefaults__ or {})
        yield from (self._token(_content(cell)) for cell in function.__closure__ or ())
        if function.__dict__:
            yield from self._pairs(function.__dict__)

    def _is_own(self, module: str) -> bool:
        """Whether code of this module is inspected function by function; other modules count as a whole."""
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
        """Yields what the function may use of a module: submodules of a package, anything of an included rules file."""
        found = [module]
        for current in found:  # grows while we walk it
            is_own = self._is_own(current.__name__)
            for name in sorted(names.everything):
                value = current.__dict__.get(name)
                if isinstance(value, ModuleType) and value not in found:
                    if is_own or value.__name__.startswith(current.__name__ + "."):
                        found.append(value)
                        yield f"{name} {self._shared.of_module(value)}"
                elif is_own and value is not None:
                    yield f"{name} {self._token(value)}"

    # ---- classes and objects -------------------------------------------------------------------------------------

    def _class(self, kind: type) -> Iterator[str]:
        yield f"class {kind.__qualname__}"
        module = "" if self._is_own(kind.__module__) else self._shared.of_class(kind)
        if module:
            yield f"of {module}"
            return
        yield self._token(type(kind))
        yield from map(self._token, kind.__bases__)
        for name in sorted(vars(kind)):
            if name == _FIELDS:  # the rest of a field is covered by the generated methods
                yield from (self._token(field.metadata) for field in vars(kind)[name].values())
            elif name not in _NOT_OF_A_CLASS:
                yield name
                yield self._token(vars(kind)[name])

    def _object(self, value: object) -> Iterator[str]:
        """Yields the lines of an object: its type, and what pickle would store if it can be pickled."""
        kind = type(value)
        yield "object"
        yield self._token(kind)
        if _is_of_the_process(value) or (kind.__module__.startswith("shoal.") and not isinstance(value, _COPIED)):
            return
        if isinstance(value, (set, frozenset)):  # pickle stores the members in an order that differs each time
            yield self._set(value)
            yield self._token(getattr(value, "__dict__", None))
            return
        yield from map(self._token, _parts(value))


def _is_of_the_process(value: object) -> bool:
    kind = type(value)
    if f"{kind.__module__}.{kind.__qualname__}" in _ALSO_OF_THE_PROCESS:
        return True
    package = kind.__module__.partition(".")[0]
    if package == "logging":  # the state of handlers is a file position and the time of the next rotation
        return hasattr(kind, "emit")
    return package in _OF_THE_PROCESS and not isinstance(value, _VALUES)


def _is_hidden(owner: object) -> bool:
    """Whether this is the global generator of `random` or `numpy.random`, whose state differs in each process."""
    module = type(owner).__module__
    name = _GENERATORS.get(module)
    return name is not None and getattr(sys.modules.get(module), name, None) is owner


def _globals_of(kind: type) -> Mapping[str, object]:
    """Returns the globals of a class's module, found through one of its methods; empty if there is none."""
    for value in vars(kind).values():
        if isinstance(value, FunctionType) and value.__globals__.get("__name__") == kind.__module__:
            return value.__globals__
    return {}


def _is_in_its_module(kind: type) -> bool:
    found: object = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is kind


def _parts(value: Any) -> list[object]:
    """Returns what pickle would store of an object; empty if it cannot be pickled."""
    if isinstance(value, _VIEWS):
        return list(value)
    try:
        if isinstance(value, memoryview):
            return [value.tobytes()]
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return [reduced]
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return [made, arguments, state, list(items or ()), list(pairs or ())]
    except Exception:  # this is the user's own code, which may raise anything
        return []


def _inside(value: object) -> list[object]:
    """Returns the parts of an object, for a summary."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*value, *vars(value).values()] if hasattr(value, "__dict__") else list(value)
    if type(value) in (dict, MappingProxyType):
        assert isinstance(value, (dict, MappingProxyType))
        return [part for pair in value.items() for part in pair]
    if isinstance(value, FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *map(_content, value.__closure__ or ())]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, *value.co_consts]
    return [] if _is_of_the_process(value) else _parts(value)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "empty cell"


def _flat(value: object) -> str | None:
    """Returns the complete text of a value that consists of plain values only, else None."""
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    if type(value) is tuple or isinstance(value, frozenset):
        assert isinstance(value, (tuple, frozenset))
        parts = [_flat(item) for item in value]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return f"{type(value).__name__} {', '.join(known if isinstance(value, tuple) else sorted(known))}"
    return None


def _summary(value: object) -> str:
    """Returns a short description of a value that follows no references: enough to distinguish most values."""
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} {value.__code__.co_code.hex()}"
    if isinstance(value, type):
        return f"{value.__module__} {value.__qualname__}"
    if type(value) is tuple or isinstance(value, frozenset):
        assert isinstance(value, (tuple, frozenset))
        summaries = [_flat(item) or _summary(item) for item in value]
        return f"{type(value).__qualname__} {', '.join(summaries if isinstance(value, tuple) else sorted(summaries))}"
    words = [type(value).__qualname__]
    for part in _parts(value):
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else [part]
        words += [text for text in map(_flat, inside) if text is not None]
    return " ".join(words)
