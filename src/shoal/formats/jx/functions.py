"""The operators and functions of JX, with POSIX regular expressions and `%` formats.

Each function takes the list of its evaluated arguments and raises `JxFailure` if they are invalid. Functions that need
the evaluator or external files (`template`, `select`, `where`, `project`, `listdir`, `fetch`) are in `evaluation`.
Integers are 64-bit and wrap around, as in the original.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile

from shoal.formats.jx.printer import plain
from shoal.formats.jx.values import BUDGET, JxFailure, JxList, JxObject, Value, kind_of, pairs_of, same

_CLASSES = {
    b"alpha": b"a-zA-Z",
    b"digit": b"0-9",
    b"alnum": b"a-zA-Z0-9",
    b"upper": b"A-Z",
    b"lower": b"a-z",
    b"space": rb" \t\n\r\f\v",
    b"blank": rb" \t",
    b"punct": rb"!-/:-@\[-`{-~",
    b"print": rb" -~",
    b"graph": rb"!-~",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"xdigit": b"0-9A-Fa-f",
}
_GNU_ESCAPES = {
    b"w": b"[A-Za-z0-9_]",
    b"W": b"[^A-Za-z0-9_]",
    b"s": rb"[ \t\n\r\f\v]",
    b"S": rb"[^ \t\n\r\f\v]",
    b"b": rb"\b",
    b"B": rb"\B",
    b"<": rb"\b(?=[A-Za-z0-9_])",
    b">": rb"\b(?<=[A-Za-z0-9_])",
    b"`": rb"\A",
    b"'": rb"\Z",
}
_NOT_REPEATABLE = (b"|", b"^", *(_GNU_ESCAPES[name] for name in (b"b", b"B", b"<", b">", b"`", b"'")))
_INTERVAL = re.compile(rb"\{(\d*)(,?)(\d*)\}")
_BRACKET_PART = re.compile(rb"\[:(\w*):\]|\[([.=])(.)\2\]|(.)", re.DOTALL)
_MOST_REPEATS = 32767


class _Refused(Exception):  # noqa: N818  # a pattern that is invalid in POSIX
    pass


def matches(pattern: bytes, text: bytes) -> bool:
    """Whether the POSIX extended regular expression matches anywhere in the text; False if it is invalid."""
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(text) is not None


@lru_cache(maxsize=64)
def _compiled(pattern: bytes) -> re.Pattern[bytes] | None:
    try:
        return re.compile(_Translator(pattern).translate(), re.DOTALL)
    except (_Refused, re.error, OverflowError, RecursionError):
        return None


class _Translator:
    """Translates a POSIX extended regular expression to Python's syntax.

    Each atom is put into a group before it is repeated, because POSIX allows repeats of repeats.
    """

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.position = 0
        self.closed_groups = 0

    def translate(self) -> bytes:
        frames: list[list[bytes]] = [[]]
        while self.position < len(self.pattern):
            found = self.pattern[self.position : self.position + 1]
            pieces = frames[-1]
            self.position += 1
            if found == b"(":
                frames.append([])
            elif found == b")" and len(frames) > 1:
                inner = b"".join(frames.pop())
                frames[-1].append(b"(" + inner + b")")
                self.closed_groups += 1
            elif found in b"*+?" or (found == b"{" and self._interval()):
                self._repeat(pieces, found)
            else:
                pieces.append(self._atom(found))
        if len(frames) > 1:
            raise _Refused
        return b"".join(frames[0])

    def _interval(self) -> bool:
        match = _INTERVAL.match(self.pattern, self.position - 1)
        if match is None:
            raise _Refused
        return True

    def _repeat(self, pieces: list[bytes], found: bytes) -> None:
        suffix = found
        if found == b"{":
            match = _INTERVAL.match(self.pattern, self.position - 1)
            assert match is not None
            self.position = match.end()
            low, comma, high = match.groups()
            if (not low and not comma) or max(int(low or 0), int(high or 0)) > _MOST_REPEATS:
                raise _Refused
            suffix = b"{" + (low or b"0") + comma + high + b"}"
        if not pieces or pieces[-1] in _NOT_REPEATABLE:
            raise _Refused
        pieces[-1] = b"(?:" + pieces[-1] + b")" + suffix

    def _atom(self, found: bytes) -> bytes:
        if found == b"\\":
            return self._escape()
        if found == b"[":
            return self._bracket()
        if found in (b"|", b"^", b"."):
            return found
        return rb"\Z" if found == b"$" else re.escape(found)

    def _escape(self) -> bytes:
        found = self.pattern[self.position : self.position + 1]
        self.position += 1
        if not found:
            raise _Refused
        if found in b"123456789":
            if int(found) > self.closed_groups:
                raise _Refused
            return b"(?:\\" + found + b")"
        return _GNU_ESCAPES.get(found) or re.escape(found)

    def _bracket(self) -> bytes:
        negated = self.pattern.startswith(b"^", self.position)
        self.position += negated
        first = True
        parts: list[bytes] = []
        while first or not self.pattern.startswith(b"]", self.position):
            match = _BRACKET_PART.match(self.pattern, self.position)
            if match is None:
                raise _Refused
            self.position = match.end()
            name, _, collating, single = match.groups()
            if name is not None:
                if name not in _CLASSES:
                    raise _Refused
                parts.append(_CLASSES[name])
            elif single == b"-" and not first and not self.pattern.startswith(b"]", self.position):
                parts.append(b"-")
            else:
                parts.append(re.escape(collating or single))
            first = False
        self.position += 1
        return b"[" + (b"^" if negated else b"") + b"".join(parts) + b"]"


_COMPARE: dict[str, Callable[..., bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_HALF = 2**63


def wrapped(number: int) -> int:
    """Wraps a number around to a signed 64-bit integer."""
    return (number + _HALF) % (2 * _HALF) - _HALF


def truncated(number: float) -> int:
    """Converts a float to an integer like the processor: a value out of range becomes the smallest integer."""
    if math.isnan(number) or not -_HALF <= number < _HALF:
        return -_HALF
    return int(number)


def apply_unary(sign: str, value: Value) -> Value:
    if isinstance(value, bool):
        if sign == "not":
            return not value
    elif isinstance(value, (int, float)) and sign != "not":
        return apply_binary(sign, type(value)(0), value)
    elif isinstance(value, str) and sign == "+":
        return value
    raise _unsupported(sign, value)


def apply_binary(sign: str, left: Value, right: Value) -> Value:
    ours, theirs = kind_of(left), kind_of(right)
    if ours != theirs:
        if isinstance(left, int) and ours == "integer" and theirs == "float":
            left, ours = float(left), theirs
        elif isinstance(right, int) and theirs == "integer" and ours == "float":
            right = float(right)
        elif sign in ("==", "!="):
            return sign == "!="
        elif sign == "+" and "string" in (ours, theirs):
            return _joined(left, right)
        else:
            raise _mismatch(sign, left, right)
    return _APPLY[ours](sign, left, right)


def ordering_key(text: str) -> bytes:
    """Returns the bytes by which strings are compared."""
    return text.encode("utf-8", "surrogatepass")


def _unsupported(sign: str, value: Value) -> JxFailure:
    return JxFailure(f"{sign!r} cannot be used on {_a(value)}")


def _mismatch(sign: str, left: Value, right: Value) -> JxFailure:
    return JxFailure(f"{sign!r} cannot be used on {_a(left)} and {_a(right)}")


def _a(value: Value) -> str:
    kind = kind_of(value)
    return kind if value is None else f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _joined(left: Value, right: Value) -> str:
    texts: list[str] = []
    for value in (left, right):
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, (bool, int, float)):
            texts.append(plain(value))
        else:
            raise _mismatch("+", left, right)
    return "".join(texts)


def _on_null(sign: str, left: None, right: None) -> Value:
    if sign in ("==", "!="):
        return sign == "=="
    raise _unsupported(sign, left)


def _on_booleans(sign: str, left: bool, right: bool) -> Value:
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    if sign == "and":
        return left and right
    if sign == "or":
        return left or right
    raise _unsupported(sign, left)


def _on_integers(sign: str, left: int, right: int) -> Value:
    if sign in _COMPARE:
        return _COMPARE[sign](left, right)
    if sign in ("+", "-", "*"):
        return wrapped(left + right if sign == "+" else left - right if sign == "-" else left * right)
    if sign not in ("/", "%"):
        raise _unsupported(sign, left)
    return _divided(sign, left, right)


def _divided(sign: str, left: int, right: int) -> int:
    if right == 0:
        raise JxFailure("division by zero")
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return wrapped(quotient if sign == "/" else left - quotient * right)


def _on_floats(sign: str, left: float, right: float) -> Value:
    if sign in _COMPARE:
        return _COMPARE[sign](left, right)
    if sign in ("+", "-", "*"):
        return left + right if sign == "+" else left - right if sign == "-" else left * right
    if sign not in ("/", "%"):
        raise _unsupported(sign, left)
    if right == 0:
        raise JxFailure("division by zero")
    return left / right if sign == "/" else float(_divided(sign, truncated(left), truncated(right)))


def _on_strings(sign: str, left: str, right: str) -> Value:
    if sign in _COMPARE:
        return _COMPARE[sign](ordering_key(left), ordering_key(right))
    if sign == "+":
        return left + right
    raise _unsupported(sign, left)


def _on_lists(sign: str, left: list[Value], right: list[Value]) -> Value:
    if sign in ("==", "!="):
        return same(left, right) == (sign == "==")
    if sign == "+":
        return JxList([*left, *right])
    raise _unsupported(sign, left)


def _on_objects(sign: str, left: Value, right: Value) -> Value:
    raise _unsupported(sign, left)


_APPLY: dict[str, Callable[..., Value]] = {
    "null": _on_null,
    "boolean": _on_booleans,
    "integer": _on_integers,
    "float": _on_floats,
    "string": _on_strings,
    "array": _on_lists,
    "object": _on_objects,
}


_TEMPLATE_PART = re.compile(r"[^{}]+|\{\{|\}\}|\{[ \t\n\v\f\r]*([A-Za-z_][A-Za-z0-9_]*)[ \t\n\v\f\r]*\}")
_FLOAT_FORMATS = "eEfFgG"


def text_argument(arguments: list[Value], number: int, what: str) -> str:
    """Returns the argument with this number, which must be a string."""
    value = arguments[number] if number < len(arguments) else None
    if not isinstance(value, str):
        raise JxFailure(f"{what} must be a string")
    return value


def count(arguments: list[Value], least: int, most: int) -> None:
    """Raises `JxFailure` if there are too few or too many arguments."""
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
        raise JxFailure("too many values for the format")
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
        raise JxFailure(f"unknown format %{kind}", remedy="use one of %d %i %s %e %E %f %F %g %G %%")
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
    return '"' + re.sub(r'(["\\$`])', r"\\\1", text_argument(arguments, 0, "the text to escape")) + '"'


def _len(arguments: list[Value]) -> Value:
    if not arguments or not isinstance(arguments[0], list):
        raise JxFailure("takes a list")
    return len(arguments[0])


def _object_argument(arguments: list[Value]) -> list[tuple[str, Value]]:
    """Returns the pairs of the only argument, last one first, like the original."""
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
    text = text_argument(arguments, 1, "the text to match")
    count(arguments, 2, 2)
    return matches(ordering_key(pattern), ordering_key(text))


def expand_template(template: str, lookup: Callable[[str], Value]) -> str:
    """Returns the template with each `{name}` replaced; `{{` and `}}` stand for braces."""
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
            raise JxFailure(f"{match[1]!r} is {kind_of(value)}: a template takes numbers and strings only")
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
