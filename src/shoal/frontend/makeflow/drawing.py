"""What all drawings of a Makeflow share: the labels of tasks, the numbers of files, and the order of both.

Tasks are drawn from the last to the first and the files of a task likewise, and files are listed as the original's
table lists them, so that a drawing of ours has the same names, numbers and order as one of the original. The formats
themselves are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.frontend.makeflow.directives import leading_number
from shoal.frontend.makeflow.document import Makeflow, MakeflowRule
from shoal.frontend.makeflow.drawing_order import listing_order

SizeOf = Callable[[str], int | None]
"""The size of a file in bytes, or None if there is no such file."""


def label_of(rule: MakeflowRule) -> str:
    """The first word of the command, or the name of the sub-workflow."""
    words = (rule.workflow or rule.command).split(maxsplit=1)
    return words[0] if words else ""


def own_amount(rule: MakeflowRule, variable: str) -> int:
    """What the rule itself asks of a resource; -1 if it does not say."""
    return amount_of(dict(rule.variables), variable)


def amount_of(variables: dict[str, str], variable: str) -> int:
    """The whole number a resource variable starts with; -1 if there is none."""
    number = leading_number(variables.get(variable, ""))
    return -1 if number is None else int(number[0])


def tasks_backwards(makeflow: Makeflow) -> Iterator[tuple[int, MakeflowRule]]:
    """The tasks with their numbers in the order of a drawing."""
    for number in range(len(makeflow.rules) - 1, -1, -1):
        yield number, makeflow.rules[number]


def number_files(makeflow: Makeflow) -> dict[str, int]:
    """The numbers of all files that tasks use, in the order of a listing."""
    numbers: dict[str, int] = {}
    for _, rule in tasks_backwards(makeflow):
        for names in (rule.inputs, rule.outputs):
            for name in reversed(names):
                numbers.setdefault(name, len(numbers))
    return {name: numbers[name] for name in listing_order(numbers)}


def escape_xml(text: str) -> str:
    """Text as it may stand in an attribute or an element; what XML cannot hold at all becomes a question mark."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\n", "&#10;")):
        text = text.replace(character, entity)
    return "".join(each if each >= " " or each == "\t" else "?" for each in text)
