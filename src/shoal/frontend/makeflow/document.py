"""What a Makeflow file says, once read: rules, categories and the variables they saw.

Plain values, made by the parser or from JSON (`json_reader`), read by `build` and by the printers (`write_*`). A rule
keeps its place in the history of variables (`MakeflowRule.version`) instead of a copy of them, so a hundred thousand
rules share one set of tables.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from shoal.errors import InputError
from shoal.frontend.makeflow.variables import Variables

DEFAULT_CATEGORY = "default"


class Allocation(enum.Enum):
    """How first allocations of a category are chosen (`.MAKEFLOW MODE`)."""

    FIXED = "FIXED"
    MAX_THROUGHPUT = "MAX_THROUGHPUT"
    MIN_WASTE = "MIN_WASTE"


@dataclass(slots=True)
class Category:
    """Rules that are expected to behave alike; its resources are variables of the same name in its table."""

    name: str
    mode: Allocation = Allocation.FIXED


class MakeflowRule(msgspec.Struct, gc=False):
    """One rule. Not tracked by the collector: it refers to nothing that could refer back to it."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    command: str
    """What goes to the shell, variables replaced, modifiers taken off; empty for a sub-workflow."""
    line: int
    category: str
    version: int
    """The last assignment this rule can see, for variables that are looked up after parsing."""
    local: bool = False
    """Whether the rule must run on the submitting machine (`LOCAL` or `BATCH_LOCAL`)."""
    workflow: str = ""
    """The file of a `MAKEFLOW` sub-workflow."""
    variables: tuple[tuple[str, str], ...] = ()
    """The rule's own variables."""
    renames: tuple[tuple[str, str], ...] = ()
    """Pairs of a file's name here and its name where the task runs (`here->there`)."""
    arguments: str = ""
    """What the sub-workflow is given to work with (`"args"` of a JSON rule): a JSON object as text, or nothing."""
    allocation: str = ""
    """What a JSON rule says of its first allocation: `auto`, `first`, `max`, `error`, or nothing."""


@dataclass(slots=True)
class Makeflow:
    """A whole file."""

    source: str
    variables: Variables
    rules: list[MakeflowRule] = field(default_factory=list)
    categories: dict[str, Category] = field(default_factory=dict)
    exports: dict[str, None] = field(default_factory=dict)
    """Names of exported variables, in the order they were first exported."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Files that garbage collection must keep; when empty, every file that no rule reads."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Estimated sizes of files in bytes (`.SIZE`)."""
    default_category: str = DEFAULT_CATEGORY
    """The category whose variables the rules of all others see, too; JSON may name another one."""
    notes: list[str] = field(default_factory=list)
    """What is carried out as written, although it is hardly meant."""
    doubts: list[InputError] = field(default_factory=list)
    """What cannot be meant but is passed over in silence by the original, and so by whoever stands in for it."""
