"""Static analysis of a Makeflow: cycles, levels and widths, input and output files, and names of files in a bundle.

Works on the parsed document instead of a graph, because building a graph would make a syntax check slow. Rules are
mostly written in an order in which they could run, so every walk takes them as written; a topological order is computed
only if a rule reads what a later one makes. `listing_order` reproduces the order of the original's hash table.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from shoal.errors import InputError
from shoal.formats.makeflow.document import Makeflow, MakeflowRule

_FIRST_BUCKETS = 127
_GOLDEN_RATIO = 0x9E3779B9
_MASK = 2**64 - 1
_HALF_MASK = 2**32 - 1


def listing_order(names: Iterable[str]) -> list[str]:
    """Returns the distinct names in the order of the original's hash table after inserting them one by one."""
    hashes: dict[str, int] = {}
    chains: list[list[str]] = [[] for _ in range(_FIRST_BUCKETS)]
    for name in names:
        if name in hashes:
            continue
        if 4 * len(hashes) > 3 * len(chains):
            chains = _doubled(chains, hashes)
        number = hashes[name] = hash_of(name.encode("utf-8", "surrogateescape"))
        chains[number % len(chains)].append(name)
    return _listed(chains)


def _listed(chains: list[list[str]]) -> list[str]:
    """Returns the names of all chains. The head of a chain is at the end of its list."""
    return [name for chain in chains for name in reversed(chain)]


def _doubled(chains: list[list[str]], hashes: dict[str, int]) -> list[list[str]]:
    count = 2 * len(chains)
    doubled: list[list[str]] = [[] for _ in range(count)]
    for name in _listed(chains):
        doubled[hashes[name] % count].append(name)
    return doubled


def hash_of(key: bytes) -> int:
    """Returns the hash of a name in the original's hash table."""
    a = b = _GOLDEN_RATIO
    c = 0
    length = len(key)
    end = length - length % 12
    for place in range(0, end, 12):
        a += int.from_bytes(key[place : place + 4], "little")
        b += int.from_bytes(key[place + 4 : place + 8], "little")
        c += int.from_bytes(key[place + 8 : place + 12], "little")
        a, b, c = _mixed(a, b, c)
    a += int.from_bytes(key[end : end + 4], "little")
    b += int.from_bytes(key[end + 4 : end + 8], "little")
    # The lowest byte of the last word holds the length.
    c += length + (int.from_bytes(key[end + 8 :], "little") << 8)
    return _mixed(a, b, c)[2] & _HALF_MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - b - c & _MASK) ^ ((c & _MASK) >> 13)
    b = (b - c - a ^ a << 8) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 13)
    a = (a - b - c & _MASK) ^ (c >> 12)
    b = (b - c - a ^ a << 16) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 5)
    a = (a - b - c & _MASK) ^ (c >> 3)
    b = (b - c - a ^ a << 10) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 15)
    return a, b, c


LONGEST_SHOWN_CYCLE = 8


@dataclass(frozen=True, slots=True)
class MakeflowExtent:
    """The numbers that `makeflow-analyze -i` prints."""

    tasks: int
    depth: int
    """Number of rules in the longest chain; 1 for an empty file, as in the original."""
    uniform_width: int
    """Maximum number of rules on one level: the parallelism if all rules took the same time."""
    guaranteed_width: int
    """Maximum number of rules that depend on the same single rule."""


def find_makers(makeflow: Makeflow) -> dict[str, int]:
    """Returns the number of the rule that makes each file; raises if two rules make the same file."""
    makers: dict[str, int] = {}
    claim = makers.setdefault
    for number, rule in enumerate(makeflow.rules):
        for name in rule.outputs:
            if claim(name, number) != number:
                first = makeflow.rules[makers[name]]
                raise InputError(
                    f"{name!r} is made by two rules, here and on line {first.line}",
                    file=makeflow.source,
                    line=rule.line,
                    remedy="give one of them another output",
                )
    return makers


def check_rules(makeflow: Makeflow) -> None:
    """Raises `InputError` if two rules make the same file or if the rules form a cycle."""
    order_of_rules(makeflow, find_makers(makeflow))


def measure(makeflow: Makeflow) -> MakeflowExtent:
    """Returns depth and widths, counted like the original."""
    makers = find_makers(makeflow)
    level = find_levels(makeflow, makers)
    width = array("i", bytes(4 * (max(level, default=0) + 1)))
    for each in level:
        width[each] += 1
    followers = array("i", bytes(4 * len(level)))
    for rule in makeflow.rules:
        parents = set(parents_of(rule, makers))
        if len(parents) == 1:
            followers[parents.pop()] += 1
    return MakeflowExtent(len(level), len(width), max(width), max(followers, default=0))


def find_levels(makeflow: Makeflow, makers: dict[str, int]) -> array[int]:
    """Returns the level of each rule: the number of rules before it on the longest chain to it."""
    rules = makeflow.rules
    level = array("i", bytes(4 * len(rules)))
    for number in order_of_rules(makeflow, makers):
        highest = -1
        for parent in parents_of(rules[number], makers):
            if level[parent] > highest:
                highest = level[parent]
        level[number] = highest + 1
    return level


