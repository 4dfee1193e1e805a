"""The functions of JX that need nothing but their arguments.

Each gets the list of its evaluated arguments and raises JxFailure if it cannot use them. `template`, `select`,
`project` and what looks outside need more, and stand in `evaluate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import takewhile

from shoal.frontend.jx.limits import BUDGET
from shoal.frontend.jx.operators import ordering_key, truncated
from shoal.frontend.jx.printing import plain
from shoal.frontend.jx.regex import matches
from shoal.frontend.jx.values import JxFailure, JxList, JxObject, Value, kind_of, pairs_of

_TEMPLATE_PART = re.compile(r"[^{}]+|\{\{|\}\}|\{[ \t\n\v\f\r]*([A-Za-z_][A-Za-z0-9_]*)[ \t\n\v\f\r]*\}")
_FLOAT_FORMATS = "eEfFgG"


def text_argument(arguments: list[Value], number: int, what: str) -> str:
    """The argument with this number, which must be a string."""
    value = arguments[number] if number < len(arguments) else None
    if not isinstance(value, str):
        raise JxFailure(f"{what} must be a string")
    return value


def count(arguments: list[Value], least: int, most: int) -> None:
    """Complains about too few or too many arguments."""
    if not least <= len(arguments) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise JxFailure(f"takes {wanted} argument{'' if wanted == '1' else 's'}, not {len(arguments)}")


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range(arguments: list[Value]) -> Value:
    numbers = [number for number in takewhile(_is_integer, arguments[:3]) if isinstance(number, int)]
    if not numbers:
        raise JxFailure("takes whole numbers: range(stop), range(start, stop) or range(start, stop, step)")
    if len(numbers) == 3 and numbers[2] == 0:
        raise JxFailure("the step must not be 0")
    found = range(*numbers)
    if found and abs(found[-1] - found[0]) // abs(found.step) >= BUDGET:
        raise JxFailure(f"yields more than {BUDGET} numbers")
    return JxList(found)


def _format(arguments: list[Value]) -> Value:
    pattern = text_argument(arguments, 0, "the format")
    rest = iter(arguments[1:])
    pieces: list[str] = []
    position = 0
    while (percent := pattern.find("%", position)) >= 0:
        pieces.append(pattern[position:percent])
        kind = pattern[percent + 1 : percent + 2]
        if not kind:
            raise JxFailure("the format ends in the middle of a %")
        pieces.append("%" if kind == "%" else _formatted(kind, rest))
        position = percent + 2
    pieces.append(pattern[position:])
    if next(rest, pieces) is not pieces:
        raise JxFailure("there are more values than the format takes")
    return "".join(pieces)


def _formatted(kind: str, rest: object) -> str:
    value: Value = next(rest, None)  # type: ignore[call-overload]  # an iterator of values
    if kind in "di" and kind_of(value) == "integer":
        return str(value)
    if kind in _FLOAT_FORMATS and isinstance(value, float):
        return f"%{kind}" % value
    if kind == "s" and isinstance(value, str):
        return value
    wanted = "a whole number" if kind in "di" else "a string" if kind == "s" else "a float"
    if kind not in "dis" + _FLOAT_FORMATS:
        raise JxFailure(f"there is no format %{kind}", remedy="it is one of %d %i %s %e %E %f %F %g %G %%")
    raise JxFailure(f"%{kind} takes {wanted}, not {'nothing' if value is None else kind_of(value)}")


def _join(arguments: list[Value]) -> Value:
    count(arguments, 1, 2)
    items = arguments[0]
    if not isinstance(items, list):
        raise JxFailure("the first argument must be a list")
    separator = text_argument(arguments, 1, "the separator") if len(arguments) > 1 else " "
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise JxFailure("all items of the list must be strings")
    if sum(map(len, texts)) + len(separator) * len(texts) > BUDGET:
        raise JxFailure(f"yields a string of more than {BUDGET} characters")
    return separator.join(texts)


def _rounded(rounding: Callable[[float], int]) -> Callable[[list[Value]], Value]:
    def function(arguments: list[Value]) -> Value:
        count(arguments, 1, 1)
        value = arguments[0]
        if isinstance(value, float):
            return value if math.isnan(value) or math.isinf(value) else math.copysign(float(rounding(value)), value)
        if isinstance(value, int) and not isinstance(value, bool):
            return truncated(float(value))
        raise JxFailure("takes a number")

    return function


def _basename(arguments: list[Value]) -> Value:
    count(arguments, 1, 2)
    path = text_argument(arguments, 0, "the path")
    suffix = text_argument(arguments, 1, "the suffix") if len(arguments) > 1 else ""
    name = path.rstrip("/").rpartition("/")[2] or ("/" if path else ".")
    return name.removesuffix(suffix)


def _dirname(arguments: list[Value]) -> Value:
    count(arguments, 1, 1)
    path = text_argument(arguments, 0, "the path")
    head = path.rstrip("/").rpartition("/")[0] if path.strip("/") else ""
    stripped = head.rstrip("/")
    if stripped:
        return stripped
    if not path.startswith("/"):
        return "."
    return "//" if path.startswith("//") and not path.startswith("///") else "/"


def _escape(arguments: list[Value]) -> Value:
    count(arguments, 1, 1)
    return '"' + re.sub(r'(["\\$`])', r"\\\1", text_argument(arguments, 0, "what is escaped")) + '"'


def _len(arguments: list[Value]) -> Value:
    if not arguments or not isinstance(arguments[0], list):
        raise JxFailure("takes a list")
    return len(arguments[0])


def _object_argument(arguments: list[Value]) -> list[tuple[str, Value]]:
    """The pairs of the only argument, last one first, as the original lists them."""
    count(arguments, 1, 1)
    if not isinstance(arguments[0], dict):
        raise JxFailure("takes an object")
    return list(pairs_of(arguments[0]))[::-1]


def _schema(arguments: list[Value]) -> Value:
    count(arguments, 1, 1)
    if not isinstance(arguments[0], list):
        raise JxFailure("takes a list of objects")
    kinds: dict[str, Value] = {}
    for item in arguments[0]:
        for key, value in pairs_of(item) if isinstance(item, dict) else ():
            kinds.setdefault(key, kind_of(value))
    return JxObject(list(kinds.items())[::-1])


def _like(arguments: list[Value]) -> Value:
    pattern = text_argument(arguments, 0, "the regular expression")
    text = text_argument(arguments, 1, "what it is compared with")
    count(arguments, 2, 2)
    return matches(ordering_key(pattern), ordering_key(text))


def expand_template(template: str, lookup: Callable[[str], Value]) -> str:
    """The template with `{name}` replaced; `{{` and `}}` stand for braces."""
    pieces: list[str] = []
    position = 0
    while position < len(template):
        match = _TEMPLATE_PART.match(template, position)
        if match is None:
            raise JxFailure(f"cannot read the template at {template[position : position + 20]!r}", "write {name}")
        position = match.end()
        if match[1] is None:
            pieces.append(match[0][:1] if match[0] in ("{{", "}}") else match[0])
            continue
        value = lookup(match[1])
        if isinstance(value, str):
            pieces.append(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            pieces.append(plain(value))
        else:
            raise JxFailure(f"{match[1]!r} is {kind_of(value)}: only numbers and strings fit into a template")
    return "".join(pieces)


FUNCTIONS: dict[str, Callable[[list[Value]], Value]] = {
    "range": _range,
    "format": _format,
    "join": _join,
    "ceil": _rounded(math.ceil),
    "floor": _rounded(math.floor),
    "basename": _basename,
    "dirname": _dirname,
    "escape": _escape,
    "len": _len,
    "keys": lambda arguments: JxList([key for key, _ in _object_argument(arguments)]),
    "values": lambda arguments: JxList([value for _, value in _object_argument(arguments)]),
    "items": lambda arguments: JxList([JxList([key, value]) for key, value in _object_argument(arguments)]),
    "schema": _schema,
    "like": _like,
}
