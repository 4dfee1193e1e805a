"""A `Makeflow` document as text in the classic language, which reads back as the same rules.

Commands and names are written as they came out: variables that only helped to write them are gone. Those that jobs
see, resources among them, are assigned again as the rules come to need them. Two things cannot be said: arguments of a
sub-workflow are refused, "allocation" of a JSON rule is left out.
"""

from __future__ import annotations

import re

from shoal.errors import InputError
from shoal.formats.makeflow.document import DEFAULT_CATEGORY, RESOURCES, AllocationMode, Makeflow, MakeflowRule
from shoal.formats.makeflow.lexer import NAME_CHARACTERS

NEWLINE_VARIABLE = "SHOAL_NEWLINE"
RETURN_VARIABLE = "SHOAL_RETURN"

_SPECIAL_IN_NAME = re.compile(
    r"[\\\"'$# \t:=]|^@|^\.(?=(?:MAKEFLOW|SIZE|UMBRELLA)\Z)|-(?![A-Za-z0-9_.])|(?<![A-Za-z0-9_.])-"
)
"""The original takes a dash for the start of an arrow unless it stands between letters."""
_SPECIAL_IN_VALUE = re.compile(r"[\\\"'$#]|^[ \t]|[ \t]\Z")
_SPECIAL_IN_QUOTES = re.compile(r"[\\\"'$]")
_BLANKS_AFTER_QUOTE = re.compile(r'^"[ \t]+')
_CONTROL = {"\n": "\\n", "\r": "\\r"}
_PIECE = re.compile(
    r"(?P<plain>[^\\\"'$#\n\r\t ]+)|(?P<double>\"[^\"']*\")|(?P<single>'[^'\r]*')|(?P<other>.)", re.DOTALL
)


def quote_name(name: str) -> str:
    """A file's name in a file list or a directive."""
    if "\n" in name or "\r" in name:
        return _keep_blanks(f'"{_escape_control(_SPECIAL_IN_QUOTES.sub(_with_backslash, name))}"')
    return _SPECIAL_IN_NAME.sub(_with_backslash, name)


def quote_value(value: str) -> str:
    """A variable's value."""
    return _escape_control(_SPECIAL_IN_VALUE.sub(_with_backslash, value))


def quote_command(command: str) -> str:
    """A command; line ends outside quotes become references to `NEWLINE_VARIABLE` and `RETURN_VARIABLE`."""
    parts: list[str] = []
    for piece in _PIECE.finditer(command):
        text = piece[0]
        if piece["double"]:
            text = _keep_blanks(_escape_control(text.replace("\\", "\\\\").replace("$", "\\$")))
        elif piece["single"]:
            text = text.replace("\\", "\\\\")
        elif text == "\n":
            text = f"$({NEWLINE_VARIABLE})"
        elif text == "\r":
            text = f"$({RETURN_VARIABLE})"
        elif text == " ":
            # One blank between two pieces is kept; blanks in a row and at the ends would be lost.
            alone = bool(parts) and parts[-1] != " " and piece.end() < len(command)
            text = " " if alone else "\\ "
        elif piece["other"]:
            text = "\\" + text
        parts.append(text)
    return "".join(parts)


def _keep_blanks(quoted: str) -> str:
    """Blanks behind an opening double quote are lost unless each has a backslash."""
    return _BLANKS_AFTER_QUOTE.sub(lambda found: '"' + "".join("\\" + blank for blank in found[0][1:]), quoted)


def _with_backslash(found: re.Match[str]) -> str:
    return "\\" + found[0]


def _escape_control(text: str) -> str:
    for character, escape in _CONTROL.items():
        text = text.replace(character, escape)
    return text


CATEGORY_VARIABLES = ("CATEGORY", "SYMBOL")
"""Assigning these opens a category, so they are written where a category is opened and nowhere else."""
OTHER_VARIABLES = ("OMP_NUM_THREADS", "BATCH_OPTIONS", "SPEC", "AMAZON_INSTANCE_TYPE", "AMAZON_AMI")
"""Names that mean something without being exported."""

_VARIABLE = re.compile(rf"(?!@){NAME_CHARACTERS}+")
_MODIFIER = re.compile(r"(?:LOCAL|MAKEFLOW)(?: |\Z)")
_PLAIN_WORKFLOW = re.compile(r"[^\s\"'<>|&;]+")


def write_makeflow(makeflow: Makeflow) -> str:
    """The whole document; raises `InputError` for what the language cannot say."""
    return _Printer(makeflow).text()


