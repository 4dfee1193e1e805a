"""Declaration of one transition: ports, function, guards, options; and validation of what the user declared.

Errors are raised as `InputError` at the declaration. Firing is implemented in `enabling` and `interpreter`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from string import Formatter
from typing import Any

import msgspec

from shoal.core.resources import Resources
from shoal.core.task import ONE_CORE, STRICT, Action, Profile, parse_shell
from shoal.errors import InputError
from shoal.petri.language import Place, Port

Function = Callable[..., Any]


class Guard(msgspec.Struct, frozen=True):
    """A condition over some ports; `ports` are their indexes in the transition, in the order of its parameters."""

    function: Function
    ports: tuple[int, ...]


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A step (runs in the engine) or a task (runs on a node)."""

    name: str
    net: str
    is_task: bool
    port_names: tuple[str, ...]
    ports: tuple[Port, ...]
    """In the order of the function's parameters, followed by ports that no function sees (`within`)."""
    visible: int
    """Number of ports that are arguments of the function."""
    function: Function | None = None
    by_keyword: bool = False
    """Whether the function must be called with keyword arguments."""
    guards: tuple[Guard, ...] = ()
    priority: int = 0
    once: bool = False
    put: Place | None = None
    """The place of all returned tokens; without it the function returns a mapping from places to tokens."""
    within: Place | None = None
    """The window whose token the task holds while it runs; the token returns whatever the outcome of the task."""
    group: str = ""
    on_error: Place | None = None
    profile: Profile = Profile()
    action: Action = None
    """Action of a task that came from a static graph."""
    command: str | Function | None = None
    gives: str | Function | None = None
    """The token that a command makes, if it differs from the driver's default."""
    implementations: tuple[tuple[str, Function], ...] = ()
    """Alternative implementations, each with the class of resources that it needs."""

    @property
    def takes(self) -> list[Place]:
        return [port.place for port in self.ports if port.kind == "take"]

    def arguments(self, values: Sequence[object]) -> dict[str, object]:
        """Arguments of the function or of the command's format string."""
        return dict(zip(self.port_names[: self.visible], values, strict=False))

    def rendered(self, what: str, template: str | Function, values: Sequence[object]) -> object:
        """A command line or a token from a format string or a function of the ports."""
        arguments = self.arguments(values)
        try:
            if isinstance(template, str):
                return template.format(**arguments)
            return template(**{name: arguments[name] for name in _required_parameters(what, template)})
        except Exception as error:
            raise InputError(self.complaint(what, error)) from error

    def complaint(self, what: str, error: BaseException) -> str:
        """A sentence for an exception in a user's function."""
        kind = "task" if self.is_task else "step"
        return f"net {self.net!r}: {what} of the {kind} {self.name!r} failed with {told(error)}"


def told(error: BaseException) -> str:
    """An exception as one line of text: `ValueError: no such thing`."""
    if isinstance(error, InputError):
        return str(error)
    text = " ".join(_text_of(str, error, "").split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(value: object) -> str:
    """A user's value, shortened for messages."""
    shown = _text_of(repr, value, object.__repr__(value))
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _text_of(say: Callable[[object], str], value: object, otherwise: str) -> str:
    """The `str` or `repr` of a user's object, or a substitute if it raises."""
    try:
        return say(value)
    except Exception:  # writing an error message must not fail as well
        return otherwise


def ports_in_order(what: str, ports: Mapping[str, Port], function: Function) -> tuple[list[str], bool]:
    """Names of the ports in the order of the function's parameters, and whether they must be passed by keyword."""
    parameters = _parameters(what, function)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind not in _STARRED}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in ports:
        if name not in named and not takes_any:
            raise InputError(
                f"{what} has a port {name!r} that is not a parameter of its function",
                remedy=f"add the parameter {name!r} to the function, or leave out the port",
            )
    for name, parameter in named.items():
        if name not in ports and parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"{what}: no port for the parameter {name!r} of its function",
                remedy=f"declare a port for it, such as {name}=take(place)",
            )
    order = [name for name in named if name in ports] + [name for name in ports if name not in named]
    plain = [parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in named.values()]
    by_position = not takes_any and all(plain) and order == list(named)[: len(order)]
    if not by_position and any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in named.values()):
        raise InputError(f"{what}: its function has positional-only parameters, which no port can fill")
    return order, not by_position


