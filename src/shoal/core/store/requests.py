"""Remote run stores: encodes each store operation as a request of integers, decodes replies, and executes requests.

The requests are the same for the scripts inside Redis (`operations.lua`) and for the store server of a cluster without
Redis (`carry_out`). Subclasses of `RequestingStore` deliver a request, exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from shoal.core.peer_messages import ReadyTask
from shoal.core.store.interface import NOBODY, UNEVEN, Made, ReadyBatch, TaskStanding
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import ColumnsSummary
from shoal.errors import ShoalError

NO_ATTEMPT = -1


def _with_made(
    given: list[int], entries: Sequence[bytes], made: Sequence[Sequence[Made]]
) -> tuple[list[int], list[bytes]]:
    """A `complete` request with output files: for each the position of its result, its number and its size."""
    count = (len(given) - 1) // 2
    numbers = [given[0], count, *given[1:]]
    texts = list(entries) or [b""] * count
    for result, files in enumerate(made):
        for file, size, about in files:
            numbers += (result, file, size)
            texts.append(about)
    return numbers, texts


class RequestingStore(ABC):
    """The part of `shoal.core.store.interface.Store` that is implemented by requests."""

    def __init__(self, summary: ColumnsSummary, left: int, ready: int) -> None:
        self.summary = summary
        self.seen_left = left
        self.seen_ready = ready
        self._first = ReadyBatch([], [])
        """The tasks that are ready at the start; set only for the submitter of the run."""

    @abstractmethod
    def _request(self, operation: str, given: Sequence[int], entries: Sequence[bytes], *, changes: bool) -> list[int]:
        """Sends a request and returns its reply; with `changes` it is executed once, even if it must be sent
        repeatedly."""

    def _ask(self, operation: str, given: Sequence[int], entries: Sequence[bytes] = ()) -> list[int]:
        """Sends a request that changes something; its reply ends with the numbers of tasks left and ready."""
        *answer, self.seen_left, self.seen_ready = self._request(operation, given, entries, changes=True)
        return answer

    def _look(self, operation: str, given: Sequence[int]) -> list[int]:
        return self._request(operation, given, (), changes=False)

    def _placeable(self, answer: list[int], at: int = 0) -> tuple[ReadyBatch, int]:
        """Decodes ready tasks and holdings from a reply; returns them and the position behind them."""
        placeable = ReadyBatch([], [])
        count = answer[at]
        at += 1
        for _ in range(count):
            placeable.tickets.append(ReadyTask(answer[at], answer[at + 1]))
            at += 2
            if self.summary.has_files:
                holdings, at = _pairs(answer, at)
                placeable.holdings.append(holdings)
        return placeable, at

    # ---- tasks ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of tasks in the run."""
        return self.summary.tasks

    def begin(self) -> ReadyBatch:
        """Returns the tasks that are ready at the start, to the submitter of the run; other nodes use `unowned`."""
        first, self._first = self._first, ReadyBatch([], [])
        return first

    def complete(
        self,
        node: int,
        ended: Sequence[tuple[int, int]],
        entries: Sequence[bytes] = (),
        made: Sequence[Sequence[Made]] = (),
    ) -> tuple[list[int], ReadyBatch]:
        """Records results (task, attempt) of a node. Returns the accepted tasks and the newly ready ones, owned by
        it."""
        if entries and len(entries) != len(ended):
            raise ValueError(UNEVEN)
        given = [node]
        for pair in ended:
            given += pair
        if any(made):
            answer = self._ask("complete_made", *_with_made(given, entries, made))
        else:
            answer = self._ask("complete", given, entries)
        accepted = answer[1 : 1 + answer[0]]
        return accepted, self._placeable(answer, 1 + len(accepted))[0]

    def give_up(self, task: int, attempt: int | None = None, entry: bytes = b"") -> list[int]:
        """Records that a task failed for good or is cancelled. Returns the tasks that can therefore never run."""
        return self._ask("give_up", [task, NO_ATTEMPT if attempt is None else attempt], (entry,))[1:]

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Cancels tasks and everything that depends on them; returns those owned by schedulers, which must be
        notified."""
        return self._ask("cancel", list(tasks))[1:]

    def whereabouts(self, task: int) -> tuple[TaskStanding, int, int]:
        """State of a task, number of its unfinished dependencies, and the node that owns it."""
        standing, pending, owner = self._look("whereabouts", [task])
        return TaskStanding(standing), pending, owner

    def note(self, entry: bytes) -> None:
        """Appends an entry to the log."""
        self._ask("note", [], (entry,))

    # ---- owners of tasks -----------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """Assigns tasks from the store to a scheduler; has no effect if the node is lost."""
        self._ask("owned", [node, *tasks])

    def unowned(self, taker: int = NOBODY) -> ReadyBatch:
        """Ready tasks without an owner: the node that should have placed them is lost."""
        return self._placeable(self._ask("unowned", [taker]))[0]

    def moved(self, tickets: Iterable[ReadyTask], giver: int, node: int, number: int = 0) -> ReadyBatch:
        """Records that one scheduler gives tasks to another; a lost receiver's tasks return as a new generation."""
        given = [giver, node, number, *(ticket.task for ticket in tickets)]
        return self._placeable(self._ask("moved", given))[0]

    def claim(self, node: int, tickets: Iterable[ReadyTask]) -> ReadyBatch:
        """Reports that promised tasks have not arrived; the node places those again that no other node can have."""
        given = [node]
        for ticket in tickets:
            given += (ticket.task, ticket.attempt)
        return self._placeable(self._ask("claim", given))[0]

    def hand_back(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyTask | None:
        """Takes a task back from a scheduler that cannot run it; returns it for another one, or None if it is
        outdated."""
        answer = self._ask("hand_back", [ticket.task, ticket.attempt, taker])
        return ReadyTask(ticket.task, answer[0], ticket.failures, ticket.losses) if answer else None

    def missing(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyBatch:
        """Reports that an input was missing at the start of a task: the task waits for it, or is placed again if it
        exists."""
        return self._placeable(self._ask("missing", [ticket.task, ticket.attempt, taker]))[0]

    # ---- leases of nodes -----------------------------------------------------------------------------------------

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes with an expired lease, by the store's clock, that were not declared lost yet, in order."""
        return sorted(self._look("expired", []))

    def lose(self, node: int, taker: int = NOBODY) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        """Declares a node lost. Returns its tasks for placement, and by owner the tasks in transit from the node."""
        answer = self._ask("lose", [node, taker])
        placeable, at = self._placeable(answer)
        promised: dict[int, list[ReadyTask]] = {}
        for each in range(at, len(answer), 3):
            owner, task, attempt = answer[each : each + 3]
            promised.setdefault(owner, []).append(ReadyTask(task, attempt))
        return placeable, promised

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Locations of a task's inputs, as pairs of node and bytes."""
        return _pairs(self._look("holdings", [task]), 0)[0] if self.summary.has_files else ()

    def copies(self, file: int) -> list[int]:
        """Nodes that have a copy of a file."""
        return self._look("copies", [file])

    def copied(self, file: int, node: int) -> None:
        """Records that a node has a copy of a file."""
        self._ask("copied", [file, node])

    def dropped(self, file: int, node: int) -> None:
        """Records that a node has removed its copy; the last copy is never removed deliberately."""
        self._ask("dropped", [file, node])


def _pairs(answer: list[int], at: int) -> tuple[tuple[tuple[int, int], ...], int]:
    end = at + 1 + 2 * answer[at]
    return tuple((answer[each], answer[each + 1]) for each in range(at + 1, end, 2)), end


Shape: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
Action: TypeAlias = Callable[[MemoryStore, Sequence[int], Sequence[bytes]], list[int]]

MOST = 1 << 31
"""Numbers of nodes, tasks and files are below this."""
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
"""Arguments of each operation: the kinds of its leading integers, then of the repeated ones."""
LOOKING: dict[str, Shape] = {
    "counts": ((), ()),
    "standing": (("task",), ()),
    "whereabouts": (("task",), ()),
    "recorded": (("node",), ()),
    "holdings": (("task",), ()),
    "copies": (("file",), ()),
}


class BadRequest(ShoalError):  # noqa: N818  # what is bad is the request
    """A malformed request; correct clients never send one."""


def check(store: MemoryStore, operation: str, given: Sequence[int], entries: Sequence[bytes]) -> None:
    """Raises BadRequest unless the operation can be executed."""
    if operation == "complete_made":
        given, entries = _checked_made(store, given, entries)
        operation = "complete"
    shape = CHANGING.get(operation) or LOOKING.get(operation)
    if shape is None:
        raise BadRequest(f"unknown operation {operation!r}")
    fixed, repeated = shape
    rest = len(given) - len(fixed)
    if rest < 0 or (rest % len(repeated) if repeated else rest):
        raise BadRequest(f"unexpected number of integers for {operation}: {len(given)}")
    limits = {"task": (0, store.size), "file": (0, len(store.work.file_bytes)), "node": (0, MOST), "taker": (-1, MOST)}
    limits["number"] = (-1, 1 << 62)
    columns = [(kind, given[at : at + 1]) for at, kind in enumerate(fixed)]
    columns += [(kind, given[len(fixed) + at :: len(repeated)]) for at, kind in enumerate(repeated)]
    for kind, numbers in columns:
        least, end = limits[kind]
        if numbers and not (least <= min(numbers) and max(numbers) < end):
            raise BadRequest(f"invalid {kind} number in a request for {operation}")
    allowed = {"complete": (0, rest // 2), "give_up": (0, 1), "note": (1,)}.get(operation, (0,))
    if len(entries) not in allowed:
        raise BadRequest(f"unexpected number of entries for {operation}: {len(entries)}")


def _checked_made(
    store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]]:
    """Checks the output files in a `complete_made` request; returns the rest of the request."""
    count = given[1] if len(given) > 1 else -1
    rest = given[2 + 2 * count :] if 0 <= count <= len(given) else [0]
    files = len(rest) // 3
    if len(rest) % 3 or len(entries) != count + files or not store.has_files:
        raise BadRequest("malformed request for complete_made")
    for result, file, size in zip(rest[0::3], rest[1::3], rest[2::3], strict=True):
        if not (0 <= result < count and 0 <= file < len(store.work.file_bytes) and 0 <= size < 1 << 62):
            raise BadRequest("invalid file number in a request for complete_made")
    return [given[0], *given[2 : 2 + 2 * count]], entries[:count]


def carry_out(store: MemoryStore, operation: str, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    """Executes a checked request; the reply to one that changes something ends with the numbers of tasks left and
    ready."""
    answer = _ACTIONS[operation](store, given, entries)
    return [*answer, store.left, store.ready_count] if operation in CHANGING else answer


def _complete(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    accepted, placeable = store.complete(given[0], list(zip(given[1::2], given[2::2], strict=True)), entries)
    return [len(accepted), *accepted, *_encode(placeable)]


def _complete_made(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    node, count = given[0], given[1]
    ended = list(zip(given[2 : 2 + 2 * count : 2], given[3 : 2 + 2 * count : 2], strict=True))
    made: list[list[Made]] = [[] for _ in ended]
    rest = given[2 + 2 * count :]
    for result, file, size, about in zip(rest[0::3], rest[1::3], rest[2::3], entries[count:], strict=True):
        made[result].append((file, size, about))
    accepted, placeable = store.complete(node, ended, entries[:count], made)
    return [len(accepted), *accepted, *_encode(placeable)]


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
    return _encode(store.unowned(given[0]))


def _moved(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    giver, node, number, *tasks = given
    return _encode(store.moved([ReadyTask(task) for task in tasks], giver, node, number))


def _claim(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    tickets = [ReadyTask(task, attempt) for task, attempt in zip(given[1::2], given[2::2], strict=True)]
    return _encode(store.claim(given[0], tickets))


def _hand_back(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    ticket = store.hand_back(ReadyTask(given[0], given[1]), given[2])
    return [] if ticket is None else [ticket.attempt]


def _missing(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    return _encode(store.missing(ReadyTask(given[0], given[1]), given[2]))


def _lose(store: MemoryStore, given: Sequence[int], entries: Sequence[bytes]) -> list[int]:
    placeable, promised = store.lose(given[0], given[1])
    answer = _encode(placeable)
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


def _encode(placeable: ReadyBatch) -> list[int]:
    """Number of ready tasks, then task and attempt of each and, where files are tracked, the locations of its
    inputs."""
    answer = [len(placeable.tickets)]
    for at, ticket in enumerate(placeable.tickets):
        answer += (ticket.task, ticket.attempt)
        if placeable.holdings:
            answer += _paired(placeable.holdings[at])
    return answer


def _paired(holdings: Sequence[tuple[int, int]]) -> list[int]:
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
    "holdings": lambda store, given, entries: _paired(store.holdings(given[0])),
    "copies": lambda store, given, entries: store.copies(given[0]),
}
