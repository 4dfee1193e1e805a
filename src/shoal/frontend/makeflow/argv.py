"""Command-line options kept in a file (`--argv FILE`): one JSON object, as words for the command line.

A key is the long name of an option, its value what the option takes (null for nothing); the key `MAKEFLOW` names the
workflow. Whether there is such an option, and whether it takes a value, is left to whoever reads the words.
"""

from __future__ import annotations

from shoal.errors import InputError
from shoal.frontend.jx import Value, parse_json

WORKFLOW_KEY = "MAKEFLOW"


def argv_words(text: bytes | str, source: str) -> list[str]:
    """The words that stand for the file; the workflow's name comes last."""
    options = parse_json(text, source)
    line, column = getattr(options, "line", None), getattr(options, "column", None)

    def error(message: str, remedy: str) -> InputError:
        return InputError(message, file=source, line=line or None, column=column or None, remedy=remedy)

    if not isinstance(options, dict):
        raise error("a file of options holds an object", 'write { "OPTION": VALUE, ... }')
    words: list[str] = []
    names: list[str] = []
    for option, value in options.items():
        if option == WORKFLOW_KEY:
            if not isinstance(value, str):
                raise error(f"{WORKFLOW_KEY} is the name of the workflow's file", "write it as text")
            names.append(value)
        elif not option or option.startswith("-") or "=" in option:
            raise error(f"{option!r} is not the long name of an option", "leave out the dashes")
        elif isinstance(value, (list, dict)):
            raise error(f"the value of {option!r} must be text or a number", "use null for an option without one")
        else:
            words.append(f"--{option}" if value is None else f"--{option}={_text_of(value)}")
    return [*words, *names]


def _text_of(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
