"""The tasks, files and rules that a rules file defines, stored in columns, and the source lines of all definitions.

An explicit definition (`task`, `file`) is a number; its name, needs, action, profile and place are kept in columns, so
that a million calls of `task` cost seconds and megabytes. Rules are few, so they are objects. Each definition is
checked when it is made, so that an error names the user's line. `shoal.formats.rules.assembly` builds the graph.
"""

from __future__ import annotations

import re
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple, TypeAlias

from shoal.core.file_names import Relative, has_odd_names, plain_name
from shoal.core.task import STRICT
from shoal.errors import InputError
from shoal.formats.rules.needs import Column, DeferredNeeds, prepare, simplify
from shoal.formats.rules.options import RuleProfiles
from shoal.formats.rules.patterns import Command, Field, Pattern, Template, bind, bind_words


class SourcePlace(NamedTuple):
    """One line of one file."""

    file: str
    line: int
    main_line: int
    """The line of the main file that led there (the same line if it is in the main file); 0 if there is none."""


class SourcePlaces:
    """The places of all definitions of one rules file, by the definition's number."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._offsets = array("i")
        self._origins = array("i")
        self._codes: list[tuple[CodeType, CodeType | None, int]] = []
        """Code object of the definition. For code outside the main file: also the calling code and its offset."""
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._last_code: CodeType | None = None
        self._last_number = 0
        self._tables: dict[int, tuple[list[int], list[int]]] = {}
        self._main_lines: dict[tuple[int, int], int] = {}

    def add(self, frame: FrameType) -> None:
        """Stores the place of the next definition."""
        code = frame.f_code
        if code is not self._last_code:
            self._last_number = self._origin(frame)
            # Calls into other files come from ever different lines of the main one, so those are looked up each time.
            self._last_code = code if code.co_filename == self._source else None
        self._origins.append(self._last_number)
        self._offsets.append(frame.f_lasti)

    def _origin(self, frame: FrameType) -> int:
        outer: FrameType | None = frame
        while outer is not None and outer.f_code.co_filename != self._source:
            outer = outer.f_back
        if outer is None or outer is frame:
            entry: tuple[CodeType, CodeType | None, int] = (frame.f_code, None, 0)
        else:
            entry = (frame.f_code, outer.f_code, outer.f_lasti)
        key = (id(entry[0]), id(entry[1]), entry[2])
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._codes)
            self._codes.append(entry)
        return number

    def of(self, number: int) -> SourcePlace:
        code, outer, outer_offset = self._codes[self._origins[number]]
        line = self._line(code, self._offsets[number])
        if outer is not None:
            return SourcePlace(code.co_filename, line, self._line(outer, outer_offset))
        return SourcePlace(code.co_filename, line, line if code.co_filename == self._source else 0)

    def main_line(self, number: int) -> int:
        """Same as `of(number).main_line`, cached per instruction."""
        key = (self._origins[number], self._offsets[number])
        line = self._main_lines.get(key)
        if line is None:
            line = self._main_lines[key] = self.of(number).main_line
        return line

    def _line(self, code: CodeType, offset: int) -> int:
        table = self._tables.get(id(code))
        if table is None:
            entries = list(code.co_lines())
            table = self._tables[id(code)] = [entry[0] for entry in entries], [entry[2] or 0 for entry in entries]
        return table[1][max(0, bisect_right(table[0], offset) - 1)]


def place_of(frame: FrameType, source: str) -> SourcePlace:
    """Returns the place of a frame. Definitions use `SourcePlaces` instead, which finds the line only on demand."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename != source:
        outer = outer.f_back
    return SourcePlace(frame.f_code.co_filename, frame.f_lineno, outer.f_lineno if outer is not None else 0)


class UserCodeErrors:
    """Context manager around the user's code: turns any exception into an `InputError` at the innermost user line."""

    def __init__(self, texts: Mapping[str, str], place: SourcePlace | None = None) -> None:
        self._texts = texts
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, (Exception, SystemExit)):
            return
        if isinstance(error, InputError) and error.file is not None:
            return
        raise self._input_error(error, trace) from error

    def _input_error(self, error: BaseException, trace: TracebackType | None) -> InputError:
        if isinstance(error, SyntaxError) and error.filename:
            return InputError(
                error.msg, file=error.filename, line=error.lineno, column=error.offset or None, text=error.text
            )
        file, line = self._innermost(trace)
        remedy = None
        if isinstance(error, InputError):
            message, remedy = error.message, error.remedy
        elif isinstance(error, SystemExit):
            message = f"the file called sys.exit({error.code!r})"
        else:
            details = " ".join(str(error).split())
            message = f"{type(error).__name__}: {details}" if details else type(error).__name__
        return InputError(message, file=file, line=line, remedy=remedy, text=line_text(self._texts, file, line))

    def _innermost(self, trace: TracebackType | None) -> tuple[str | None, int | None]:
        found = (self._place.file, self._place.line) if self._place else (None, None)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in self._texts:
                found = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        return found


