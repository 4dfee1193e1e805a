"""The parser of Makeflows: a fast path for plain rules, and an exact one for everything else.

`PlainRules` parses consecutive rules without special syntax with one regular expression; all other lines go through the
exact lexer, line by line. Scopes are those of the original: an assignment between file list and command belongs to that
rule, any other to the current category.
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

# Only printable ASCII in file lists: then `str.split` and the lexer agree on what a blank is.
_FILES = r"!%&()*+,\-./0-9;<?@A-Z\[\]^_`a-z{|}~ \t"
# Every pattern can match a text in one way only, without possessive quantifiers (see `lexer.py`): each repeated part
# begins with a character that the part before it excludes.
# Names can continue with letters beyond ASCII; then the lexer must find their end.
_REFERENCE = r"\$(?:[A-Za-z0-9_]+(?![A-Za-z0-9_]|[^\x00-\x7f])|\([A-Za-z0-9_]+\)|\{[A-Za-z0-9_]+\})"
# In double quotes a backslash is special, blanks at the start are dropped, and nothing is substituted inside single
# quotes.
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
"""Variables of a rule that also affect its category or whether it runs locally."""


class PlainRules:
    """Parses plain rules of one source into one document: the fast path."""

    def __init__(
        self, source: SourceText, makeflow: Makeflow, lexer: MakeflowLexer, lookup: Callable[[str], str | None]
    ) -> None:
        self.source = source
        self.makeflow = makeflow
        self.lexer = lexer
        self.lookup = lookup
        self._place: tuple[str, int] = ("", -1)
        self._values: dict[str, tuple[str, int, bool]] = {}
        """Cache for one category and version, by reference: the value, its cost, and whether it is plain in file
        lists."""
        self._names: dict[str, str] = {}
        """All names so far, so that each is stored once, however many rules use it."""
        self._own: dict[str, tuple[tuple[str, str], ...]] = {}
        """Variables of rules by their text, each stored once."""

    def read(self, position: int, category: str, local: bool) -> int:
        """Parses the plain rules from `position` on; returns the position of the first line it cannot parse."""
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
                command = _collapse_blanks(command)
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
        """Returns the parts of a rule with variables substituted, or None if the exact lexer is needed."""
        cost = 0
        if "$" in outputs or "$" in inputs:
            parts = _REFERENCES.split(f"{outputs}\n{inputs}")
            for index in range(1, len(parts), 2):
                found = self._values.get(parts[index]) or self._cache_value(parts[index])
                if found is None or not found[2]:
                    return None
                parts[index] = found[0]
                cost += found[1]
            outputs, inputs = "".join(parts).split("\n")
        if "$" in command and ("\\\\" in command or command.count("$") != command.count("\\$")):
            # Inside single quotes and after a backslash a dollar is literal.
            parts = _pieces(command) if "'" in command or "\\" in command else _REFERENCES.split(command)
            for index, reference in enumerate(parts):
                if reference[:1] != "$":
                    continue
                found = self._values.get(reference) or self._cache_value(reference)
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
        """Returns the variables of a rule; none if one of them affects more than the rule's variables."""
        variables = dict(_OWN_VARIABLE.findall(text))
        if any(map(variables.__contains__, _FAR_REACHING)):
            return ()
        keep = self._names.setdefault
        pairs = tuple((keep(name, name), keep(value, value)) for name, value in variables.items())
        if len(self._own) < _OWN_KEPT:
            self._own[text] = pairs
        return pairs

    def _cache_value(self, reference: str) -> tuple[str, int, bool] | None:
        """Looks up a value and caches it for the following rules; None if the value is not plain."""
        value = self.lookup(reference.strip("$(){}"))
        if value is None or not _PLAIN_FOR_COMMANDS.fullmatch(value):
            return None
        plain_for_files = _PLAIN_FOR_FILES.fullmatch(value) is not None
        found = self._values[reference] = (value, self.lexer.cost_of(value), plain_for_files)
        return found


def _pieces(command: str) -> list[str]:
    """Splits a command so that exactly the references to variables start with a dollar."""
    pieces: list[str] = []
    for piece in _FIXED.split(command):
        if piece[:1] in ("'", "\\"):
            pieces.append(piece)
        else:
            pieces += _REFERENCES.split(piece)
    return pieces


def _collapse_blanks(command: str) -> str:
    """Collapses runs of blanks outside quotes, and drops blanks at the end."""
    command = command.rstrip(" \t")
    if "  " not in command and "\t" not in command:
        return command
    parts = _FIXED.split(command)
    parts[::2] = [_BLANKS.sub(" ", part) for part in parts[::2]]
    return "".join(parts)


# Matches up to the first `:` or `=` outside quotes, which determines the kind of a line.
_QUOTED = r"\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'"
_LINE_START = re.compile(rf"[^\\\"':=\n#]*(?:(?:\\.|{_QUOTED})[^\\\"':=\n#]*)*", re.DOTALL)
_NAME = re.compile(NAME_CHARACTERS + "+")
_COLON_ASSIGNMENT = re.compile(rf"{NAME_CHARACTERS}+[ \t]*:=")
_MODIFIER = re.compile(r"(LOCAL|MAKEFLOW)(?: |\Z)")
_WORKFLOW_NAME = re.compile(r"\"([^\"]+)\"|'([^']+)'|([^\s\"'<>|&;]+)")
_TRUE = re.compile(r"(?:true|yes|0*[1-9][0-9]*)\Z", re.IGNORECASE)


