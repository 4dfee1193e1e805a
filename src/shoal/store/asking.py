"""A store that is somewhere else: each operation as a request of integers, and what its answer means.

The requests are the same whether scripts inside Redis answer them (`operations.lua`) or the server of a cluster without
Redis does (`operations`). How a request gets there, and gets there once, is left to those who inherit from this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from shoal.broker.peers import Ticket
from shoal.store.base import NOBODY, UNEVEN, Made, Placeable, Standing
from shoal.store.columns import Summary

NO_ATTEMPT = -1


def _with_made(
    given: list[int], entries: Sequence[bytes], made: Sequence[Sequence[Made]]
) -> tuple[list[int], list[bytes]]:
    """A request of `complete` with the files that were made: of each the result, its number and its size."""
    count = (len(given) - 1) // 2
    numbers = [given[0], count, *given[1:]]
    texts = list(entries) or [b""] * count
    for result, files in enumerate(made):
        for file, size, about in files:
            numbers += (result, file, size)
            texts.append(about)
    return numbers, texts


class AskingStore(ABC):
    """The operations of `shoal.store.base` that are made of requests."""

    def __init__(self, summary: Summary, left: int, ready: int) -> None:
        self.summary = summary
        self.seen_left = left
        self.seen_ready = ready
        self._first = Placeable([], [])
        """What is ready at the start, with whoever brought the run."""

    @abstractmethod
    def _request(self, operation: str, given: Sequence[int], entries: Sequence[bytes], *, changes: bool) -> list[int]:
        """Answer to a request; with `changes` it is carried out once, however often it must be sent."""

    def _ask(self, operation: str, given: Sequence[int], entries: Sequence[bytes] = ()) -> list[int]:
        """A request that changes something, whose answer ends with what is left and what is ready."""
        *answer, self.seen_left, self.seen_ready = self._request(operation, given, entries, changes=True)
        return answer

    def _look(self, operation: str, given: Sequence[int]) -> list[int]:
        return self._request(operation, given, (), changes=False)

    def _placeable(self, answer: list[int], at: int = 0) -> tuple[Placeable, int]:
        """Tickets and holdings in an answer, and where they end."""
        placeable = Placeable([], [])
        count = answer[at]
        at += 1
        for _ in range(count):
            placeable.tickets.append(Ticket(answer[at], answer[at + 1]))
            at += 2
            if self.summary.has_files:
                holdings, at = _pairs(answer, at)
                placeable.holdings.append(holdings)
        return placeable, at

    # ---- tasks ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Tasks of the run."""
        return self.summary.tasks

    def begin(self) -> Placeable:
        """What is ready at the start, for whoever brought the run; others ask for what is `unowned`."""
        first, self._first = self._first, Placeable([], [])
        return first

    def complete(
        self,
        node: int,
        ended: Sequence[tuple[int, int]],
        entries: Sequence[bytes] = (),
        made: Sequence[Sequence[Made]] = (),
    ) -> tuple[list[int], Placeable]:
        """Results (task, attempt) of a node: the tasks for which they count, and what became ready, which it takes."""
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
        """The task has failed for good or is not wanted; what can never run because of that."""
        return self._ask("give_up", [task, NO_ATTEMPT if attempt is None else attempt], (entry,))[1:]

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Removes tasks and all that needs them; returns those that some broker has and must be told of."""
        return self._ask("cancel", list(tasks))[1:]

    def whereabouts(self, task: int) -> tuple[Standing, int, int]:
        """Where a task stands, for how many others it waits, and the node that has it."""
        standing, pending, owner = self._look("whereabouts", [task])
        return Standing(standing), pending, owner

    def note(self, entry: bytes) -> None:
        """Logs an entry."""
        self._ask("note", [], (entry,))

    # ---- who has what --------------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """A broker has these tasks now, from the store itself; nothing happens if the node is lost."""
        self._ask("owned", [node, *tasks])

    def unowned(self, taker: int = NOBODY) -> Placeable:
        """Tasks that are ready and that nobody has: whoever should have placed them is gone."""
        return self._placeable(self._ask("unowned", [taker]))[0]

    def moved(self, tickets: Iterable[Ticket], giver: int, node: int, number: int = 0) -> Placeable:
        """One broker gives tasks to another; if that one is lost the giver takes them back, as a new generation."""
        given = [giver, node, number, *(ticket.task for ticket in tickets)]
        return self._placeable(self._ask("moved", given))[0]

    def claim(self, node: int, tickets: Iterable[Ticket]) -> Placeable:
        """A node has not got these promised tasks; those that nobody else can have are placed anew by it."""
        given = [node]
        for ticket in tickets:
            given += (ticket.task, ticket.attempt)
        return self._placeable(self._ask("claim", given))[0]

    def hand_back(self, ticket: Ticket, taker: int = NOBODY) -> Ticket | None:
        """A broker cannot run a task and has let go of it: the ticket for another one, None if it does not count."""
        answer = self._ask("hand_back", [ticket.task, ticket.attempt, taker])
        return Ticket(ticket.task, answer[0], ticket.failures, ticket.losses) if answer else None

    def missing(self, ticket: Ticket, taker: int = NOBODY) -> Placeable:
        """A task found an input missing when it started: it waits for it, or is placed anew if it is there now."""
        return self._placeable(self._ask("missing", [ticket.task, ticket.attempt, taker]))[0]

    # ---- who is there --------------------------------------------------------------------------------------------

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over, by the store's clock, and that nobody has declared lost yet, in order."""
        return sorted(self._look("expired", []))

    def lose(self, node: int, taker: int = NOBODY) -> tuple[Placeable, dict[int, list[Ticket]]]:
        """A node is gone with all it had: what is to be placed anew, and by owner what was on its way from there."""
        answer = self._ask("lose", [node, taker])
        placeable, at = self._placeable(answer)
        promised: dict[int, list[Ticket]] = {}
        for each in range(at, len(answer), 3):
            owner, task, attempt = answer[each : each + 3]
            promised.setdefault(owner, []).append(Ticket(task, attempt))
        return placeable, promised

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Where a task's inputs are, as pairs of node and bytes."""
        return _pairs(self._look("holdings", [task]), 0)[0] if self.summary.has_files else ()

    def copies(self, file: int) -> list[int]:
        """The nodes that have a file."""
        return self._look("copies", [file])

    def copied(self, file: int, node: int) -> None:
        """A node has got a copy."""
        self._ask("copied", [file, node])

    def dropped(self, file: int, node: int) -> None:
        """A node has let go of its copy; the last one is never let go of by choice."""
        self._ask("dropped", [file, node])


def _pairs(answer: list[int], at: int) -> tuple[tuple[tuple[int, int], ...], int]:
    end = at + 1 + 2 * answer[at]
    return tuple((answer[each], answer[each + 1]) for each in range(at + 1, end, 2)), end
