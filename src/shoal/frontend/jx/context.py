"""Names given on a command line: files of definitions and single definitions, in the order in which they stand there.

Each sees those before it. In the end they have precedence over the `define` of a document (see `evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from shoal.errors import InputError
from shoal.frontend.jx.evaluate import evaluate
from shoal.frontend.jx.parser import parse_jx
from shoal.frontend.jx.values import Outside, Value

Setting: TypeAlias = tuple[Literal["args", "define"], str]
"""`("args", name of a file)` or `("define", "NAME=EXPRESSION")`."""


def read_context(
    settings: Iterable[Setting],
    read: Callable[[str], bytes],
    outside: Outside | None = None,
    *,
    first_counts: bool = False,
) -> dict[str, Value]:
    """The names that the settings define; `read` gives the content of a file.

    Of several definitions of a name the last counts. With `first_counts` it is the first, and a file overrules all
    definitions: so does `jx2json`, whereas `makeflow` behaves as one expects.
    """
    newest: dict[str, Value] = {}
    oldest: dict[str, Value] = {}
    for kind, text in settings:
        if kind == "args":
            found = _file(text, read, newest, outside)
            oldest.update(found)
            newest = newest | found if not first_counts else dict(oldest)
        else:
            name, value = _definition(text, newest, outside)
            newest[name] = value
            oldest.setdefault(name, value)
    return oldest if first_counts else newest


def _file(
    name: str, read: Callable[[str], bytes], known: dict[str, Value], outside: Outside | None
) -> dict[str, Value]:
    found = evaluate(parse_jx(read(name), name), known, outside)
    if not isinstance(found, dict):
        raise InputError("a file of definitions holds an object", file=name, remedy='write { "NAME": VALUE, ... }')
    return found


def _definition(text: str, known: dict[str, Value], outside: Outside | None) -> tuple[str, Value]:
    name, equals, expression = text.partition("=")
    if not equals:
        raise InputError(f"the definition {text!r} has no '='", remedy="write NAME=EXPRESSION")
    return name, evaluate(parse_jx(expression, f"definition of {name}"), known, outside)