def parse_makeflow(text: bytes | str, *, source: str, environment: Mapping[str, str]) -> Makeflow:
    """Parses a whole file; raises `InputError` at the first syntax error."""
    return MakeflowParser(SourceText(source, text), environment).parse()


class MakeflowParser:
    """Parses one file in one pass."""

    def __init__(self, source: SourceText, environment: Mapping[str, str]) -> None:
        self.source = source
        self.text = source.text
        self.variables = Variables(environment, DEFAULT_CATEGORY)
        self.makeflow = Makeflow(source.name, self.variables)
        self.category = DEFAULT_CATEGORY
        self.makeflow.categories[DEFAULT_CATEGORY] = MakeflowCategory(DEFAULT_CATEGORY)
        self.rule_variables: dict[str, str] | None = None
        """Variables of the current rule; None outside rules."""
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
        """Parses one line outside rules, or a whole rule; returns the start of the next line."""
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
        """Returns the first `:` or `=` outside quotes, or "". Raises if a quote is still open at the end of the
        file."""
        start = _LINE_START.match(self.text, position)
        end = start.end() if start else position
        kind = self.text[end : end + 1]
        if kind in ('"', "'") and kind:
            raise self.source.error(end, f"this {kind} has no closing {kind}", remedy="close or remove it")
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
            message = "this line is a second command, but a rule has exactly one"
            remedy = "join commands with && or ; on one line, or start lines that are not commands in the first column"
        else:
            message = "this line starts with a blank, so it is a command, but it does not follow a rule"
            remedy = "start it in the first column, or write 'outputs: inputs' above it"
        return self.source.error(skip_blanks(self.text, position), message, remedy=remedy)

    def _not_understood(self, position: int) -> InputError:
        line = self.text[position : position + 40].partition("\n")[0]
        shown = line.replace("\t", " ").partition(" ")[0]
        if shown.startswith("."):
            return self.source.error(
                position, f"unknown directive {shown!r}", remedy="use .MAKEFLOW, .SIZE or .UMBRELLA"
            )
        return self.source.error(
            position,
            f"expected a rule, variable, export or directive, not {shown!r}",
            remedy="write 'outputs: inputs', 'NAME=value' or 'export NAME'; commands start with a tab",
        )

    def _rule(self, start: int) -> int:
        """Parses a file list, the rule's own variables and its command."""
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
        """Splits tokens into outputs, inputs and renames. A second colon has no effect, as in the original."""
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
                raise self.source.error(place, "expected a file before ->", remedy="write 'local->remote'")
            else:
                names.append(word)
                if index < len(tokens) and tokens[index][0] == "->":
                    if index + 1 == len(tokens) or tokens[index + 1][0] != "word":
                        raise self.source.error(tokens[index][2], "expected a name after ->")
                    renames.append((word, tokens[index + 1][1]))
                    index += 2
        return tuple(outputs), tuple(inputs), tuple(renames)

    def _take_modifiers(self, rule: MakeflowRule, place: int) -> None:
        """Removes `LOCAL` and `MAKEFLOW` from the start of the command, in any order and number."""
        command, nested = rule.command, False
        while modifier := _MODIFIER.match(command):
            rule.local = rule.local or modifier[1] == "LOCAL"
            nested = nested or modifier[1] == "MAKEFLOW"
            command = command[modifier.end() :]
        rule.command = command
        if nested:
            name = _WORKFLOW_NAME.fullmatch(command)
            if name is None:
                raise self.source.error(place, "MAKEFLOW takes exactly one name of a workflow file")
            rule.command, rule.workflow = "", name[1] or name[2] or name[3]

    def _batch_local(self) -> bool:
        value = self._lookup("BATCH_LOCAL")
        return value is not None and _TRUE.match(value.strip("\"' \t")) is not None

    def _lookup(self, name: str) -> str | None:
        if self.rule_variables is not None and name in self.rule_variables:
            return self.rule_variables[name]
        return self.variables.latest(self.category, name)

    def _assignment(self, position: int) -> int:
        """Parses and applies `NAME=value` or `NAME+=value`; returns the start of the next line."""
        return self._named_assignment(skip_blanks(self.text, position))[1]

    def _named_assignment(self, start: int) -> tuple[str, int]:
        name = _NAME.match(self.text, start)
        if name is None:
            raise self.source.error(start, "expected the name of a variable", remedy="write NAME=value")
        position = skip_blanks(self.text, name.end())
        operator = "="
        if not self.text.startswith("=", position):
            operator = self.text[position : position + 2]
            if not operator.endswith("="):
                raise self.source.error(position, f"expected = after the name {name[0]!r}", remedy="write NAME=value")
            if operator != "+=":
                raise self.source.error(position, f"unknown operator {operator!r}", remedy="use = or +=")
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
        """Makes a category the current one, or that of the current rule; an existing category keeps its variables."""
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
                raise self.source.error(position, "expected the name of a variable")
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
