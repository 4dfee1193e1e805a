"""File names as text: normalization, rejection of unusable names, MessagePack coding of names that are not UTF-8."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from shoal.errors import InputError

Relative: TypeAlias = Callable[[str], str]
"""Turns an absolute name below the workflow's directory into a relative one; leaves other names unchanged."""
RealDirectory: TypeAlias = Callable[[str], str]
"""Resolves symbolic links and `..` in the name of a directory. The result is relative to the workflow's directory if it
is below it, and empty for that directory itself. A name that cannot be resolved stays unchanged."""
MOST_FOLDERS = 500
"""Recursive directory walks of Python's library fail at about 1,000 levels."""
_SHOWN = 40


def plain_name(name: str, relative: Relative | None = None) -> str:
    """The name without `./`, repeated slashes and trailing slash; absolute names go through `relative`.

    `..` stays, because what it refers to depends on symbolic links.
    """
    # Fast path: every file name of a graph passes here, and most names need no change.
    if name[:1] not in "/." and "//" not in name and "/." not in name and name[-1] != "/":
        return name
    return _rewritten(name, relative) if name else name


def _rewritten(name: str, relative: Relative | None) -> str:
    text = "/".join(part for part in name.split("/") if part not in ("", "."))
    if not name.startswith("/"):
        return text or "."
    text = "/" + text
    return relative(text) if relative is not None else text


def without_ways_up(name: str) -> str:
    """The name with `..` removed textually: the same file, if no directory in the name is a symbolic link."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def real_name(name: str, real: RealDirectory) -> str:
    """The name of a file after its directory has been resolved; the last part stays, even if it is a link."""
    directory, slash, last = name.rpartition("/")
    if last == "..":
        return real(name) or "."
    return join_name(real(directory), last) if slash and directory else name


def join_name(directory: str, last: str) -> str:
    """Joins a directory and a file name; the workflow's own directory has the empty name."""
    return f"{directory.rstrip('/')}/{last}" if directory else last


def has_odd_names(names: Sequence[str]) -> bool:
    """Whether one of the names may need normalization, contain `..` or be unusable.

    All names are searched as one joined text: that costs about 1 % of checking each name.
    """
    text = "/" + "/".join(names) + "/"  # a slash at either end of a name becomes a double slash
    return (
        "//" in text
        or "/./" in text
        or "/../" in text
        or is_unusable(text)
        or max(map(len, names), default=0) > MOST_FOLDERS
    )


def check_name(name: str) -> None:
    """Rejects names that no file can have, and names with more directory levels than the limit."""
    refuse_unusable(name, "the file name")
    count = name.count("/")
    if count > MOST_FOLDERS:
        raise InputError(
            f"the file name {name[:_SHOWN]!r}... has {count} levels of folders, the limit is {MOST_FOLDERS}",
            remedy="use fewer levels",
        )


def is_unusable(text: str) -> bool:
    """Whether the text can be neither a file name nor part of a command: it contains NUL or half of a surrogate pair.

    Surrogates that stand for a byte of a file name, as `os.fsdecode` makes them, are allowed.
    """
    if "\0" in text:
        return True
    if text.isascii():
        return False
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True
    return False


def refuse_unusable(text: str, what: str) -> None:
    """Rejects a text that can be neither a file name nor part of a command."""
    if not is_unusable(text):
        return
    found = "a NUL character" if "\0" in text else "half of a surrogate pair, which is no character"
    raise InputError(f"{what} {text!r} holds {found}", remedy="remove it: no program can be given one")


Kind = TypeVar("Kind")
MARK = "\0x"
_MARKED = MARK.encode()
_FIRST = 0xDC00
"""The surrogate that stands for byte 0."""
_SURROGATE = re.compile("[\udc80-\udcff]")
_WRITTEN = re.compile("\0x([89a-f][0-9a-f])")
_encode = msgspec.msgpack.Encoder().encode


def encode(value: object) -> bytes:
    """Encodes the value in MessagePack; read it with `Decoder`."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_each(msgspec.to_builtins(value, builtin_types=(bytes,)), _SURROGATE, _written))


class Decoder(Generic[Kind]):
    """Decodes values of one type that were written by `encode`."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def decode(self, data: bytes) -> Kind:
        found = self._decode(data)
        # Numbers and bytes may contain the mark by chance: that costs time but changes nothing.
        return restored(found, self._kind) if _MARKED in data else found


def restored(value: object, kind: type[Kind]) -> Kind:
    """The value after another MessagePack decoder has read what `encode` had written."""
    return msgspec.convert(_each(msgspec.to_builtins(value, builtin_types=(bytes,)), _WRITTEN, _read), kind)


def _written(found: re.Match[str]) -> str:
    return f"{MARK}{ord(found[0]) - _FIRST:02x}"


def _read(found: re.Match[str]) -> str:
    return chr(_FIRST + int(found[1], 16))


def _each(value: Any, pattern: re.Pattern[str], change: Any) -> Any:
    """The value with every text in it replaced."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, (list, tuple)):
        return [_each(part, pattern, change) for part in value]
    if isinstance(value, dict):
        return {_each(key, pattern, change): _each(part, pattern, change) for key, part in value.items()}
    return value