def parents_of(rule: MakeflowRule, makers: dict[str, int]) -> Iterator[int]:
    """Returns the rules that make the inputs of this rule, one per file."""
    return (makers[name] for name in rule.inputs if name in makers)


def order_of_rules(makeflow: Makeflow, makers: dict[str, int]) -> range | array[int]:
    """Returns the rules in an order in which each comes after its parents; raises if there is a cycle."""
    find = makers.get
    for number, rule in enumerate(makeflow.rules):
        for name in rule.inputs:
            if find(name, -1) >= number:
                return _topological_order(makeflow, makers)
    return range(len(makeflow.rules))


def _topological_order(makeflow: Makeflow, makers: dict[str, int]) -> array[int]:
    """Returns a topological order of the rules (Kahn's algorithm)."""
    size = len(makeflow.rules)
    waits_for = array("i", bytes(4 * size))
    followers: dict[int, list[int]] = {}
    for number, rule in enumerate(makeflow.rules):
        for parent in parents_of(rule, makers):
            waits_for[number] += 1
            followers.setdefault(parent, []).append(number)
    order = array("i", [number for number, count in enumerate(waits_for) if not count])
    for number in order:  # grows while we walk it
        for follower in followers.get(number, ()):
            waits_for[follower] -= 1
            if not waits_for[follower]:
                order.append(follower)
    if len(order) < size:
        raise _cycle(makeflow, makers, waits_for)
    return order


def _cycle(makeflow: Makeflow, makers: dict[str, int], waits_for: array[int]) -> InputError:
    """Returns the error for a cycle.

    Each rule that still waits has a parent that still waits, so a walk from parent to parent must reach a cycle.
    """
    number = next(number for number, count in enumerate(waits_for) if count)
    met: dict[int, int] = {}
    files: list[str] = []
    while number not in met:
        met[number] = len(files)
        name, number = next(
            (name, makers[name]) for name in makeflow.rules[number].inputs if name in makers and waits_for[makers[name]]
        )
        files.append(name)
    circle = files[met[number] :][::-1]
    shown = [repr(name) for name in circle]
    if len(shown) > LONGEST_SHOWN_CYCLE:
        shown[LONGEST_SHOWN_CYCLE - 1 :] = [f"{len(shown) - LONGEST_SHOWN_CYCLE + 1} more"]
    return InputError(
        f"the rules form a cycle: {' -> '.join([*shown, repr(circle[0])])}",
        file=makeflow.source,
        line=makeflow.rules[number].line or None,
        remedy="none of these files can be made before the others; remove one from a list of inputs",
    )


def list_files(makeflow: Makeflow) -> list[str]:
    """Returns all files that the document names, in the order of the original's listings."""
    return listing_order(_files_as_named(makeflow))


def _files_as_named(makeflow: Makeflow) -> Iterator[str]:
    yield from makeflow.sizes
    for rule in makeflow.rules:
        yield from rule.outputs
        yield from rule.inputs


def input_files(makeflow: Makeflow) -> list[str]:
    """Returns the files that no rule makes."""
    makers = find_makers(makeflow)
    return [name for name in list_files(makeflow) if name not in makers]


def output_files(makeflow: Makeflow) -> list[str]:
    """Returns the files that rules make, including those that other rules read."""
    makers = find_makers(makeflow)
    return [name for name in list_files(makeflow) if name in makers]


def bundle_names(makeflow: Makeflow) -> dict[str, str]:
    """Returns the name of each input in a bundle.

    Names outside the directory lose their directories, and get a number if the rest is taken. All other names stay, so
    that the outputs of rules keep their names. Sub-workflows are inputs, too.
    """
    workflows = (rule.workflow for rule in makeflow.rules if rule.workflow)
    files = list(dict.fromkeys((*input_files(makeflow), *workflows)))
    taken = set(find_makers(makeflow)) | {name for name in files if not is_outside(name)}
    names: dict[str, str] = {}
    for name in files:
        there = name
        if is_outside(name):
            base = there = name.rstrip("/").rpartition("/")[2] or "root"
            count = 0
            while there in taken:
                count += 1
                there = f"{base}{count}"
        taken.add(there)
        names[name] = there
    return names


def is_outside(name: str) -> bool:
    """Whether a name leads out of the directory that it is relative to."""
    depth = 0
    for part in name.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return name.startswith("/")


def rename_files(makeflow: Makeflow, names: Mapping[str, str]) -> Makeflow:
    """Returns the document with inputs renamed, in the file lists and as whole words of the commands."""
    changed = {here: there for here, there in names.items() if here != there}
    if not changed:
        return makeflow
    longest_first = sorted(changed, key=len, reverse=True)
    words = re.compile(r"(?<![\w./-])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w./-])")

    def rename(name: str) -> str:
        return changed.get(name, name)

    rules = [
        msgspec.structs.replace(
            rule,
            inputs=tuple(map(rename, rule.inputs)),
            workflow=rename(rule.workflow),
            command=words.sub(lambda found: changed[found[0]], rule.command),
            renames=tuple((rename(here), there) for here, there in rule.renames),
        )
        for rule in makeflow.rules
    ]
    return replace(makeflow, rules=rules)