def line_text(texts: Mapping[str, str], file: str | None, line: int | None) -> str | None:
    """Returns the text of a line, or None if the file's text is not known."""
    if file is None or line is None or file not in texts:
        return None
    lines = texts[file].splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else None


TASK, FILE, DIRECTORY = 0, 1, 2
SHELL_OF_FUNCTION = "shell= is for commands, and this runs a function"
_NO_SHELL = "leave it out, or run a command"

Function: TypeAlias = Callable[..., object]
Run: TypeAlias = Command | Function | None


class PatternRule(NamedTuple):
    """A pattern rule."""

    patterns: tuple[Pattern, ...]
    needs: DeferredNeeds
    run: Run
    profile: int
    scope: str
    place: SourcePlace


class RuleDefinitions:
    """All definitions of one rules file and of the files it includes."""

    def __init__(self, source: str, relative: Relative | None = None) -> None:
        self.source = source
        self.relative = relative
        """Shortens absolute names of files below the workflow's directory."""
        self.texts: dict[str, str] = {}
        """The text of each loaded file, by the name used in messages."""
        self.names: list[str] = []
        self.kinds = bytearray()
        self.needs: list[Column] = []
        self.runs: list[Run] = []
        self.profile_numbers = array("i")
        self.profiles = RuleProfiles()
        self.places = SourcePlaces(source)
        self.more_outputs: dict[int, tuple[str, ...]] = {}
        """By definition with more than one output: all its outputs."""
        self.scopes: dict[int, str] = {}
        self.descriptions: dict[int, str] = {}
        self.explicit: dict[str, int] = {}
        """Definition number by name, for tasks and explicitly defined files."""
        self.rules: list[PatternRule] = []
        self.scope = ""
        self.has_functions = False
        self._with_shell: set[int] = set()
        """Definitions that have `shell=` but nothing to run yet; rules are negative numbers."""

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
            # The usual case avoids the calls: this runs once per definition.
            usual = not options and type(run) is str and self.profiles.shell is STRICT
            profile = 0 if usual else self._profile(options, run)
            action = run if type(run) is str and "{" not in run else self._action(run, (), frame)
        except InputError as error:
            raise self.located(error, frame) from None
        if "shell" in options and type(run) is not str:
            self._check_shell(len(self.names), run, frame)
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
        """Adds a file, or several files that are made together."""
        for place, name in enumerate(outputs):
            if name in self.explicit or name in outputs[:place]:
                raise self._defined_twice(name, frame)
        number = self.add(FILE, outputs[0], needs, run, options, frame)
        if len(outputs) > 1:
            self.more_outputs[number] = tuple(outputs)
            self.explicit.update(dict.fromkeys(outputs, number))
        return number

    def add_directory(self, name: str, frame: FrameType) -> str:
        """Adds a directory unless it is defined already.

        Tasks wait for it like for a task, not like for a file: the time stamp of a directory changes with its entries.
        """
        number = self.explicit.get(name)
        if number is None or self.kinds[number] != DIRECTORY:
            number = self.add(DIRECTORY, name, None, "", {"shell": STRICT}, frame)
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
            patterns = tuple([Pattern(self.plain(each) if isinstance(each, str) else each) for each in outputs])
            wildcards = patterns[0].wildcards
            for pattern in patterns[1:]:
                if pattern.is_expression or patterns[0].is_expression:
                    raise InputError("a regular expression must be the only output of its rule")
                if sorted(pattern.wildcards) != sorted(wildcards):
                    raise InputError(f"{patterns[0].text!r} and {pattern.text!r} must have the same wildcards")
            profile = self._profile(options, run)
            wanted = prepare(needs, lambda text: self._needs_template(text, wildcards, frame))
            action = self._action(run, wildcards, frame)
        except InputError as error:
            raise self.located(error, frame) from None
        if "shell" in options and type(run) is not str:
            self._check_shell(-len(self.rules) - 1, run, frame)
        self.rules.append(PatternRule(patterns, wanted, action, profile, self.scope, place_of(frame, self.source)))
        return len(self.rules) - 1

    def plain(self, name: str) -> str:
        """Returns the normalized form of a file name."""
        return plain_name(name, self.relative)

    def normalize_names(self) -> None:
        """Makes every file and directory known under its normalized name; called after all definitions."""
        if not has_odd_names(self.names) and not any(map(has_odd_names, self.more_outputs.values())):
            return
        for number, kind in enumerate(self.kinds):
            names = (self.names[number],) if kind == DIRECTORY else self.outputs(number)
            plain = tuple(map(self.plain, names))
            if plain == names:
                continue
            for at, name in enumerate(plain):
                if self.explicit.setdefault(name, number) != number or name in plain[:at]:
                    raise self._also_defined(name, number)
            self.names[number] = plain[0]
            if number in self.more_outputs:
                self.more_outputs[number] = plain

    def _also_defined(self, name: str, number: int) -> InputError:
        other = self.explicit[name]
        if other == number:
            return self.located(InputError(f"{name!r} appears twice among the outputs"), self.places.of(number))
        return self._defined_at(name, *sorted((other, number)))

    def set_function(self, number: int, function: Function) -> None:
        """Gives a definition made without `run=` the function it decorates."""
        if self.runs[number] is not None:
            raise self.located(InputError(f"{self.names[number]!r} already has an action"), self.places.of(number))
        if number in self._with_shell:
            raise self.located(InputError(SHELL_OF_FUNCTION, remedy=_NO_SHELL), self.places.of(number))
        self.runs[number] = function
        self._describe(number, function)

    def set_rule_function(self, number: int, function: Function) -> None:
        """Same as `set_function`, for a rule."""
        rule = self.rules[number]
        if rule.run is not None:
            raise self.located(InputError(f"the rule for {rule.patterns[0].text!r} already has an action"), rule.place)
        if -number - 1 in self._with_shell:
            raise self.located(InputError(SHELL_OF_FUNCTION, remedy=_NO_SHELL), rule.place)
        self.rules[number] = rule._replace(run=function)
        self.has_functions = True

    def _profile(self, options: Mapping[str, object], run: object) -> int:
        if isinstance(run, (list, tuple)):  # another shell may quote differently, or not be a shell at all
            options = {"shell": STRICT, **options}
        return self.profiles.number(options) if options or self.profiles.shell != STRICT else 0

    def _check_shell(self, number: int, run: object, frame: FrameType) -> None:
        """Refuses `shell=` unless the action is a command text. A definition without action is checked later."""
        if isinstance(run, (list, tuple)):
            raise self.located(
                InputError("shell= is for a command given as text, and this one is a list of words"), frame
            )
        if run is not None:
            raise self.located(InputError(SHELL_OF_FUNCTION, remedy=_NO_SHELL), frame)
        self._with_shell.add(number)

    def outputs(self, number: int) -> tuple[str, ...]:
        if self.kinds[number] != FILE:
            return ()
        return self.more_outputs.get(number) or (self.names[number],)

    def in_scope(self, name: str, scope: str) -> str:
        """Resolves `name` inside a namespace: returns the innermost task of that name, else the name itself."""
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

    def located(self, error: InputError, where: FrameType | SourcePlace) -> InputError:
        """Returns the error with file, line and text of the line, unless it already has them."""
        if error.file is not None:
            return error
        place = where if isinstance(where, SourcePlace) else place_of(where, self.source)
        text = line_text(self.texts, place.file, place.line)
        return InputError(error.message, file=place.file, line=place.line, remedy=error.remedy, text=text)

    def _defined_twice(self, name: str, frame: FrameType) -> InputError:
        number = self.explicit.get(name)
        if number is None:
            return self.located(InputError(f"{name!r} appears twice among the outputs"), frame)
        return self._defined_at(name, number, place_of(frame, self.source))

    def _defined_at(self, name: str, number: int, again: int | SourcePlace) -> InputError:
        first = self.places.of(number)
        here = self.places.of(again) if isinstance(again, int) else again
        where = f"line {first.line}" if first.file == here.file else f"{first.file}, line {first.line}"
        error = InputError(f"{name!r} is already defined ({where})", remedy="rename or remove one of them")
        return self.located(error, here)


def value_of(word: str, frame: FrameType, in_shell: bool) -> str:
    """Returns the text of a variable that is visible at the line of the definition."""
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
        f"{{{word}}} is neither a wildcard nor a variable of this file",
        remedy=f"write {{{{{word}}}}} if the braces are meant literally",
    )
