"""What a user writes behind the ports of a step or a task, checked: everything wrong is one sentence at that line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from shoal.errors import InputError
from shoal.flow.net.transition import Function
from shoal.flow.net.words import Place, Port
from shoal.model.resources import Resources
from shoal.model.shell import STRICT, parse_shell
from shoal.model.task import ONE_CORE, Profile

STEP_WORDS = ("name", "when", "priority", "once", "put")
TASK_WORDS = (
    *STEP_WORDS,
    *("category", "retries", "timeout", "environment", "directory", "prefers"),
    *("group", "on_error", "within", "command", "shell", "gives", "implementations"),
)
_HIGHEST = 1 << 31
_MEANT = (*TASK_WORDS, "cores", "memory", "disk", "gpus", "nodes")
_ALIKE = 0.75


class Words:
    """The keywords of one declaration, sorted into ports, options and amounts of resources."""

    def __init__(self, net: str, kind: str, words: Mapping[str, Any]) -> None:
        known = STEP_WORDS if kind == "step" else TASK_WORDS
        self.ports: dict[str, Port] = {}
        self.options: dict[str, Any] = {}
        self.amounts: dict[str, str | int | float] = {}
        self.what = f"net {net!r}: a {kind}"
        for word, value in words.items():
            if isinstance(value, Port):  # whatever its name: a port may be called as an option is
                self.ports[word] = value
            elif word in known:
                self.options[word] = value
            elif isinstance(value, Place):
                raise InputError(
                    f"{self.what} has the place {value.name!r} as its port {word!r}",
                    remedy=f"say what becomes of it: {word}=take({value.name}), read(...) or count(...)",
                )
            elif kind == "task" and isinstance(value, (str, int, float)):
                self.amounts[word] = value
            else:
                raise InputError(
                    f"{self.what} has {word}={value!r}, which is neither a port nor an option",
                    remedy=f"the options of a {kind} are {', '.join(known)}",
                )

    def named(self, net: str, kind: str, name: str) -> None:
        """From now on complaints say which transition is meant."""
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
            raise InputError(f"{self.what}: {word}= must be a whole number from {least}, not {value!r}")
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
            raise InputError(f"{self.what}: {word}= must be a text or a function of its ports, not {value!r}")
        return value

    def implementations(self) -> tuple[tuple[str, Function], ...]:
        value = self.options.get("implementations")
        if value is None:
            return ()
        if not isinstance(value, Mapping) or not value:
            raise InputError(f"{self.what}: implementations= must be a mapping from classes to functions")
        for name, function in value.items():
            if not isinstance(name, str) or not callable(function):
                raise InputError(f"{self.what}: the implementation {name!r} is {function!r}, which is no function")
        return tuple(value.items())

    def profile(self, category: str) -> Profile:
        """What broker and runner need to know of such tasks."""
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
        """Of commands; they have the strict one if nothing is said, as in rules files."""
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
            raise InputError(f"{self.what}: environment= must be a mapping from names to texts, not {value!r}")
        return dict(value)


def meant(words: Iterable[str]) -> str:
    """What to say of resources that nobody has and whose names look like options; mostly nothing."""
    for word in words:
        close = get_close_matches(word, _MEANT, 1, _ALIKE) or [each for each in _MEANT if each.startswith(word[:4])]
        if close and word not in _MEANT:
            return f"{word}= is no option, so it is taken for a resource; did you mean {close[0]}=?"
    return ""


def _with_a_core(asked: Resources) -> Resources:
    return Resources.of(dict(asked.amounts) | dict(ONE_CORE.amounts))
