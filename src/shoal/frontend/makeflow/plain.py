"""The short way through a Makeflow: rules without surprises, many in a row, each taken whole by one regular expression.

Most rules of a large file are plain: no renames, no quotes in the file lists, no continued lines, in the command only
quotes and backslashes that change nothing else, variables whose values are plain text. `PlainRules.read` takes as many
of them as stand one behind the other and stops at the first that is not. The parser then takes that one the exact way,
with the lexer; both ways must agree wherever both can read, and a property test holds them to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.frontend.makeflow.document import Makeflow, MakeflowRule
from shoal.frontend.makeflow.lexer import Lexer
from shoal.frontend.source import Source

# Printable ASCII only in file lists: `str.split` and the lexer then mean the same by a blank.
_FILES = r"!%&()*+,\-./0-9;<?@A-Z\[\]^_`a-z{|}~ \t"
# Every pattern has one way to match a text, without possessive quantifiers (see `lexer.py`): each repeated part begins
# with a character that cannot stand in what is before it.
# The lexer's names may go on with letters beyond ASCII; then it must say where they end.
_REFERENCE = r"\$(?:[A-Za-z0-9_]+(?![A-Za-z0-9_]|[^\x00-\x7f])|\([A-Za-z0-9_]+\)|\{[A-Za-z0-9_]+\})"
# In double quotes a backslash has a meaning of its own, blanks at the start are dropped, and what single quotes enclose
# is not replaced.
_PLAIN_QUOTED = r"\"(?![ \t])[^\"\\$\n]*\""
_SINGLE_QUOTED = r"'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*'"
_QUOTED = rf"\"(?![ \t])[^\"\\$'\n]*(?:{_REFERENCE}[^\"\\$'\n]*)+\""
_SPECIAL = rf"{_REFERENCE}|\\[^\n \t]|{_PLAIN_QUOTED}|{_QUOTED}|{_SINGLE_QUOTED}"
_COMMAND = rf"[^\\\"'$#\n]*(?:(?:{_SPECIAL})[^\\\"'$#\n]*)*"
_OWN_VARIABLES = r"(?:@?[A-Za-z0-9_]+[ \t]*=[^\\\"'$#\n]*\n)*"
_RULE = re.compile(
    rf"(?![@ \t:]|\.[A-Z])([{_FILES}]*(?:{_REFERENCE}[{_FILES}]*)*):([={_FILES}]*(?:{_REFERENCE}[={_FILES}]*)*)\n"
    rf"({_OWN_VARIABLES})[ \t]+(?![ \t\n#]|LOCAL|MAKEFLOW)({_COMMAND})(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*"
)
_OWN_VARIABLE = re.compile(r"@?([A-Za-z0-9_]+)[ \t]*=[ \t]*([^\n]*)\n")
_REFERENCES = re.compile(f"({_REFERENCE})")
_FIXED = re.compile(rf"(\\.|{_SINGLE_QUOTED}|\"[^\"]*\")")
_BLANKS = re.compile(r"[ \t]+")
_ESCAPED = re.compile(r"\\(.)")
_PLAIN_FOR_FILES = re.compile(rf"[={_FILES}]*")
_PLAIN_FOR_COMMANDS = re.compile(r"[^\\\"'$#\n]*")
_OWN_KEPT = 10_000
_MODIFIERS = ("LOCAL", "MAKEFLOW")
_FAR_REACHING = ("CATEGORY", "SYMBOL", "BATCH_LOCAL")
"""Variables that change more of a rule than its variables."""


class PlainRules:
    """Reads plain rules of one source into one document."""

    def __init__(self, source: Source, makeflow: Makeflow, lexer: Lexer, lookup: Callable[[str], str | None]) -> None:
        self.source = source
        self.makeflow = makeflow
        self.lexer = lexer
        self.lookup = lookup
        self._place: tuple[str, int] = ("", -1)
        self._values: dict[str, tuple[str, int, bool]] = {}
        """By reference, at one place: the value, what it costs, and whether it is plain in a file list."""
        self._names: dict[str, str] = {}
        """Names met so far, so that each is kept once however many rules use it."""
        self._own: dict[str, tuple[tuple[str, str], ...]] = {}
        """Rules' own variables by their text, for the same reason."""

    def read(self, position: int, category: str, local: bool) -> int:
        """Takes the plain rules that stand here; returns where it stopped."""
        text, version = self.source.text, self.makeflow.variables.version
        match = _RULE.match(text, position)
        if match is None:
            return position
        if self._place != (category, version):
            self._place = (category, version)
            self._values.clear()
        add, keep = self.makeflow.rules.append, self._names.setdefault
        line = self.source.line_at(position)
        while match is not None:
            outputs, inputs, own, command = match.groups()
            if "$" in match[0]:
                expanded = self._expand(outputs, inputs, own, command, position)
                if expanded is None:
                    break
                outputs, inputs, command = expanded
            if command[-1] in " \t" or "  " in command or "\t" in command:
                command = _tidy(command)
            if "\\" in command:
                command = _ESCAPED.sub(r"\1", command) if "\\\\" in command else command.replace("\\", "")
                if command.startswith(_MODIFIERS):
                    break
            made, read = outputs.split(), inputs.split()
            rule = MakeflowRule(
                tuple(map(keep, made, made)), tuple(map(keep, read, read)), command, line, category, version, local
            )
            if own:
                rule.variables = self._own.get(own) or self._own_variables(own)
                if not rule.variables:
                    break
            add(rule)
            line += text.count("\n", position, match.end())
            position = match.end()
            match = _RULE.match(text, position)
        self.source.counted_position, self.source.counted_line = position, line
        return position

    def _expand(self, outputs: str, inputs: str, own: str, command: str, place: int) -> tuple[str, str, str] | None:
        """The parts of a rule with variables replaced, or None if only the lexer can say what they mean."""
        cost = 0
        if "$" in outputs or "$" in inputs:
            parts = _REFERENCES.split(f"{outputs}\n{inputs}")
            for index in range(1, len(parts), 2):
                found = self._values.get(parts[index]) or self._learn(parts[index])
                if found is None or not found[2]:
                    return None
                parts[index] = found[0]
                cost += found[1]
            outputs, inputs = "".join(parts).split("\n")
        if "$" in command and ("\\\\" in command or command.count("$") != command.count("\\$")):
            # Between single quotes and behind a backslash a dollar is only a dollar.
            parts = _pieces(command) if "'" in command or "\\" in command else _REFERENCES.split(command)
            for index, reference in enumerate(parts):
                if reference[:1] != "$":
                    continue
                found = self._values.get(reference) or self._learn(reference)
                if found is None or (own and reference.strip("$(){}") in own):
                    return None
                parts[index] = found[0]
                cost += found[1]
            command = "".join(parts).lstrip(" \t")
            if not command or command.startswith(_MODIFIERS):
                return None
        self.lexer.spend(place, cost)
        return outputs, inputs, command

    def _own_variables(self, text: str) -> tuple[tuple[str, str], ...]:
        """The variables a rule sets for itself; none if they change more of it than that."""
        variables = dict(_OWN_VARIABLE.findall(text))
        if any(map(variables.__contains__, _FAR_REACHING)):
            return ()
        keep = self._names.setdefault
        pairs = tuple((keep(name, name), keep(value, value)) for name, value in variables.items())
        if len(self._own) < _OWN_KEPT:
            self._own[text] = pairs
        return pairs

    def _learn(self, reference: str) -> tuple[str, int, bool] | None:
        """Looks a value up, once for all rules here; None if it is not plain."""
        value = self.lookup(reference.strip("$(){}"))
        if value is None or not _PLAIN_FOR_COMMANDS.fullmatch(value):
            return None
        plain_for_files = _PLAIN_FOR_FILES.fullmatch(value) is not None
        found = self._values[reference] = (value, self.lexer.cost_of(value), plain_for_files)
        return found


def _pieces(command: str) -> list[str]:
    """The command cut such that just the references start with a dollar."""
    pieces: list[str] = []
    for piece in _FIXED.split(command):
        if piece[:1] in ("'", "\\"):
            pieces.append(piece)
        else:
            pieces += _REFERENCES.split(piece)
    return pieces


def _tidy(command: str) -> str:
    """The command with runs of blanks made one, except in quotes, and none at its end."""
    command = command.rstrip(" \t")
    if "  " not in command and "\t" not in command:
        return command
    parts = _FIXED.split(command)
    parts[::2] = [_BLANKS.sub(" ", part) for part in parts[::2]]
    return "".join(parts)