class _Printer:
    """One document, written from top to bottom; knows what a reader would have seen up to here."""

    def __init__(self, makeflow: Makeflow) -> None:
        self._makeflow = makeflow
        self._variables = makeflow.variables
        names = dict.fromkeys((*makeflow.exports, *RESOURCES, *OTHER_VARIABLES))
        self._names = [name for name in names if name not in CATEGORY_VARIABLES]
        self._lines: list[str] = []
        self._open = DEFAULT_CATEGORY
        self._opened = False
        """Whether a category was opened by name, which jobs see."""
        self._modes: dict[str, None] = {DEFAULT_CATEGORY: None}
        """Categories whose modes stand in the text already."""
        self._written: dict[str, dict[str, str]] = {DEFAULT_CATEGORY: {}}
        self._place: tuple[str, int] | None = None
        self._beside: dict[str, str] = {}

    def text(self) -> str:
        self._header()
        for number, rule in enumerate(self._makeflow.rules):
            self._rule(rule, number)
        for category in dict.fromkeys(rule.category for rule in self._makeflow.rules):
            # Rules are given the last value of a resource, wherever it stands.
            self._bring_up_to_date(category, None, list(RESOURCES))
        for category in self._makeflow.categories:
            if self._mode(category) and category not in self._modes:
                self._open_category(category)
        text = "\n".join(self._lines) + "\n"
        if "\0" in text:
            raise InputError("a name, a value or a command holds a zero character", file=self._makeflow.source)
        return text

    def _header(self) -> None:
        makeflow = self._makeflow
        self._lines.append("# Written by shoal convert.")
        always = (*RESOURCES, *CATEGORY_VARIABLES)
        self._lines += [f"export {self._checked(name)}" for name in makeflow.exports if name not in always]
        for name, files in (("MAKEFLOW_INPUTS", makeflow.inputs), ("MAKEFLOW_OUTPUTS", makeflow.outputs)):
            if files and name not in makeflow.exports:
                self._assign(name, " ".join(files))
        if mode := self._mode(DEFAULT_CATEGORY):
            self._lines.append(mode)
        self._lines += [f".SIZE {quote_name(name)} {size}" for name, size in makeflow.sizes.items()]
        for name, character in ((NEWLINE_VARIABLE, "\n"), (RETURN_VARIABLE, "\r")):
            if any(f"$({name})" in quote_command(rule.command) for rule in makeflow.rules if character in rule.command):
                self._assign(name, character)

    def _assign(self, name: str, value: str) -> None:
        self._lines.append(f"{self._checked(name)}={quote_value(value)}")

    def _checked(self, name: str) -> str:
        if _VARIABLE.fullmatch(name):
            return name
        raise InputError(f"a Makeflow cannot have a variable called {name!r}", file=self._makeflow.source)

    def _open_category(self, category: str, *, by_name: bool = False) -> None:
        if category == self._open and (self._opened or not by_name):
            return
        self._open, self._opened = category, True
        self._lines.append(f"\n.MAKEFLOW CATEGORY {quote_name(category)}")
        if mode := self._mode(category):
            # The original forgets the mode each time a category is opened.
            self._lines.append(mode)
            self._modes[category] = None

    def _mode(self, category: str) -> str:
        """The directive for a category's mode, if it has one."""
        known = self._makeflow.categories.get(category)
        return "" if known is None or known.mode is AllocationMode.FIXED else f".MAKEFLOW MODE {known.mode.value}"

    def _bring_up_to_date(self, category: str, version: int | None, names: list[str]) -> dict[str, str]:
        """Assigns what rules of this category see at this version; gives back what they must be told one by one."""
        default = self._makeflow.default_category
        everywhere = self._written[DEFAULT_CATEGORY]
        for name in names:
            value = self._variables.assigned(default, name, version)
            if value is not None and everywhere.get(name) != value:
                self._open_category(DEFAULT_CATEGORY)
                everywhere[name] = value
                self._assign(name, value)
        if category == default:
            return {}
        beside: dict[str, str] = {}
        own = beside if category == DEFAULT_CATEGORY else self._written.setdefault(category, {})
        for name in names:
            value = self._variables.assigned(category, name, version)
            if value is None or own.get(name, everywhere.get(name)) == value:
                continue
            own[name] = value
            if own is not beside:
                self._open_category(category)
                self._assign(name, value)
        return beside

    def _rule(self, rule: MakeflowRule, number: int) -> None:
        own = dict(rule.variables)
        place = (rule.category, rule.version)
        if place != self._place:
            self._place = place
            self._beside = self._bring_up_to_date(*place, self._names)
        chosen_here = next((name for name in CATEGORY_VARIABLES if own.get(name, "").strip() == rule.category), None)
        if chosen_here is None:
            named = self._variables.assigned(self._makeflow.default_category, "CATEGORY", rule.version)
            self._open_category(rule.category, by_name=named is not None)
        there = dict(rule.renames)

        def shown(names: tuple[str, ...]) -> list[str]:
            return [self._file(name, there.get(name), number) for name in names]

        self._lines.append("\n" + " ".join([" ".join(shown(rule.outputs)) + ":", *shown(rule.inputs)]))
        for name, value in (self._beside | own).items():
            if name == chosen_here or name in self._names:
                self._assign(name, value)
        self._lines.append("\t" + self._command(rule, number))

    def _file(self, name: str, there: str | None, number: int) -> str:
        if not name:
            raise self._cannot(number, "has a file without a name")
        return quote_name(name) if there is None else f"{quote_name(name)}->{quote_name(there)}"

    def _command(self, rule: MakeflowRule, number: int) -> str:
        command = rule.command
        if rule.workflow:
            if rule.arguments and rule.arguments != "{}":
                raise self._cannot(number, f"gives arguments to {rule.workflow!r}")
            quote = "" if _PLAIN_WORKFLOW.fullmatch(rule.workflow) else '"' if '"' not in rule.workflow else "'"
            if quote and quote in rule.workflow:
                raise self._cannot(number, f"runs a workflow with both kinds of quotes in its name, {rule.workflow!r}")
            command = f"MAKEFLOW {quote}{rule.workflow}{quote}"
        elif _MODIFIER.match(command):
            # A program that is called like a modifier; the shell does not mind the blank.
            command = f" {command}"
        command = quote_command(command)
        if rule.local:
            return f"LOCAL {command}" if command else "LOCAL"
        return command or ":"

    def _cannot(self, number: int, what: str) -> InputError:
        line = self._makeflow.rules[number].line
        return InputError(
            f"rule {number} {what}, which cannot be said in a Makeflow",
            file=self._makeflow.source,
            line=line or None,
            remedy="convert it to json",
        )
