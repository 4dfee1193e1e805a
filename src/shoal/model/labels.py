"""Labels of nodes, `KEY=VALUE`, and how tasks ask for them.

A label that tasks require is a resource of that very name, of which a node that carries it has as much as anybody asks
for: whatever asks whether a task fits on a node need not know of labels. What is said of them to people is said here.
Where a preferred label leads a task is left to `shoal.broker.dealing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from shoal.errors import InputError
from shoal.model.resources import PLENTY, Resources, is_label, show_amount

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=\S(?:.*\S)?")
FORM = "write it as KEY=VALUE, such as site=alpha"


def parse_label(text: object, what: str) -> str:
    """A label as it was written, if it can be one."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be text such as 'site=alpha', not {text!r}")
    if not _LABEL.fullmatch(text):
        raise InputError(f"{what} {text!r} is not a label", remedy=FORM)
    return text


def parse_labels(value: object, what: str) -> tuple[str, ...]:
    """One label, or several in a list; sorted, each once."""
    given: Iterable[object] = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    return tuple(sorted({parse_label(text, what) for text in given}))


def labels_as_text(labels: Mapping[str, str]) -> list[str]:
    """A node's labels as tasks write them."""
    return [f"{key}={value}" for key, value in sorted(labels.items())]


def requiring(request: Resources, labels: Sequence[str]) -> Resources:
    """What is asked for, on a node with these labels."""
    return Resources.of({**dict(request.amounts), **dict.fromkeys(labels, 1)}) if labels else request


def carrying(capacity: Resources, labels: Sequence[str]) -> Resources:
    """What a node has that carries these labels."""
    return Resources.of({**dict(capacity.amounts), **dict.fromkeys(labels, PLENTY)}) if labels else capacity


def required_labels(request: Resources) -> list[str]:
    return [name for name in request.names() if is_label(name)]


def without_labels(request: Resources) -> Resources:
    """Only the amounts."""
    return Resources(tuple(pair for pair in request.amounts if not is_label(pair[0])))


def unmet(request: Resources, nodes: Iterable[Resources]) -> str | None:
    """Why none of these nodes can ever run a task, in a sentence; None: one of them can."""
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
