"""Resource vectors of tasks and nodes: parsing of sizes and amounts, labels, and which node can run which task.

Amounts are integers in the smallest unit of the resource, so that sums of fractions are exact: cores, gpus and named
resources count in ten-thousandths, memory and disk in bytes. A `Resources` value is an immutable vector over names. The
scheduler adds and subtracts integer tuples made by `Resources.vector`. A name that contains `=` is a label: a task that
requests it runs only on nodes that carry it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError

FRACTION = 10_000
BYTE_RESOURCES = ("memory", "disk")
PLENTY = 1 << 40
"""A node has this amount of each of its labels; a task requests 1, so any number of tasks fit."""
_LONGEST_NUMBER = 40
_SUFFIX = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([KMGTP]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_size(text: str | int | float, what: str = "size") -> int:
    """Parses bytes from `2G`, `512 MiB`, `1.5gb` or a plain number of bytes; suffixes are powers of 1024."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise InputError(f"{what} must be a number of bytes or text such as '2G', not {text!r}")
    if isinstance(text, (int, float)):
        if text < 0 or text != text or text in (float("inf"),):
            raise InputError(f"{what} must be a positive number, not {text!r}")
        return round(text)
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > _LONGEST_NUMBER:
        raise InputError(f"{what} {text!r} is not a size", remedy="write a number with K, M, G or T, such as '2G'")
    return round(float(match[1]) * _SUFFIX[match[2].upper()])


def parse_amount(value: str | int | float, what: str) -> int:
    """Parses ten-thousandths from a count that may be a fraction (`0.5`, `"1/4"`)."""
    try:
        if isinstance(value, str) and "/" in value:
            above, below = value.split("/", 1)
            number = float(above or 1) / float(below)
        elif isinstance(value, bool):
            raise ValueError
        else:
            number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{what} must be a number such as 1 or 0.5, not {value!r}") from None
    if not 0 <= number < 1e12:
        raise InputError(f"{what} must be a positive number, not {value!r}")
    return round(number * FRACTION)


class Resources(msgspec.Struct, frozen=True, order=True):
    """A vector of resources; amounts of names that are not listed are zero."""

    amounts: tuple[tuple[str, int], ...] = ()
    """Pairs of name and amount in the resource's smallest unit, sorted by name, no zeros."""

    @classmethod
    def of(cls, amounts: Mapping[str, int]) -> Resources:
        return cls(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))

    @classmethod
    def parse(cls, declared: Mapping[str, str | int | float]) -> Resources:
        """Parses a declaration: `cores=0.5, memory="2G", disk="10G", gpus=1, licence=1`."""
        amounts = {}
        for name, value in declared.items():
            amounts[name] = parse_size(value, name) if name in BYTE_RESOURCES else parse_amount(value, name)
        return cls.of(amounts)

    def get(self, name: str) -> int:
        for known, amount in self.amounts:
            if known == name:
                return amount
        return 0

    def names(self) -> list[str]:
        return [name for name, _ in self.amounts]

    def vector(self, names: Iterable[str]) -> tuple[int, ...]:
        """The amounts in the order of `names`, which must cover every requested resource."""
        return tuple(self.get(name) for name in names)

    def without(self, name: str) -> Resources:
        """A copy without one resource."""
        return Resources(tuple(pair for pair in self.amounts if pair[0] != name))

    def lacking_in(self, node: Resources) -> list[str]:
        """Names of the resources of which `node` has less than this request."""
        return [name for name, amount in self.amounts if amount > node.get(name)]

    def __str__(self) -> str:
        words = [
            f"the label {name}" if is_label(name) else f"{name} {show_amount(name, n)}" for name, n in self.amounts
        ]
        return ", ".join(words) or "nothing"


def is_label(name: str) -> bool:
    """Whether this name is a label of a node, not a resource with an amount."""
    return "=" in name


def show_amount(name: str, amount: int) -> str:
    """One amount in text form: `2 GiB`, `0.5`."""
    if name in BYTE_RESOURCES:
        return show_bytes(amount)
    return f"{amount / FRACTION:g}"


_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=\S(?:.*\S)?")
FORM = "write it as KEY=VALUE, such as site=alpha"


def parse_label(text: object, what: str) -> str:
    """Checks that the text is a valid label and returns it."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be text such as 'site=alpha', not {text!r}")
    if not _LABEL.fullmatch(text):
        raise InputError(f"{what} {text!r} is not a label", remedy=FORM)
    return text


def parse_labels(value: object, what: str) -> tuple[str, ...]:
    """Parses one label or a list of labels; the result is sorted and without duplicates."""
    given: Iterable[object] = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    return tuple(sorted({parse_label(text, what) for text in given}))


def labels_as_text(labels: Mapping[str, str]) -> list[str]:
    """The labels of a node in the form `KEY=VALUE` that tasks use."""
    return [f"{key}={value}" for key, value in sorted(labels.items())]


def requiring(request: Resources, labels: Sequence[str]) -> Resources:
    """The request with these labels added as requirements."""
    return Resources.of({**dict(request.amounts), **dict.fromkeys(labels, 1)}) if labels else request


def carrying(capacity: Resources, labels: Sequence[str]) -> Resources:
    """The capacity of a node with these labels added."""
    return Resources.of({**dict(capacity.amounts), **dict.fromkeys(labels, PLENTY)}) if labels else capacity


def required_labels(request: Resources) -> list[str]:
    return [name for name in request.names() if is_label(name)]


def without_labels(request: Resources) -> Resources:
    """The request without its labels."""
    return Resources(tuple(pair for pair in request.amounts if not is_label(pair[0])))


def unmet(request: Resources, nodes: Iterable[Resources]) -> str | None:
    """A sentence that says why none of these nodes can ever run such a task; None if one of them can."""
    everyone = list(nodes)
    lacking = [request.lacking_in(node) for node in everyone]
    if not all(lacking):
        return None
    nobody_has = [name for name in request.names() if all(name in each for each in lacking)]
    labels = [name for name in nobody_has if is_label(name)]
    if labels:
        return f"no node of the cluster has the {'label' if len(labels) == 1 else 'labels'} {' and '.join(labels)}"
    if nobody_has:
        name = nobody_has[0]
        return f"no node of the cluster has {name} {show_amount(name, request.get(name))}"
    return f"no node of the cluster has all of {request}"
