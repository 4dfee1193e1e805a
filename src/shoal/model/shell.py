"""What runs the command of a task, as its profile has it.

Nothing stands for `/bin/sh`, as in a Makeflow. `strict`, which is meant by rules files and nets that say nothing, is
the shell in which a failure inside a pipe, of an earlier line or of a name that is not set ends the command; which
program that is depends on the machine (`shoal.runner.shell`). Everything else is a program and its options.
"""

from __future__ import annotations

import re
import shlex

from shoal.errors import InputError
from shoal.model.filenames import is_unusable

STRICT = "strict"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./ \t-][A-Za-z0-9_@%+:,./= \t-]*")
"""Characters that no shell gives a meaning to; `=` only behind the first word, where it is no assignment."""


def needs_shell(command: str) -> bool:
    """Whether something in the command means anything to a shell."""
    words = command.split(None, 1)
    return not words or "=" in words[0] or _PLAIN.fullmatch(command) is None


def words_elsewhere(shell: str) -> list[str]:
    """The words in front of `-c` where nothing is known of the machine: in what other programs are to run."""
    if shell == STRICT:
        return ["bash", "-euo", "pipefail"]
    return shlex.split(shell) or ["/bin/sh"]


def parse_shell(value: object) -> str:
    """A program and its options, as a profile has them; `-c` and the command come behind them."""
    if not isinstance(value, str) or is_unusable(value):
        raise InputError(f"shell must be a program and its options, such as 'bash -e', not {value!r}")
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise InputError(f"shell={value!r} cannot be read: {str(error).lower()}") from None
    if words[1:] and words[-1] == "-c":
        words.pop()
    if not words or not words[0] or words[0].startswith("-"):
        raise InputError(f"shell={value!r} names no program", remedy="write a program and its options: 'bash -e'")
    return shlex.join(words)
