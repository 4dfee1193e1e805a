"""The keyword options of a definition (`cores=`, `memory=`, `retries=`, ...), checked and turned into a `Profile`.

Definitions with equal options share one profile, found by one dictionary look-up: there may be millions of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypedDict

from shoal.core.file_names import is_unusable, refuse_unusable
from shoal.core.resources import Resources, is_label, parse_labels, requiring
from shoal.core.task import STRICT, Profile, parse_shell
from shoal.errors import InputError


class SupportsPath(Protocol):
    """A `pathlib.Path`, or any other object that has a file name."""

    def __fspath__(self) -> str: ...


Amount: TypeAlias = int | float | str


class DefinitionOptions(TypedDict, total=False):
    """The options of `rule`, `file` and `task` besides outputs, needs and run."""

    cores: Amount
    memory: Amount
    disk: Amount
    gpus: Amount
    resources: Mapping[str, Amount]
    requires: str | Sequence[str]
    prefers: str | Sequence[str]
    retries: int
    timeout: float | None
    category: str
    env: Mapping[str, object]
    cwd: str | SupportsPath
    shell: str


BUILT_IN = ("cores", "memory", "disk", "gpus")
KNOWN = tuple(DefinitionOptions.__annotations__)


class RuleProfiles:
    """The distinct profiles of one rules file."""

    def __init__(self) -> None:
        self.all: list[Profile] = [Profile(shell=STRICT)]
        self.shell = STRICT
        """The shell of commands without `shell=`."""
        self._by_options: dict[object, int] = {}
        self._by_profile: dict[Profile, int] = {self.all[0]: 0}

    def number(self, options: Mapping[str, object]) -> int:
        """Returns the number of the profile for these options; raises `InputError` without a place if they are
        wrong."""
        if self.shell != STRICT:
            options = {"shell": self.shell, **options}
        if not options:
            return 0
        key: object = (tuple(options.items()), tuple(map(type, options.values())))
        try:
            number = self._by_options.get(key)
        except TypeError:  # a dict among the values
            key = tuple((name, type(value), repr(value)) for name, value in options.items())
            number = self._by_options.get(key)
        if number is None:
            profile = make_profile(options)
            number = self._by_profile.setdefault(profile, len(self.all))
            if number == len(self.all):
                self.all.append(profile)
            self._by_options[key] = number
        return number


def make_profile(options: Mapping[str, object]) -> Profile:
    for name in options:
        if name not in KNOWN:
            from difflib import get_close_matches  # takes 4 ms to import, needed for error messages only

            close = get_close_matches(name, KNOWN, 1)
            remedy = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(KNOWN)}"
            raise InputError(f"unknown option {name!r}", remedy=remedy)
    timeout = options.get("timeout")
    return Profile(
        category=_category(options.get("category", "")),
        resources=requiring(_resources(options), parse_labels(options.get("requires", ()), "requires")),
        retries=_retries(options.get("retries", 0)),
        timeout=None if timeout is None else _timeout(timeout),
        environment=_environment(options.get("env", {})),
        directory=_directory(options.get("cwd")),
        cores_declared="cores" in options or "cores" in _named(options),
        prefers=parse_labels(options.get("prefers", ()), "prefers"),
        shell=parse_shell(options.get("shell", STRICT)),
    )


def _resources(options: Mapping[str, object]) -> Resources:
    declared: dict[str, object] = {"cores": 1}
    declared.update({name: options[name] for name in BUILT_IN if name in options})
    for name, amount in _named(options).items():
        if not isinstance(name, str) or not name:
            raise InputError(f"{name!r} is not a valid name in resources=")
        if is_label(name):
            raise InputError(f"{name!r} in resources= is a label", remedy=f"write requires={name!r}")
        if name in options:
            raise InputError(f"{name} is given twice", remedy=f"leave it out of resources=, or drop {name}=")
        declared[name] = amount
    return Resources.parse(declared)  # type: ignore[arg-type]  # `parse` checks each value


def _named(options: Mapping[str, object]) -> Mapping[object, object]:
    named = options.get("resources", {})
    if not isinstance(named, Mapping):
        raise InputError(f"resources must be a dict of names and amounts, not {named!r}")
    return named


def _category(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"category must be text, not {value!r}")
    refuse_unusable(value, "category")
    return value


def _retries(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"retries must be a whole number, 0 or more, not {value!r}")
    return value


def _timeout(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise InputError(f"timeout must be a number of seconds greater than 0, not {value!r}")
    return float(value)


def _environment(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise InputError(f"env must be a dict of variables and values, not {value!r}")
    for variable in value:
        if not isinstance(variable, str) or not variable or "=" in variable or is_unusable(variable):
            raise InputError(f"{variable!r} in env= is not a valid variable name")
        refuse_unusable(str(value[variable]), f"env: the value of {variable}")
    return tuple(sorted((variable, str(text)) for variable, text in value.items()))


def _directory(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        refuse_unusable(str(value), "cwd")
        return str(value) or None
    raise InputError(f"cwd must be a directory's name, not {value!r}")
