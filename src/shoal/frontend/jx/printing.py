"""Values as text, byte for byte as the original prints them.

Its habits: floats with up to 16 digits and without a trailing `.0`, and `'` escaped as well. The one exception: what is
not ASCII is printed as it is, for the original's own escapes of it can be read by nobody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from shoal.errors import InputError
from shoal.frontend.jx.limits import BUDGET
from shoal.frontend.jx.values import Value, pairs_of, weight_of

_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_ESCAPES = {
    '"': '\\"',
    "'": "\\'",
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def quoted(text: str) -> str:
    """A string in its quotes."""
    return '"' + _SPECIAL.sub(lambda found: _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", text) + '"'


def plain(value: bool | int | float | None) -> str:
    """A value that is neither string nor list nor object."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.16g}"


def to_json(value: Value, pretty: bool = False) -> str:
    """The value on one line, or laid out with one item on each line."""
    if weight_of(value) > BUDGET:
        raise InputError(f"the value is too large to be printed: it holds more than {BUDGET} values")
    pieces: list[str] = []
    levels = [_pretty(value, 0) if pretty else _compact(value)]
    while levels:  # one generator for each level of nesting, so that depth costs no stack
        for piece in levels[-1]:
            if isinstance(piece, str):
                pieces.append(piece)
                continue
            inner, level = piece
            levels.append(_pretty(inner, level) if pretty else _compact(inner))
            break
        else:
            levels.pop()
    return "".join(pieces)


def _compact(value: Value) -> Iterator[str | tuple[Value, int]]:
    """The pieces of a value; a tuple stands for a value inside of it."""
    if isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield item, 0
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(pairs_of(value)):
            yield f"{',' if number else ''}{quoted(key)}:"
            yield item, 0
        yield "}"
    else:
        yield quoted(value) if isinstance(value, str) else plain(value)


def _pretty(value: Value, level: int) -> Iterator[str | tuple[Value, int]]:
    indent = "  " * level
    if isinstance(value, list):
        yield f"\n{indent}[\n"
        for number, item in enumerate(value):
            yield (",\n" if number else "") + indent + "  "
            yield item, level + 1
        yield f"\n{indent}]" if value else f"{indent}]"
    elif isinstance(value, dict):
        yield f"\n{indent}{{\n"
        for number, (key, item) in enumerate(pairs_of(value)):
            yield (",\n" if number else "") + f"{indent}  {quoted(key)}:"
            yield item, level + 2
        yield f"\n{indent}}}" if value else f"{indent}}}"
    else:
        yield quoted(value) if isinstance(value, str) else plain(value)
