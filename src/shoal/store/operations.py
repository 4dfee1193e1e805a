"""What is asked of a store by requests of integers (`asking`), carried out on a store in memory.

The same requests and answers as those of the scripts inside Redis (`operations.lua`). A request is looked at before
anything is done about it (`check`): one that could not have come from a client of ours changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from shoal.broker.peers import Ticket
from shoal.errors import ShoalError
from shoal.store.base import Made, Placeable
from shoal.store.memory import MemoryStore

Shape: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
Action: TypeAlias = Callable[[MemoryStore, Sequence[int], Sequence[bytes]], list[int]]

MOST = 1 << 31
"""Nodes, tasks and files have numbers below this."""
_TASK_ATTEMPT_TAKER = ("task", "number", "taker")
CHANGING: dict[str, Shape] = {
    "complete": (("taker",), ("task", "number")),
    "complete_made": ((), ()),
    "give_up": (("task", "number"), ()),
    "cancel": ((), ("task",)),
    "note": ((), ()),
    "owned": (("node",), ("task",)),
    "unowned": (("taker",), ()),
    "moved": (("node", "node", "number"), ("task",)),
    "claim": (("node",), ("task", "number")),
    "hand_back": (_TASK_ATTEMPT_TAKER, ()),
    "missing": (_TASK_ATTEMPT_TAKER, ()),
    "lose": (("node", "taker"), ()),
    "copied": (("file", "node"), ()),
    "dropped": (("file", "node"), ()),
}
"""What each operation is given: some integers, then some that are repeated."""
LOOKING: dict[str, Shape] = {
    "counts": ((), ()),
    "standing": (("task",), ()),
    "whereabouts": (("task",), ()),
    "recorded": (("node",), ()),
    "holdings": (("task",), ()),
    "copies": (("file",), ()),
}


class BadRequest(ShoalError):  # noqa: N818  # what is bad is the request
    """Nobody who follows the rules asks for this."""


def check(store: MemoryStore, operation: str, given: Sequence[int], entries: Sequence[bytes]) -> None:
    """Raises BadRequest unless the operation can be carried out."""
    if operation == "complete_made":
        given, entries = _checked_made(store, given, entries)
        operation = "complete"
    shape = CHANGING.get(operation) or LOOKING.get(operation)
    if shape is None:
        raise BadRequest(f"there is no operation {operation!r}")
    fixed, repeated = shape
    rest = len(given) - len(fixed)
    if rest < 0 or (rest % len(repeated) if repeated else rest):
        raise BadRequest(f"{operation} was given {len(given)} numbers")
    limits = {"task": (0, store.size), "file": (0, len(store.work.file_bytes)), "node": (0, MOST), "taker": (-1, MOST)}
    limits["number"] = (-1, 1 << 62)
    columns = [(kind, given[at : at + 1]) for at, kind in enumerate(fixed)]
    columns += [(kind, given[len(fixed) + at :: len(repeated)]) for at, kind in enumerate(repeated)]
    for kind, numbers in columns:
        least, end = limits[kind]
        if numbers and not (least <= min(numbers) and max(numbers) < end):
            raise BadRequest(f"{operation} was given a {kind} that is none")
    allowed = {"complete": (0, rest // 2), "give_up": (0, 1), "note": (1,)}.get(operation, (0,))
    if len(entries) not in allowed:
        raise BadRequest(f"{operation} was given {len(entries)} entries")


def _checked_made(
    store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]]:
    """What of a request to complete is not about the files that were made, if that is as it should be."""
    count = given[1] if len(given) > 1 else -1
    rest = given[2 + 2 * count :] if 0 <= count <= len(given) else [0]
    files = len(rest) // 3
    if len(rest) % 3 or len(entries) != count + files or not store.has_files:
        raise BadRequest("complete_made was given something else")
    for result, file, size in zip(rest[0::3], rest[1::3], rest[2::3], strict=True):
        if not (0 <= result < count and 0 <= file < len(store.work.file_bytes) and 0 <= size < 1 << 62):
            raise BadRequest("complete_made was given a file that is none")
    return [given[0], *given[2 : 2 + 2 * count]], entries[:count]


def carry_out(store: MemoryStore, operation: str, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    """The answer to a request that was checked; one that changes something ends with what is left and ready."""
    answer = _ACTIONS[operation](store, given, entries)
    return [*answer, store.left, store.ready_count] if operation in CHANGING else answer


def _complete(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    accepted, placeable = store.complete(given[0], list(zip(given[1::2], given[2::2], strict=True)), entries)
    return [len(accepted), *accepted, *_told(placeable)]


def _complete_made(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    node, count = given[0], given[1]
    ended = list(zip(given[2 : 2 + 2 * count : 2], given[3 : 2 + 2 * count : 2], strict=True))
    made: list[list[Made]] = [[] for _ in ended]
    rest = given[2 + 2 * count :]
    for result, file, size, about in zip(rest[0::3], rest[1::3], rest[2::3], entries[count:], strict=True):
        made[result].append((file, size, about))
    accepted, placeable = store.complete(node, ended, entries[:count], made)
    return [len(accepted), *accepted, *_told(placeable)]


def _give_up(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    doomed = store.give_up(given[0], None if given[1] < 0 else given[1], entries[0] if entries else b"")
    return [len(doomed), *doomed]


def _cancel(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    held = store.cancel(given)
    return [len(held), *held]


def _note(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    store.note(entries[0])
    return []


def _owned(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    store.owned(given[1:], given[0])
    return []


def _unowned(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    return _told(store.unowned(given[0]))


def _moved(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    giver, node, number, *tasks = given
    return _told(store.moved([Ticket(task) for task in tasks], giver, node, number))


def _claim(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    tickets = [Ticket(task, attempt) for task, attempt in zip(given[1::2], given[2::2], strict=True)]
    return _told(store.claim(given[0], tickets))


def _hand_back(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    ticket = store.hand_back(Ticket(given[0], given[1]), given[2])
    return [] if ticket is None else [ticket.attempt]


def _missing(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    return _told(store.missing(Ticket(given[0], given[1]), given[2]))


def _lose(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    placeable, promised = store.lose(given[0], given[1])
    answer = _told(placeable)
    for owner, tickets in promised.items():
        for ticket in tickets:
            answer += (owner, ticket.task, ticket.attempt)
    return answer


def _copied(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    store.copied(given[0], given[1])
    return []


def _dropped(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    store.dropped(given[0], given[1])
    return []


def _told(placeable: Placeable) -> list[int]:
    """How many tickets, then task and attempt of each and, where there are files, where its inputs are."""
    answer = [len(placeable.tickets)]
    for at, ticket in enumerate(placeable.tickets):
        answer += (ticket.task, ticket.attempt)
        if placeable.holdings:
            answer += _pairs(placeable.holdings[at])
    return answer


def _pairs(holdings: Sequence[tuple[int, int]]) -> list[int]:
    answer = [len(holdings)]
    for pair in holdings:
        answer += pair
    return answer


_ACTIONS: dict[str, Action] = {
    "complete": _complete,
    "complete_made": _complete_made,
    "give_up": _give_up,
    "cancel": _cancel,
    "note": _note,
    "owned": _owned,
    "unowned": _unowned,
    "moved": _moved,
    "claim": _claim,
    "hand_back": _hand_back,
    "missing": _missing,
    "lose": _lose,
    "copied": _copied,
    "dropped": _dropped,
    "counts": lambda store, given, entries: [store.left, store.ready_count],
    "whereabouts": lambda store, given, entries: list(store.whereabouts(given[0])),
    "standing": lambda store, given, entries: [store.standing[given[0]]],
    "recorded": lambda store, given, entries: [store.recorded(given[0])],
    "holdings": lambda store, given, entries: _pairs(store.holdings(given[0])),
    "copies": lambda store, given, entries: store.copies(given[0]),
}
