"""Names of files as text: lists of them that can be mapped (`Files`) and Rake's `pathmap`.

Nothing here looks at a disk; the registry is given a function that does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.errors import InputError
from shoal.frontend.rules.options import SupportsPath
from shoal.frontend.rules.pattern import Pattern

_SPEC = re.compile(r"%(?:\{([^}]*)\})?(-?\d+)?([pfnxXds%])")


class Files(list[str]):
    """A list of file names, as `files("r/*.fits")` gives it, with the operations a rules file wants on it."""

    pattern: str | None = None
    """The `{x}` pattern it was found with, for `map`."""

    def map(self, to: str, from_: str | None = None) -> Files:
        """The names that match `from_` (by default the pattern given to `files`), rewritten as `to`."""
        source = from_ or self.pattern
        if source is None:
            raise InputError(
                "map() does not know the names' pattern", remedy="give it: map('p/{x}.fits', 'r/{x}.fits')"
            )
        before, after = Pattern(source), Pattern(to)
        unknown = [wildcard for wildcard in after.wildcards if wildcard not in before.wildcards]
        if unknown:
            raise InputError(f"{{{unknown[0]}}} in {to!r} is not a wildcard of {source!r}")
        matches = [before.match(name) for name in self]
        return Files(after.fill(found) for found in matches if found is not None)

    def exclude(self, *patterns: str) -> Files:
        """The names that match none of the patterns, in which `*` and `{x}` match anything."""
        expressions = [re.compile(re.sub(r"\\\*|\\\{.*?\\\}", ".*", re.escape(pattern))) for pattern in patterns]
        kept = Files(name for name in self if not any(expression.fullmatch(name) for expression in expressions))
        kept.pattern = self.pattern
        return kept

    def ext(self, extension: str) -> Files:
        """The names with another extension, as Rake's `ext`."""
        return Files(pathmap(name, "%X") + extension for name in self)

    def pathmap(self, spec: str) -> Files:
        return Files(pathmap(name, spec) for name in self)


def pathmap(path: str | SupportsPath, spec: str) -> str:
    """Rewrites a path as Rake's pathmap does.

    `%p` is the path, `%f` its file name, `%n` that without extension, `%d` its directory, `%x` its extension and `%X`
    everything before it. `%2d` keeps the first two directories, `%-2d` the last two. `%{from,to;from,to}p` replaces
    before inserting, `from` being a regular expression; `%s` is a slash and `%%` a percent sign.
    """
    text = str(path)

    def insert(found: re.Match[str]) -> str:
        replacements, count, letter = found.groups()
        if count is not None and letter != "d":
            raise InputError(f"{found[0]!r} in the pathmap {spec!r}: only %d takes a number")
        value = _PARTS[letter](text) if count is None else some_directories(text, int(count))
        for pair in (replacements or "").split(";"):
            before, comma, after = pair.partition(",")
            if before:
                value = re.sub(before, after, value) if comma else re.sub(before, "", value)
        return value

    try:
        return _SPEC.sub(insert, spec)
    except re.error as error:
        raise InputError(f"the pathmap {spec!r} holds a wrong regular expression: {error}") from None


def file_part(path: str) -> str:
    return path.rpartition("/")[2]


def extension(path: str) -> str:
    """From the last dot of the file's name on; a name that begins with its only dot has none."""
    name = file_part(path)
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""


def directory_part(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head or (slash or ".")


def some_directories(path: str, count: int) -> str:
    """The first `count` directories of the path, or the last `-count`."""
    parts = directory_part(path).split("/")
    return "/".join(parts[:count] if count >= 0 else parts[count:]) or "."


_PARTS: dict[str, Callable[[str], str]] = {
    "p": lambda path: path,
    "f": file_part,
    "n": lambda path: file_part(path).removesuffix(extension(path)),
    "x": extension,
    "X": lambda path: path.removesuffix(extension(path)),
    "d": directory_part,
    "s": lambda path: "/",
    "%": lambda path: "%",
}