def check_returns(what: str, function: Function | None) -> None:
    """Rejects functions whose return value cannot be sent to another process."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(
            f"{what}: its function is a generator, which cannot be sent", remedy="return a list, or each(list)"
        )
    if inspect.iscoroutinefunction(function):
        raise InputError(f"{what}: its function is a coroutine, which is not supported", remedy="use a plain function")


def guards_of(what: str, when: object, port_names: Sequence[str]) -> tuple[Guard, ...]:
    """The guards of `when=`: one function or several, each over the ports that its parameters name."""
    if when is None:
        return ()
    functions = when if isinstance(when, (list, tuple)) else [when]
    guards = []
    for function in functions:
        if not callable(function):
            raise InputError(f"{what}: when= must be a function of its ports, or a list of them, not {function!r}")
        names = _known_ports(what, "guard", _required_parameters(what, function), port_names)
        if not names:
            raise InputError(f"{what}: a guard must depend on at least one port")
        guards.append(Guard(function, tuple(port_names.index(name) for name in names)))
    return tuple(guards)


def check_template(what: str, word: str, template: str | Function | None, port_names: Sequence[str]) -> None:
    """Rejects a format string or function that refers to an unknown port."""
    if isinstance(template, str):
        try:
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise InputError(
                f"{what}: {word}= is not a format string: {error}", remedy="write {{ for a brace"
            ) from None
        names = [field.partition(".")[0].partition("[")[0] for field in fields]
        _known_ports(what, f"{word}=", names, port_names, remedy="write {{ for a brace; ")
    elif template is not None:
        _known_ports(what, f"{word}=", _required_parameters(what, template), port_names)


def _required_parameters(what: str, function: Function) -> list[str]:
    """The required parameters."""
    return [name for name, p in _parameters(what, function).items() if p.default is inspect.Parameter.empty]


def _known_ports(what: str, whose: str, names: list[str], port_names: Sequence[str], remedy: str = "") -> list[str]:
    for name in names:
        if name not in port_names:
            raise InputError(
                f"{what}: its {whose} refers to {name!r}, which is not one of its ports",
                remedy=f"{remedy}the ports are {', '.join(port_names) or 'none'}",
            )
    return names


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(what: str, function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise InputError(
            f"{what}: the parameters of {function!r} are unknown", remedy="wrap it in a function of your own"
        ) from None


STEP_WORDS = ("name", "when", "priority", "once", "put")
TASK_WORDS = (
    *STEP_WORDS,
    *("category", "retries", "timeout", "environment", "directory", "prefers"),
    *("group", "on_error", "within", "command", "shell", "gives", "implementations"),
)
_HIGHEST = 1 << 31
_MEANT = (*TASK_WORDS, "cores", "memory", "disk", "gpus", "nodes")
_ALIKE = 0.75


class PortOptions:
    """The keywords of one declaration, divided into ports, options and amounts of resources."""

    def __init__(self, net: str, kind: str, words: Mapping[str, Any]) -> None:
        known = STEP_WORDS if kind == "step" else TASK_WORDS
        self.ports: dict[str, Port] = {}
        self.options: dict[str, Any] = {}
        self.amounts: dict[str, str | int | float] = {}
        self.what = f"net {net!r}: a {kind}"
        for word, value in words.items():
            if isinstance(value, Port):  # whatever its name: a port may have the name of an option
                self.ports[word] = value
            elif word in known:
                self.options[word] = value
            elif isinstance(value, Place):
                raise InputError(
                    f"{self.what} has the place {value.name!r} as its port {word!r}",
                    remedy=f"say how it is used: {word}=take({value.name}), read(...) or count(...)",
                )
            elif kind == "task" and isinstance(value, (str, int, float)):
                self.amounts[word] = value
            else:
                raise InputError(
                    f"{self.what} has {word}={value!r}, which is neither a port nor an option",
                    remedy=f"the options of a {kind} are {', '.join(known)}",
                )

    def named(self, net: str, kind: str, name: str) -> None:
        """Adds the name of the transition to further error messages."""
        self.what = f"net {net!r}: the {kind} {name!r}"

    def place(self, word: str) -> Place | None:
        value = self.options.get(word)
        if value is not None and not isinstance(value, Place):
            raise InputError(f"{self.what}: {word}= must be a place, not {value!r}")
        return value

    def text(self, word: str) -> str:
        value = self.options.get(word) or ""
        if not isinstance(value, str):
            raise InputError(f"{self.what}: {word}= must be a name, not {value!r}")
        return value

    def number(self, word: str, least: int) -> int:
        value = self.options.get(word, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _HIGHEST:
            raise InputError(f"{self.what}: {word}= must be an integer of at least {least}, not {value!r}")
        return value

    def flag(self, word: str) -> bool:
        value = self.options.get(word, False)
        if not isinstance(value, bool):
            raise InputError(f"{self.what}: {word}= must be True or False, not {value!r}")
        return value

    def template(self, word: str) -> str | Function | None:
        """A format string or a function of the ports."""
        value = self.options.get(word)
        if value is not None and not isinstance(value, str) and not callable(value):
            raise InputError(f"{self.what}: {word}= must be text or a function of its ports, not {value!r}")
        return value

    def implementations(self) -> tuple[tuple[str, Function], ...]:
        value = self.options.get("implementations")
        if value is None:
            return ()
        if not isinstance(value, Mapping) or not value:
            raise InputError(f"{self.what}: implementations= must be a mapping from classes to functions")
        for name, function in value.items():
            if not isinstance(name, str) or not callable(function):
                raise InputError(f"{self.what}: the implementation {name!r} must be a function, not {function!r}")
        return tuple(value.items())

    def profile(self, category: str) -> Profile:
        """The profile of such tasks for scheduler and runner."""
        timeout = self.options.get("timeout")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise InputError(f"{self.what}: timeout= must be a positive number of seconds, not {timeout!r}")
        asked = Resources.parse(self.amounts)
        return Profile(
            category=self.text("category") or category,
            resources=asked if "cores" in self.amounts else _with_a_core(asked),
            retries=self.number("retries", 0),
            timeout=timeout,
            environment=tuple(sorted(self._environment().items())),
            directory=self.text("directory") or None,
            cores_declared="cores" in self.amounts,
            prefers=self._prefers(),
            shell=self._shell(),
        )

    def _shell(self) -> str:
        """The shell of commands; the strict one by default, as in rules files."""
        value = self.options.get("shell")
        if value is None:
            return STRICT
        if self.options.get("command") is None:
            raise InputError(f"{self.what}: shell= is for commands, and this runs a function")
        try:
            return parse_shell(value)
        except InputError as error:
            raise InputError(f"{self.what}: {error.message}", remedy=error.remedy) from None

    def _prefers(self) -> tuple[str, ...]:
        value = self.options.get("prefers", ())
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{self.what}: prefers= must be a name or label of machines, or a list, not {value!r}")
        return tuple(names)

    def _environment(self) -> dict[str, str]:
        value = self.options.get("environment") or {}
        if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
            raise InputError(f"{self.what}: environment= must be a mapping from names to text, not {value!r}")
        return dict(value)


def meant(words: Iterable[str]) -> str:
    """A hint for resources that no machine has and whose names resemble options; usually empty."""
    for word in words:
        close = get_close_matches(word, _MEANT, 1, _ALIKE) or [each for each in _MEANT if each.startswith(word[:4])]
        if close and word not in _MEANT:
            return f"{word}= is not an option, so it is used as a resource; did you mean {close[0]}=?"
    return ""


def _with_a_core(asked: Resources) -> Resources:
    return Resources.of(dict(asked.amounts) | dict(ONE_CORE.amounts))
