"""The operators of JX on values; where they stand, and which of their operands are evaluated, is left to `evaluate`.

Integers have 64 bits and wrap around, as in the original; division truncates, and `%` has the sign of its left side.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from shoal.frontend.jx.printing import plain
from shoal.frontend.jx.values import JxFailure, JxList, Value, kind_of, same

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
    """The number as 64 bits with a sign hold it."""
    return (number + _HALF) % (2 * _HALF) - _HALF


def truncated(number: float) -> int:
    """The whole part of a float as the processor converts it: what does not fit becomes the smallest integer."""
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
    """Strings are compared byte by byte."""
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
