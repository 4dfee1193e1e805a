"""How names, values and commands must be written in a Makeflow for the lexer to hand back the very same text.

The opposite of `lexer`. Everything is written so that the original reads it the same way, with one exception: a line
end outside quotes can only come from a variable, and the original ends the command there.
"""

from __future__ import annotations

import re

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
