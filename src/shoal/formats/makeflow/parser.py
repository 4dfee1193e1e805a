"""Lines to rules: what each line of a Makeflow is, and what it does.

Rules without surprises are taken whole, many in a row, by `PlainRules`; everything else goes line by line through the
exact lexer. Scopes follow the original: an assignment between file list and command belongs to that rule, any other to
the open category.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from shoal.errors import InputError
from shoal.formats.makeflow.document import (
    DEFAULT_CATEGORY,
    DIRECTIVE,
    AllocationMode,
    Makeflow,
    MakeflowCategory,
    MakeflowRule,
    Variables,
    read_directive,
    size_of,
)
from shoal.formats.makeflow.lexer import (
    NAME_CHARACTERS,
    MakeflowLexer,
    Token,
    note_on_backslashes,
    skip_blanks,
    skip_line,
)
from shoal.formats.source_text import SourceText

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
_QUOTED_WORD = rf"\"(?![ \t])[^\"\\$'\n]*(?:{_REFERENCE}[^\"\\$'\n]*)+\""
_SPECIAL = rf"{_REFERENCE}|\\[^\n \t]|{_PLAIN_QUOTED}|{_QUOTED_WORD}|{_SINGLE_QUOTED}"
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

    def __init__(
        self, source: SourceText, makeflow: Makeflow, lexer: MakeflowLexer, lookup: Callable[[str], str | None]
    ) -> None:
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
    return MakeflowParser(SourceText(source, text), environment).parse()


class MakeflowParser:
    """One pass over one file."""

    def __init__(self, source: SourceText, environment: Mapping[str, str]) -> None:
        self.source = source
        self.text = source.text
        self.variables = Variables(environment, DEFAULT_CATEGORY)
        self.makeflow = Makeflow(source.name, self.variables)
        self.category = DEFAULT_CATEGORY
        self.makeflow.categories[DEFAULT_CATEGORY] = MakeflowCategory(DEFAULT_CATEGORY)
        self.rule_variables: dict[str, str] | None = None
        """Variables of the rule being read; None outside rules."""
        self.rule_category = DEFAULT_CATEGORY
        self.lexer = MakeflowLexer(source, self._lookup)
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
            self.makeflow.categories[name] = MakeflowCategory(name)
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
            self.makeflow.categories[self.category].mode = AllocationMode[directive.value]
        else:
            self._assign(directive.name, directive.value)
        return position
