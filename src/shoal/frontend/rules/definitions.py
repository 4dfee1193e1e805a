"""The definitions of a rules file, in columns: a million calls of `task` must cost seconds and megabytes.

An explicit definition (`task`, `file`) is a number; its name, needs, action, profile and place stand in columns. Rules
are few and are objects. Everything is checked here, when it is defined, so that the error names the user's line. What
follows from the definitions is left to `search` and `assemble`.
"""

from __future__ import annotations

import re
import shlex
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple, TypeAlias

from shoal.errors import InputError
from shoal.frontend.rules.needs import Column, Wanted, prepare, simplify
from shoal.frontend.rules.options import Profiles
from shoal.frontend.rules.pattern import Pattern
from shoal.frontend.rules.places import Place, Places, line_text, place_of
from shoal.frontend.rules.template import Command, Field, Template, bind, bind_words

TASK, FILE, DIRECTORY = 0, 1, 2

Function: TypeAlias = Callable[..., object]
Run: TypeAlias = Command | Function | None


class Rule(NamedTuple):
    """A pattern rule."""

    patterns: tuple[Pattern, ...]
    needs: Wanted
    run: Run
    profile: int
    scope: str
    place: Place


class Definitions:
    """Everything one rules file, and what it includes, has defined."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.texts: dict[str, str] = {}
        """The text of each file that was read, by the name used in messages."""
        self.names: list[str] = []
        self.kinds = bytearray()
        self.needs: list[Column] = []
        self.runs: list[Run] = []
        self.profile_numbers = array("i")
        self.profiles = Profiles()
        self.places = Places(source)
        self.more_outputs: dict[int, tuple[str, ...]] = {}
        """All outputs of those files that are made together with others."""
        self.scopes: dict[int, str] = {}
        self.descriptions: dict[int, str] = {}
        self.explicit: dict[str, int] = {}
        """From names of tasks and of explicitly defined files to the definition."""
        self.rules: list[Rule] = []
        self.scope = ""
        self.has_functions = False

    def add(
        self, kind: int, name: str, needs: object, run: object, options: Mapping[str, object], frame: FrameType
    ) -> int:
        """Adds a task, or a file with one output, and returns its number."""
        if self.scope and kind == TASK:
            name = f"{self.scope}:{name}"
        if name in self.explicit:
            raise self._defined_twice(name, frame)
        try:
            column = needs if needs is None or (type(needs) is str and needs) else simplify(needs)
            profile = self.profiles.number(options) if options else 0
            action = run if type(run) is str and "{" not in run else self._action(run, (), frame)
        except InputError as error:
            raise self.placed(error, frame) from None
        number = len(self.names)
        self.explicit[name] = number
        self.names.append(name)
        self.kinds.append(kind)
        self.needs.append(column)
        self.runs.append(action)
        self.profile_numbers.append(profile)
        self.places.add(frame)
        if self.scope:
            self.scopes[number] = self.scope
        return number

    def add_file(
        self, outputs: Sequence[str], needs: object, run: object, options: Mapping[str, object], frame: FrameType
    ) -> int:
        """Adds a file, or several that are made together."""
        for place, name in enumerate(outputs):
            if name in self.explicit or name in outputs[:place]:
                raise self._defined_twice(name, frame)
        number = self.add(FILE, outputs[0], needs, run, options, frame)
        if len(outputs) > 1:
            self.more_outputs[number] = tuple(outputs)
            self.explicit.update(dict.fromkeys(outputs, number))
        return number

    def add_directory(self, name: str, frame: FrameType) -> str:
        """Adds a directory unless it is there; it is waited for like a task, for its time stamp means nothing."""
        number = self.explicit.get(name)
        if number is None or self.kinds[number] != DIRECTORY:
            number = self.add(DIRECTORY, name, None, "", {}, frame)
            self.runs[number] = f"mkdir -p -- {shlex.quote(name)}"
        return name

    def add_rule(
        self,
        outputs: Sequence[str | re.Pattern[str]],
        needs: object,
        run: object,
        options: Mapping[str, object],
        frame: FrameType,
    ) -> int:
        """Adds a pattern rule and returns its number among the rules."""
        try:
            patterns = tuple(map(Pattern, outputs))
            wildcards = patterns[0].wildcards
            for pattern in patterns[1:]:
                if pattern.is_expression or patterns[0].is_expression:
                    raise InputError("a regular expression must be the only output of its rule")
                if sorted(pattern.wildcards) != sorted(wildcards):
                    raise InputError(f"{patterns[0].text!r} and {pattern.text!r} must have the same wildcards")
            profile = self.profiles.number(options)
            wanted = prepare(needs, lambda text: self._needs_template(text, wildcards, frame))
            action = self._action(run, wildcards, frame)
        except InputError as error:
            raise self.placed(error, frame) from None
        self.rules.append(Rule(patterns, wanted, action, profile, self.scope, place_of(frame, self.source)))
        return len(self.rules) - 1

    def set_function(self, number: int, function: Function) -> None:
        """Gives a definition made without `run=` the function it decorates."""
        if self.runs[number] is not None:
            raise self.placed(InputError(f"{self.names[number]!r} already runs something"), self.places.of(number))
        self.runs[number] = function
        self._describe(number, function)

    def set_rule_function(self, number: int, function: Function) -> None:
        """As `set_function`, for a rule."""
        rule = self.rules[number]
        if rule.run is not None:
            raise self.placed(InputError(f"the rule for {rule.patterns[0].text!r} already runs something"), rule.place)
        self.rules[number] = rule._replace(run=function)
        self.has_functions = True

    def outputs(self, number: int) -> tuple[str, ...]:
        if self.kinds[number] != FILE:
            return ()
        return self.more_outputs.get(number) or (self.names[number],)

    def in_scope(self, name: str, scope: str) -> str:
        """The full name of what `name` means inside a namespace: the innermost task of that name, else itself."""
        while scope:
            number = self.explicit.get(f"{scope}:{name}")
            if number is not None:
                return f"{scope}:{name}"
            scope = scope.rpartition(":")[0]
        return name

    def _describe(self, number: int, function: Function) -> None:
        self.has_functions = True
        text = (getattr(function, "__doc__", None) or "").strip()
        if text:
            self.descriptions[number] = text.splitlines()[0]

    def _action(self, run: object, wildcards: Sequence[str], frame: FrameType) -> Run:
        if run is None or callable(run):
            self.has_functions |= run is not None
            return run
        if isinstance(run, str):
            return bind(run, wildcards, lambda word: value_of(word, frame, in_shell=True))
        if isinstance(run, (list, tuple)) and run:
            words = [str(word) for word in run]
            return bind_words(words, wildcards, lambda word: value_of(word, frame, in_shell=False))
        raise InputError(f"run must be a command, a list of words or a function, not {run!r}")

    def _needs_template(self, text: str, wildcards: Sequence[str], frame: FrameType) -> str | Template:
        template = bind(text, wildcards, lambda word: value_of(word, frame, in_shell=False))
        if isinstance(template, Template):
            for piece in template.pieces:
                if isinstance(piece, Field) and piece.word == "needs":
                    raise InputError(f"needs cannot refer to itself in {text!r}")
        return template

    def placed(self, error: InputError, where: FrameType | Place) -> InputError:
        """The error with the place and the user's line, unless it already has a place."""
        if error.file is not None:
            return error
        place = where if isinstance(where, Place) else place_of(where, self.source)
        text = line_text(self.texts, place.file, place.line)
        return InputError(error.message, file=place.file, line=place.line, remedy=error.remedy, text=text)

    def _defined_twice(self, name: str, frame: FrameType) -> InputError:
        number = self.explicit.get(name)
        if number is None:
            return self.placed(InputError(f"{name!r} is named twice among the outputs"), frame)
        first = self.places.of(number)
        here = place_of(frame, self.source)
        where = f"line {first.line}" if first.file == here.file else f"{first.file}, line {first.line}"
        error = InputError(f"{name!r} is already defined ({where})", remedy="rename or remove one of them")
        return self.placed(error, here)


def value_of(word: str, frame: FrameType, in_shell: bool) -> str:
    """The text of a plain variable that the definition's line can see."""
    for names in (frame.f_locals, frame.f_globals):
        if word not in names:
            continue
        value = names[word]
        if isinstance(value, (str, int, float)):
            return str(value)
        if hasattr(value, "__fspath__"):
            return shlex.quote(str(value)) if in_shell else str(value)
        kind = type(value).__name__
        raise InputError(
            f"{{{word}}} is a {kind}, and only text, numbers and paths can be inserted",
            remedy=f"write {{{{{word}}}}} if the braces are meant literally",
        )
    raise InputError(
        f"{{{word}}} names neither a wildcard nor a variable of this file",
        remedy=f"write {{{{{word}}}}} if the braces are meant literally",
    )
