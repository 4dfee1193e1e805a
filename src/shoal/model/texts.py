"""Texts with bytes that are not UTF-8, as names of files and commands may have them, in MessagePack. Pure.

MessagePack holds only texts that are UTF-8. Python has each other byte as a surrogate character; here that is written
as a NUL, an `x` and two hexadecimal digits. No name and no command holds a NUL, so nothing else reads like that.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec

Kind = TypeVar("Kind")
MARK = "\0x"
_MARKED = MARK.encode()
_FIRST = 0xDC00
"""The surrogate that would stand for the byte 0."""
_SURROGATE = re.compile("[\udc80-\udcff]")
_WRITTEN = re.compile("\0x([89a-f][0-9a-f])")
_encode = msgspec.msgpack.Encoder().encode


def encode(value: object) -> bytes:
    """The value in MessagePack; `Decoder` reads it."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_each(msgspec.to_builtins(value, builtin_types=(bytes,)), _SURROGATE, _written))


class Decoder(Generic[Kind]):
    """Reads values of a type that `encode` has written."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def decode(self, data: bytes) -> Kind:
        found = self._decode(data)
        # Numbers and bytes may look like the mark: then this takes longer and changes nothing.
        return restored(found, self._kind) if _MARKED in data else found


def restored(value: object, kind: type[Kind]) -> Kind:
    """The value, if something else has decoded what `encode` had written."""
    return msgspec.convert(_each(msgspec.to_builtins(value, builtin_types=(bytes,)), _WRITTEN, _read), kind)


def _written(found: re.Match[str]) -> str:
    return f"{MARK}{ord(found[0]) - _FIRST:02x}"


def _read(found: re.Match[str]) -> str:
    return chr(_FIRST + int(found[1], 16))


def _each(value: Any, pattern: re.Pattern[str], change: Any) -> Any:
    """The value with every text in it changed."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, (list, tuple)):
        return [_each(part, pattern, change) for part in value]
    if isinstance(value, dict):
        return {_each(key, pattern, change): _each(part, pattern, change) for key, part in value.items()}
    return value
