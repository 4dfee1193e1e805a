"""Command-line parsing: an argparse parser with one-sentence errors, shared options, and sorting of positional words.

A positional word is the workflow file, a target or a `name=value` parameter. Each command decides what to do with them.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.errors import InputError

_WORKFLOW_ENDINGS = (".py", ".makeflow", ".mf", ".jx")
_HEAD_BYTES = 1 << 20
_MOST_PORTS = 65535
_DEFAULT_NAMES = ("flow.py", "Flowfile.py", "Makeflow", "makeflow")


_CLOSE = 0.65
"""Minimum similarity for a spelling suggestion; 'cores' and 'order', which must not match, have 0.6."""
_FEWEST_LETTERS = 3
"""Minimum length of an abbreviation that is completed."""
_SAME_MEANING = {
    "--jobs": ("cores", "cpus", "cpu", "threads", "workers", "processes", "procs", "parallel", "nproc", "max-local"),
    "--memory": ("ram", "mem", "max-memory"),
    "--throttle": ("slots", "load"),
    "--check": ("hash", "checksum"),
    "--dry-run": ("just-print", "what-if", "simulate", "preview"),
    "--output": ("out", "file", "o"),
}
"""Names that other programs use for an option, by the option's name here."""
_ESCAPED = "\0"
"""Prefix of a word that argparse must not take for an option. No argument of a program can contain this character."""


def _unescaped(value: Any) -> Any:
    return value.removeprefix(_ESCAPED) if isinstance(value, str) else value


