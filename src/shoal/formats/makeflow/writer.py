"""Writes a `Makeflow` document in the Makeflow language; parsing the text gives the same rules.

Commands and names are written after substitution, without the variables used in them. Variables that jobs see,
including resources, are assigned where the first rule needs their value. The language has no syntax for two things:
arguments of a sub-workflow are refused, "allocation" of a JSON rule is left out.
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
"""Characters to escape in names. The original takes a dash for the start of an arrow unless it is between letters."""
_SPECIAL_IN_VALUE = re.compile(r"[\\\"'$#]|^[ \t]|[ \t]\Z")
_SPECIAL_IN_QUOTES = re.compile(r"[\\\"'$]")
_BLANKS_AFTER_QUOTE = re.compile(r'^"[ \t]+')
_CONTROL = {"\n": "\\n", "\r": "\\r"}
_PIECE = re.compile(
    r"(?P<plain>[^\\\"'$#\n\r\t ]+)|(?P<double>\"[^\"']*\")|(?P<single>'[^'\r]*')|(?P<other>.)", re.DOTALL
)


def quote_name(name: str) -> str:
    """Quotes a file name for a file list or a directive."""
    if "\n" in name or "\r" in name:
        return _keep_blanks(f'"{_escape_control(_SPECIAL_IN_QUOTES.sub(_with_backslash, name))}"')
    return _SPECIAL_IN_NAME.sub(_with_backslash, name)


def quote_value(value: str) -> str:
    """Quotes the value of a variable."""
    return _escape_control(_SPECIAL_IN_VALUE.sub(_with_backslash, value))


def quote_command(command: str) -> str:
    """Quotes a command; line ends outside quotes become references to `NEWLINE_VARIABLE` and `RETURN_VARIABLE`."""
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
            # The reader keeps one blank between two pieces, but drops further blanks and those at both ends.
            alone = bool(parts) and parts[-1] != " " and piece.end() < len(command)
            text = " " if alone else "\\ "
        elif piece["other"]:
            text = "\\" + text
        parts.append(text)
    return "".join(parts)


def _keep_blanks(quoted: str) -> str:
    """Escapes blanks after an opening double quote, which the reader would drop."""
    return _BLANKS_AFTER_QUOTE.sub(lambda found: '"' + "".join("\\" + blank for blank in found[0][1:]), quoted)


def _with_backslash(found: re.Match[str]) -> str:
    return "\\" + found[0]


def _escape_control(text: str) -> str:
    for character, escape in _CONTROL.items():
        text = text.replace(character, escape)
    return text


CATEGORY_VARIABLES = ("CATEGORY", "SYMBOL")
"""Variables whose assignment opens a category; they are only written where a category is opened."""
OTHER_VARIABLES = ("OMP_NUM_THREADS", "BATCH_OPTIONS", "SPEC", "AMAZON_INSTANCE_TYPE", "AMAZON_AMI")
"""Variables that have a meaning even if they are not exported."""

_VARIABLE = re.compile(rf"(?!@){NAME_CHARACTERS}+")
_MODIFIER = re.compile(r"(?:LOCAL|MAKEFLOW)(?: |\Z)")
_PLAIN_WORKFLOW = re.compile(r"[^\s\"'<>|&;]+")


def write_makeflow(makeflow: Makeflow) -> str:
    """Returns the text of the document; raises `InputError` for what the language cannot express."""
    return _Printer(makeflow).text()


class _Printer:
    """Writes one document from top to bottom, and keeps track of what a reader has seen so far."""

    def __init__(self, makeflow: Makeflow) -> None:
        self._makeflow = makeflow
        self._variables = makeflow.variables
        names = dict.fromkeys((*makeflow.exports, *RESOURCES, *OTHER_VARIABLES))
        self._names = [name for name in names if name not in CATEGORY_VARIABLES]
        self._lines: list[str] = []
        self._open = DEFAULT_CATEGORY
        self._opened = False
        """Whether a category was opened by name; jobs see it in the variable CATEGORY."""
        self._modes: dict[str, None] = {DEFAULT_CATEGORY: None}
        """Categories whose modes are already written."""
        self._written: dict[str, dict[str, str]] = {DEFAULT_CATEGORY: {}}
        self._place: tuple[str, int] | None = None
        self._rule_settings: dict[str, str] = {}

    def text(self) -> str:
        self._header()
        for number, rule in enumerate(self._makeflow.rules):
            self._rule(rule, number)
        for category in dict.fromkeys(rule.category for rule in self._makeflow.rules):
            # For resources the last value in the file counts, wherever it is assigned.
            self._assign_changed(category, None, list(RESOURCES))
        for category in self._makeflow.categories:
            if self._mode(category) and category not in self._modes:
                self._open_category(category)
        text = "\n".join(self._lines) + "\n"
        if "\0" in text:
            raise InputError("a name, a value or a command contains a zero byte", file=self._makeflow.source)
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
        raise InputError(f"{name!r} is not a valid variable name in a Makeflow", file=self._makeflow.source)

    def _open_category(self, category: str, *, by_name: bool = False) -> None:
        if category == self._open and (self._opened or not by_name):
            return
        self._open, self._opened = category, True
        self._lines.append(f"\n.MAKEFLOW CATEGORY {quote_name(category)}")
        if mode := self._mode(category):
            # The original resets the mode each time a category is opened.
            self._lines.append(mode)
            self._modes[category] = None

    def _mode(self, category: str) -> str:
        """Returns the directive for a category's mode, or "" if it has none."""
        known = self._makeflow.categories.get(category)
        return "" if known is None or known.mode is AllocationMode.FIXED else f".MAKEFLOW MODE {known.mode.value}"

    def _assign_changed(self, category: str, version: int | None, names: list[str]) -> dict[str, str]:
        """Assigns the variables that rules of this category see at this version and whose values have changed.

        Returns the variables that cannot be assigned to the category, so that each rule must assign them itself.
        """
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
        rule_settings: dict[str, str] = {}
        own = rule_settings if category == DEFAULT_CATEGORY else self._written.setdefault(category, {})
        for name in names:
            value = self._variables.assigned(category, name, version)
            if value is None or own.get(name, everywhere.get(name)) == value:
                continue
            own[name] = value
            if own is not rule_settings:
                self._open_category(category)
                self._assign(name, value)
        return rule_settings

    def _rule(self, rule: MakeflowRule, number: int) -> None:
        own = dict(rule.variables)
        place = (rule.category, rule.version)
        if place != self._place:
            self._place = place
            self._rule_settings = self._assign_changed(*place, self._names)
        chosen_here = next((name for name in CATEGORY_VARIABLES if own.get(name, "").strip() == rule.category), None)
        if chosen_here is None:
            named = self._variables.assigned(self._makeflow.default_category, "CATEGORY", rule.version)
            self._open_category(rule.category, by_name=named is not None)
        remote = dict(rule.renames)

        def quoted(names: tuple[str, ...]) -> list[str]:
            return [self._file(name, remote.get(name), number) for name in names]

        self._lines.append("\n" + " ".join([" ".join(quoted(rule.outputs)) + ":", *quoted(rule.inputs)]))
        for name, value in (self._rule_settings | own).items():
            if name == chosen_here or name in self._names:
                self._assign(name, value)
        self._lines.append("\t" + self._command(rule, number))

    def _file(self, name: str, remote: str | None, number: int) -> str:
        if not name:
            raise self._cannot(number, "has a file without a name")
        return quote_name(name) if remote is None else f"{quote_name(name)}->{quote_name(remote)}"

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
            # The program has the name of a modifier; the shell ignores the additional blank.
            command = f" {command}"
        command = quote_command(command)
        if rule.local:
            return f"LOCAL {command}" if command else "LOCAL"
        return command or ":"

    def _cannot(self, number: int, what: str) -> InputError:
        line = self._makeflow.rules[number].line
        return InputError(
            f"rule {number} {what}, which a Makeflow cannot express",
            file=self._makeflow.source,
            line=line or None,
            remedy="convert it to json",
        )
