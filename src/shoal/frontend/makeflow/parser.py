"""Lines to rules: what each line of a Makeflow is, and what it does.

Rules without surprises are taken whole, many in a row, by `PlainRules`; everything else goes line by line through the
exact lexer. Scopes follow the original: an assignment between file list and command belongs to that rule, any other to
the open category.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.errors import InputError
from shoal.frontend.makeflow.directives import DIRECTIVE, read_directive, size_of
from shoal.frontend.makeflow.document import DEFAULT_CATEGORY, Allocation, Category, Makeflow, MakeflowRule
from shoal.frontend.makeflow.lexer import NAME_CHARACTERS, Lexer, Token, note_on_backslashes, skip_blanks, skip_line
from shoal.frontend.makeflow.plain import PlainRules
from shoal.frontend.makeflow.variables import Variables
from shoal.frontend.source import Source

# Leads to the first `:` or `=` outside quotes, which decides what a line is.
_QUOTED = r"\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'"
_LINE_START = re.compile(rf"[^\\\"':=\n#]*(?:(?:\\.|{_QUOTED})[^\\\"':=\n#]*)*", re.DOTALL)
_NAME = re.compile(NAME_CHARACTERS + "+")
_COLON_ASSIGNMENT = re.compile(rf"{NAME_CHARACTERS}+[ \t]*:=")
_MODIFIER = re.compile(r"(LOCAL|MAKEFLOW)(?: |\Z)")
_WORKFLOW_NAME = re.compile(r"\"([^\"]+)\"|'([^']+)'|([^\s\"'<>|&;]+)")
_TRUE = re.compile(r"(?:true|yes|0*[1-9][0-9]*)\Z", re.IGNORECASE)


def parse_makeflow(text: bytes | str, *, source: str, environment: Mapping[str, str]) -> Makeflow:
    """Reads a whole file; raises `InputError` at the first thing that cannot be understood."""
    return Parser(Source(source, text), environment).parse()


class Parser:
    """One pass over one file."""

    def __init__(self, source: Source, environment: Mapping[str, str]) -> None:
        self.source = source
        self.text = source.text
        self.variables = Variables(environment, DEFAULT_CATEGORY)
        self.makeflow = Makeflow(source.name, self.variables)
        self.category = DEFAULT_CATEGORY
        self.makeflow.categories[DEFAULT_CATEGORY] = Category(DEFAULT_CATEGORY)
        self.rule_variables: dict[str, str] | None = None
        """Variables of the rule being read; None outside rules."""
        self.rule_category = DEFAULT_CATEGORY
        self.lexer = Lexer(source, self._lookup)
        self.plain_rules = PlainRules(source, self.makeflow, self.lexer, self._lookup)

    def parse(self) -> Makeflow:
        position = 0
        while position < len(self.text):
            position = self.plain_rules.read(position, self.category, self._batch_local())
            if position < len(self.text):
                position = self._line(position)
        makeflow = self.makeflow
        makeflow.inputs = self._file_names("MAKEFLOW_INPUTS")
        makeflow.outputs = self._file_names("MAKEFLOW_OUTPUTS")
        makeflow.notes += filter(None, [note_on_backslashes(self.source)])
        return makeflow

    def _file_names(self, variable: str) -> tuple[str, ...]:
        value = self.variables.latest(DEFAULT_CATEGORY, variable) or ""
        return tuple(name for name in (word.strip("\"'") for word in value.split()) if name)

    def _line(self, position: int) -> int:
        """Reads one line outside rules, or a whole rule; returns where the next line starts."""
        character = self.text[position]
        if character == "\n":
            return position + 1
        if character == "#":
            return skip_line(self.text, position)
        if character in " \t":
            command, after = self.lexer.command(position)
            if command:
                raise self._stray_command(position)
            return after
        if character == "@":
            return self._assignment(position + 1)
        if DIRECTIVE.match(self.text, position):
            return self._directive(position)
        kind = self._kind_of_line(position)
        if kind == ":":
            return self._rule(position)
        if self._is_export(position):
            return self._export(position, assigns=kind == "=")
        if kind == "=":
            return self._assignment(position)
        raise self._not_understood(position)

    def _kind_of_line(self, position: int) -> str:
        """The first `:` or `=` outside quotes, or nothing. An open quote at the end of the file is an error here."""
        start = _LINE_START.match(self.text, position)
        end = start.end() if start else position
        kind = self.text[end : end + 1]
        if kind in ('"', "'") and kind:
            raise self.source.error(end, f"this {kind} has no closing {kind}", remedy="close it, or take it out")
        return kind if kind in (":", "=") else ""

    def _is_export(self, position: int) -> bool:
        return self.text.startswith("export", position) and self.text[position + 6 : position + 7] in (
            "",
            " ",
            "\t",
            "\n",
        )

    def _stray_command(self, position: int) -> InputError:
        if self.makeflow.rules:
            message = "this line is a second command, and a rule has exactly one"
            remedy = "join commands with && or ; on one line, or start lines that are no commands in the first column"
        else:
            message = "this line starts with a blank, so it is a command, but no rule stands before it"
            remedy = "start it in the first column, or write 'outputs: inputs' above it"
        return self.source.error(skip_blanks(self.text, position), message, remedy=remedy)

    def _not_understood(self, position: int) -> InputError:
        line = self.text[position : position + 40].partition("\n")[0]
        shown = line.replace("\t", " ").partition(" ")[0]
        if shown.startswith("."):
            return self.source.error(
                position, f"there is no directive {shown!r}", remedy="use .MAKEFLOW, .SIZE or .UMBRELLA"
            )
        return self.source.error(
            position,
            f"{shown!r} starts no rule, variable, export or directive",
            remedy="write 'outputs: inputs', 'NAME=value' or 'export NAME'; commands start with a tab",
        )

    def _rule(self, start: int) -> int:
        """Reads a file list, the rule's own variables and its command."""
        line = self.source.line_at(start)
        tokens, position = self.lexer.words(start)
        outputs, inputs, renames = self._split_files(tokens)
        self.rule_variables, self.rule_category = {}, self.category
        command, place = "", start
        while not command:
            if position >= len(self.text):
                raise self._no_command(start)
            if self.text[position] in " \t":
                place = skip_blanks(self.text, position)
                command, position = self.lexer.command(place)
            else:
                position = self._line_in_rule(position, start)
        local = self._batch_local()
        rule = MakeflowRule(outputs, inputs, command, line, self.rule_category, self.variables.version, local)
        rule.variables = tuple(self.rule_variables.items())
        rule.renames = renames
        self.rule_variables = None
        self._take_modifiers(rule, place)
        self.makeflow.rules.append(rule)
        return position

    def _line_in_rule(self, position: int, start: int) -> int:
        character = self.text[position]
        if character == "\n":
            return position + 1
        if character == "#":
            return skip_line(self.text, position)
        if character == "@":
            return self._assignment(position + 1)
        if DIRECTIVE.match(self.text, position):
            return self._directive(position)
        kind = self._kind_of_line(position)
        if kind == "=" and not self._is_export(position):
            return self._assignment(position)
        raise self._no_command(start)

    def _no_command(self, start: int) -> InputError:
        remedy = "write it on the next line, starting with a tab"
        if _COLON_ASSIGNMENT.match(self.text, start):
            remedy = "if this is meant to be a variable, write = in place of :="
        return self.source.error(start, "this rule has no command", remedy=remedy)

    def _split_files(self, tokens: list[Token]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Outputs, inputs and renames. A second colon separates nothing, as in the original."""
        outputs: list[str] = []
        inputs: list[str] = []
        renames: list[tuple[str, str]] = []
        names, index = outputs, 0
        while index < len(tokens):
            kind, word, place = tokens[index]
            index += 1
            if kind == ":":
                names = inputs
            elif kind == "->":
                raise self.source.error(place, "there is no file before this ->", remedy="write 'here->there'")
            else:
                names.append(word)
                if index < len(tokens) and tokens[index][0] == "->":
                    if index + 1 == len(tokens) or tokens[index + 1][0] != "word":
                        raise self.source.error(tokens[index][2], "there is no name after this ->")
                    renames.append((word, tokens[index + 1][1]))
                    index += 2
        return tuple(outputs), tuple(inputs), tuple(renames)

    def _take_modifiers(self, rule: MakeflowRule, place: int) -> None:
        """Takes `LOCAL` and `MAKEFLOW` off the front of the command, in any order and number."""
        command, nested = rule.command, False
        while modifier := _MODIFIER.match(command):
            rule.local = rule.local or modifier[1] == "LOCAL"
            nested = nested or modifier[1] == "MAKEFLOW"
            command = command[modifier.end() :]
        rule.command = command
        if nested:
            name = _WORKFLOW_NAME.fullmatch(command)
            if name is None:
                raise self.source.error(
                    place, "MAKEFLOW takes the name of one workflow file, nothing less and nothing more"
                )
            rule.command, rule.workflow = "", name[1] or name[2] or name[3]

    def _batch_local(self) -> bool:
        value = self._lookup("BATCH_LOCAL")
        return value is not None and _TRUE.match(value.strip("\"' \t")) is not None

    def _lookup(self, name: str) -> str | None:
        if self.rule_variables is not None and name in self.rule_variables:
            return self.rule_variables[name]
        return self.variables.latest(self.category, name)

    def _assignment(self, position: int) -> int:
        """Reads `NAME=value` or `NAME+=value` and carries it out; returns where the next line starts."""
        return self._named_assignment(skip_blanks(self.text, position))[1]

    def _named_assignment(self, start: int) -> tuple[str, int]:
        name = _NAME.match(self.text, start)
        if name is None:
            raise self.source.error(start, "a variable name is missing here", remedy="write NAME=value")
        position = skip_blanks(self.text, name.end())
        operator = "="
        if not self.text.startswith("=", position):
            operator = self.text[position : position + 2]
            if not operator.endswith("="):
                raise self.source.error(
                    position, f"there is no = after the name {name[0]!r}", remedy="write NAME=value"
                )
            if operator != "+=":
                raise self.source.error(position, f"{operator!r} assigns nothing here", remedy="use = or +=")
        value, after = self.lexer.value(position + len(operator))
        if operator == "=":
            self._assign(name[0], value)
        else:
            self._append(name[0], value, start)
        return name[0], after

    def _assign(self, name: str, value: str) -> None:
        if name in ("CATEGORY", "SYMBOL"):
            value = value.strip() or DEFAULT_CATEGORY
            self._open_category(value)
        if self.rule_variables is not None:
            self.rule_variables[name] = value
        else:
            self.variables.assign(DEFAULT_CATEGORY if name == "CATEGORY" else self.category, name, value)

    def _append(self, name: str, value: str, place: int) -> None:
        if self.rule_variables is None:
            self.variables.append(name, value)
            return
        known = self.rule_variables.get(name)
        if known is None:
            known = self.variables.latest(DEFAULT_CATEGORY, name)
        self.rule_variables[name] = value if known is None else f"{known} {value}"
        self.lexer.charge(place, self.rule_variables[name])

    def _open_category(self, name: str) -> None:
        """Opens a category for what follows, or for the rule being read; opening one again keeps what it has."""
        if name not in self.makeflow.categories:
            self.makeflow.categories[name] = Category(name)
        if self.rule_variables is None:
            self.category = name
        else:
            self.rule_category = name

    def _export(self, start: int, *, assigns: bool) -> int:
        position = skip_blanks(self.text, start + len("export"))
        if assigns:
            name, position = self._named_assignment(position)
            self.makeflow.exports[name] = None
            return position
        count = 0
        while position < len(self.text) and self.text[position] not in "\n#":
            found = _NAME.match(self.text, position)
            if found is None:
                raise self.source.error(position, "the name of a variable is expected here")
            self.makeflow.exports[found[0]] = None
            count += 1
            position = skip_blanks(self.text, found.end())
        if not count:
            raise self.source.error(start, "export needs the names of variables", remedy="write 'export NAME'")
        return skip_line(self.text, position)

    def _directive(self, start: int) -> int:
        tokens, position = self.lexer.words(start, marks=False)
        directive = read_directive(self.source, start, tokens)
        if directive.kind == "size":
            self.makeflow.sizes[directive.name] = size_of(directive.value) or 0
        elif directive.kind == "mode":
            self.makeflow.categories[self.category].mode = Allocation[directive.value]
        else:
            self._assign(directive.name, directive.value)
        return position