class CommandParser(argparse.ArgumentParser):
    """The parser of one sub-command."""

    def __init__(self, name: str, summary: str, usage: str, example: str) -> None:
        super().__init__(
            prog=f"shoal {name}",
            usage=f"shoal {name} {usage}",
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.name = name
        self.add_argument("-h", "--help", action="store_true", help="show this help and exit")

    def parse(self, words: Sequence[str]) -> argparse.Namespace | None:
        """Returns the arguments, or None after printing the help. Words after `--` are never options."""
        at = list(words).index("--") if "--" in words else len(words)
        options, plain = words[:at], words[at + 1 :]
        if "-h" in options or "--help" in options:
            self.print_help()
            return None
        escaped = ["--", *(_ESCAPED + word for word in plain)] if plain else []
        arguments, unknown = self.parse_known_intermixed_args([*options, *escaped])
        unknown = [word for word in unknown if word != "--"]
        if unknown:
            self._refuse(unknown[0])
        for name, value in vars(arguments).items():
            setattr(arguments, name, [_unescaped(word) for word in value] if type(value) is list else _unescaped(value))
        return arguments

    def _refuse(self, word: str) -> None:
        if word.startswith(_ESCAPED):
            raise InputError(f"unexpected argument {_unescaped(word)!r}", remedy=f"see 'shoal {self.name} --help'")
        option = word.split("=", 1)[0]
        hint = self._same_meaning(option) or close_match(option, self._option_string_actions)
        raise InputError(
            f"'shoal {self.name}' has no option {option!r}",
            remedy=hint or f"'shoal {self.name} --help' lists its options",
        )

    def _same_meaning(self, option: str) -> str | None:
        """Suggests the option of this command that other programs call by this name, with its help text."""
        name = option.lstrip("-")
        for known, others in _SAME_MEANING.items():
            action = self._option_string_actions.get(known)
            if name in others and action is not None:
                value = f" {action.metavar}" if action.metavar else ""
                return f"'{known}{value}' does that: {action.help}"
        return None

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse's own never returns either
        """Raises argparse's complaint as an `InputError` in the wording of the other messages."""
        match = re.fullmatch(r"argument (?:\S+/)?(\S+): (.*)", message, re.DOTALL)
        if match is None:
            raise InputError(message, remedy=f"see 'shoal {self.name} --help'")
        option, complaint = match.groups()
        choice = re.fullmatch(r"invalid choice: ('.*?') \(choose from (.*)\)", complaint, re.DOTALL)
        if choice:
            known = choice[2].replace("'", "")
            raise InputError(f"{option} cannot be {choice[1]}", remedy=f"use one of {known}")
        action = self._option_string_actions.get(option)
        if complaint.startswith("expected") and action is not None and isinstance(action.nargs, int):
            several = " ".join([option, *[str(action.metavar)] * action.nargs])
            raise InputError(
                f"{option} needs {action.nargs} {str(action.metavar).lower()}s", remedy=f"write it as '{several}'"
            )
        if complaint.startswith("expected"):
            raise InputError(f"{option} needs a value", remedy=f"see 'shoal {self.name} --help'")
        raise InputError(f"{option}: {complaint}", remedy=f"see 'shoal {self.name} --help'")


def close_match(word: str, known: Iterable[str]) -> str | None:
    """Returns `did you mean ...?`, or None if no known word is close in spelling. Leading dashes are ignored."""
    from difflib import get_close_matches

    bare, given = {name.lstrip("-"): name for name in known if len(name.lstrip("-")) > 1}, word.lstrip("-")
    close = get_close_matches(given, list(bare), n=1, cutoff=_CLOSE)
    if not close and len(given) >= _FEWEST_LETTERS:
        close = [name for name in bare if name.startswith(given)]
    return f"did you mean {bare[close[0]]!r}?" if len(close) == 1 else None


def add_workflow(parser: CommandParser, what: str = "the workflow file, targets and name=value parameters") -> None:
    """Adds the positional words of a command, and the option that names the workflow file explicitly."""
    parser.add_argument("words", nargs="*", metavar="WORD", help=what)
    parser.add_argument(
        "-w", "--workflow", metavar="FILE", help="the workflow file, when a word could be mistaken for it"
    )


def split_words(words: Sequence[str], named: str | None = None) -> tuple[str | None, list[str]]:
    """Returns the workflow file, if the first word is one, and the other words.

    A first word without `=` is taken for the workflow file, unless a workflow with a default name exists here and the
    word does not look like a workflow: `shoal run result.txt` then means the target, even if that file exists.
    """
    if named is not None:
        return named, list(words)
    if not words or "=" in words[0]:
        return None, list(words)
    first = words[0]
    if looks_like_workflow(first):
        return first, list(words[1:])
    return None, list(words)


def looks_like_workflow(word: str) -> bool:
    return is_recognised_workflow(word) or not any(map(os.path.isfile, _DEFAULT_NAMES))


def is_recognised_workflow(word: str) -> bool:
    """Whether the file's name, its content or an existing run directory identifies it as a workflow."""
    name = os.path.basename(word)
    if name.endswith(_WORKFLOW_ENDINGS) or name in _DEFAULT_NAMES:
        return True
    if name.endswith(".json") and _is_json_workflow(word):
        return True
    return bool(name) and os.path.isdir(os.path.join(os.path.dirname(word), ".shoal", name))


def _is_json_workflow(path: str) -> bool:
    """Whether a JSON file has the keys of a workflow or a trace. A task's output may be JSON, too."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return re.search(rb'"(?:rules|workflow)"\s*:', head) is not None


def whole_number(least: int, what: str) -> Callable[[str], int]:
    """Returns a converter for argparse: an integer of at least `least`."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise InputError(f"{what} must be a whole number, not {text!r}") from None
        if number < least:
            raise InputError(f"{what} must be at least {least}, not {text}")
        return number

    return convert


def port(text: str) -> int:
    """Converts a port number for argparse; 0 stands for any free port."""
    number = whole_number(0, "a port")(text)
    if number > _MOST_PORTS:
        raise InputError(f"a port must be at most {_MOST_PORTS}, not {text}")
    return number


def need_cluster_libraries(*, certificates: bool = False) -> None:
    """Raises an `InputError` if a library is missing that only clusters need.

    `certificates`: this command creates certificates. Clients do not need the library for that.
    """
    from importlib.util import find_spec

    libraries = [("zmq", "pyzmq"), ("redis", "redis")]
    if certificates:
        libraries.append(("cryptography", "cryptography"))
    for module, library in libraries:
        if find_spec(module) is None:
            raise InputError(f"clusters need {library}, which is not installed", remedy="pip install 'shoal[cluster]'")


class SettingAction(argparse.Action):
    """Appends a setting with its kind to the settings that precede it on the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        earlier: list[tuple[str, object]] = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*earlier, (self.const, values)])


def add_settings(parser: argparse._ActionsContainer) -> None:
    """Adds `--jx-args FILE` and `--jx-define VAR=EXPR`. Both fill `jx_settings`, because their order matters."""
    parser.add_argument(
        *("--jx-args", "--jx-context"),
        dest="jx_settings",
        action=SettingAction,
        const="args",
        default=[],
        metavar="FILE",
        help="define JX variables from a file that holds an object",
    )
    parser.add_argument(
        "--jx-define",
        dest="jx_settings",
        action=SettingAction,
        const="define",
        default=[],
        metavar="VAR=EXPR",
        help="define one JX variable; the last definition counts",
    )
