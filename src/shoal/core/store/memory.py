"""The store in memory: who waits for whom, what is done, who has which task, and where each file is.

What the operations promise is told in `shoal.core.store.interface`. Waiting tasks live here, not in any broker. The hot
operation is `complete`, answered with the children that became ready and where their inputs are, so that the broker
that completed the last parent can place them at once.

When a node is lost its tasks are placed anew. Files whose last copy went with the node are made again if something
still needs them: their producers, and if need be the producers of theirs, are no longer done. Source files are still
where they came from. A task that finds an input missing when it starts comes back here (`missing`) and waits until it
exists again; if nobody can make it any more the task is doomed.

`rows.lua`, `tasks.lua` and `files.lua` do the same inside Redis, rule for rule: what changes here changes there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from shoal.core.graph import NO_TASK
from shoal.core.peer_messages import ReadyTask
from shoal.core.store.interface import GONE, LEASE, NOBODY, STRIDE, UNEVEN, Made, ReadyBatch, TaskStanding
from shoal.core.work import EVERYWHERE, Work


class StoreNotes:
    """Opaque bytes that others have told."""

    def __init__(self) -> None:
        self._log: list[bytes] = []
        self._pieces: dict[str, bytes] = {}
        self._about: dict[int, bytes] = {}

    def about_of(self, file: int) -> bytes | None:
        """What whoever made a file last wanted to be known of it."""
        return self._about.get(file)

    def note(self, entry: bytes) -> None:
        """Logs an entry."""
        self._log.append(entry)

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """The entries from number `start` on, as far as there are any."""
        return self._log[start : start + most]

    def put_piece(self, name: str, data: bytes) -> None:
        """Something more that belongs to the run."""
        self._pieces[name] = data

    def get_piece(self, name: str) -> bytes | None:
        """What was put under a name."""
        return self._pieces.get(name)

    def forget(self) -> None:
        """Lets go of what was told; the rest goes with the store."""
        self._log.clear()
        self._pieces.clear()


__all__ = ["GONE", "NOBODY", "STRIDE", "MemoryStore", "ReadyBatch", "TaskStanding"]


NOTHING_READY = ReadyBatch([], [])
NO_TASKS: list[int] = []
"""Never added to."""


class MemoryStore(StoreNotes):
    """The books of one run."""

    def __init__(self, work: Work, nodes: int, *, shared_files: bool = False, lease: float = LEASE) -> None:
        """With `shared_files` all nodes see all files, so nothing is anywhere in particular."""
        super().__init__()
        self.size = tasks = len(work)
        self.work = work
        self.standing = bytearray(tasks)
        self.pending = array("i", work.waits_for)
        self.generation = array("i", bytes(4 * tasks))
        self.owner = array("i", [NOBODY]) * tasks
        self.giver: dict[int, int] = {}
        """Who gave a task to its owner, if it was moved."""
        self.lost: set[int] = set()
        """Nodes that are gone for good."""
        self._lease = lease
        self._alive_until: dict[int, float] = {}
        self._recorded: dict[int, int] = {}
        """By giver: the number of the last parcel whose tasks were moved."""
        self.left = tasks
        """Tasks that are neither done nor given up."""
        self.ready_count = 0
        self.has_files = bool(work.input_start) and not shared_files
        """Whether files are in places that the store knows."""
        self.location = array("i", [GONE]) * len(work.file_bytes) if self.has_files else array("i")
        """The first node that has each file, `EVERYWHERE`, or `GONE`."""
        self.sizes: Any = work.file_bytes
        self.replicas: dict[int, list[int]] = {}
        """Further nodes that have it."""
        self._producer = array("i")
        self._is_empty = [not profile.resources.amounts for profile in work.profiles]
        """By category: its tasks run nothing."""
        if self.has_files:
            self._find_sources(nodes)

    def _find_sources(self, nodes: int) -> None:
        work, location = self.work, self.location
        made = bytearray(len(work.file_bytes))
        for file in work.outputs:
            made[file] = 1
        for file, home in enumerate(work.file_home):
            if not made[file]:
                location[file] = home if home == EVERYWHERE else home % nodes

    @property
    def seen_left(self) -> int:
        """The same as `left`: nothing is further away."""
        return self.left

    @property
    def seen_ready(self) -> int:
        """The same as `ready_count`."""
        return self.ready_count

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """There is nothing that would have to be closed."""

    def begin(self) -> ReadyBatch:
        """What is ready at the start; called once. Tasks that run nothing are completed on the way."""
        return self._placeable(self._settle([task for task, count in enumerate(self.pending) if not count]))

    def _settle(self, ready: list[int]) -> list[int]:
        """Completes those that ask for nothing: they use no core, and nobody runs them."""
        empty, category = self._is_empty, self.work.category
        found: list[int] = []
        for task in ready:  # grows while we walk it
            self.standing[task] = TaskStanding.READY
            self.ready_count += 1
            if empty[category[task]]:
                ready += self._release(task, EVERYWHERE)
            else:
                found.append(task)
        return found

    def complete(
        self,
        node: int,
        ended: Sequence[tuple[int, int]],
        entries: Sequence[bytes] = (),
        made: Sequence[Sequence[Made]] = (),
    ) -> tuple[list[int], ReadyBatch]:
        """Results of attempts on a node: the tasks for which they count, and what became ready by that."""
        if made:
            self._take_made(ended, made)
        if entries:
            ended = self._logged(ended, entries)
        accepted: list[int] = []
        ready: list[int] = []
        standing, generation, is_ready = self.standing, self.generation, TaskStanding.READY
        for task, attempt in ended:
            if standing[task] == is_ready and attempt > generation[task] * STRIDE:
                accepted.append(task)
                ready += self._release(task, node)
        return accepted, self._placeable(self._settle(ready), node) if ready else NOTHING_READY

    def _logged(self, ended: Sequence[tuple[int, int]], entries: Sequence[bytes]) -> list[tuple[int, int]]:
        """Those results that count; their entries are in the log then."""
        if len(ended) != len(entries):
            raise ValueError(UNEVEN)
        counting: dict[int, int] = {}
        for (task, attempt), entry in zip(ended, entries, strict=True):
            is_ready = self.standing[task] == TaskStanding.READY and task not in counting
            if is_ready and attempt > self.generation[task] * STRIDE:
                counting[task] = attempt
                if entry:
                    self._log.append(entry)
        return list(counting.items())

    def _take_made(self, ended: Sequence[tuple[int, int]], made: Sequence[Sequence[Made]]) -> None:
        if not self._about:  # the sizes that were brought are others'
            self.sizes = array("q", self.sizes)
        for (task, attempt), files in zip(ended, made, strict=True):
            if self.standing[task] == TaskStanding.READY and attempt > self.generation[task] * STRIDE:
                for file, size, about in files:
                    self.sizes[file] = size
                    self._about[file] = about

    def _release(self, task: int, node: int) -> list[int]:
        """The task is done; children for which it was the last one."""
        work, standing, pending = self.work, self.standing, self.pending
        standing[task] = TaskStanding.DONE
        self.owner[task] = NOBODY
        self.left -= 1
        self.ready_count -= 1
        if self.has_files:
            for file in work.outputs_of(task):
                self.location[file] = node
                self.replicas.pop(file, None)
        first, end = work.child_start[task], work.child_start[task + 1]
        if first == end:
            return NO_TASKS
        ready: list[int] = []
        for child in work.children[first:end]:
            pending[child] -= 1
            if not pending[child] and standing[child] == TaskStanding.WAITING:
                ready.append(child)
        return ready

    def _placeable(self, tasks: list[int], taker: int = NOBODY) -> ReadyBatch:
        generation, owner = self.generation, self.owner
        if taker != NOBODY:
            for task in tasks:
                owner[task] = taker
        tickets = [ReadyTask(task, generation[task] * STRIDE) for task in tasks]
        return ReadyBatch(tickets, [self.holdings(task) for task in tasks] if self.has_files else [])

    def give_up(self, task: int, attempt: int | None = None, entry: bytes = b"") -> list[int]:
        """The task has failed for good or is not wanted; what can never run because of that.

        `attempt` is the last one, if it is a broker that gives up: of an earlier generation it changes nothing.
        """
        if self.standing[task] > TaskStanding.READY or (attempt is not None and self._is_fenced(task, attempt)):
            return []
        if entry:
            self._log.append(entry)
        return self._end(task, TaskStanding.FAILED)

    def _is_fenced(self, task: int, attempt: int) -> bool:
        return attempt < self.generation[task] * STRIDE

    def _end(self, task: int, standing: TaskStanding) -> list[int]:
        """The task will not be done; returns what is doomed by that."""
        self.ready_count -= self.standing[task] == TaskStanding.READY
        self.standing[task] = standing
        self.left -= 1
        doomed: list[int] = []
        stack = [task]
        while stack:
            for child in self.work.children_of(stack.pop()):
                if self.standing[child] == TaskStanding.WAITING:
                    self.standing[child] = TaskStanding.DOOMED
                    self.left -= 1
                    doomed.append(child)
                    stack.append(child)
                else:  # it has had what this one made before; what it has not got is found out when it is placed
                    self.pending[child] -= 1
        return doomed

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Removes tasks and all that needs them; returns those that some broker has and must be told of."""
        held = []
        for task in tasks:
            if self.standing[task] == TaskStanding.READY:
                held.append(task)
            self.give_up(task)
        return held

    def standing_of(self, task: int) -> TaskStanding:
        """Where a task stands."""
        return TaskStanding(self.standing[task])

    def standings(self) -> bytes:
        """Where all tasks stand, a byte each."""
        return bytes(self.standing)

    def whereabouts(self, task: int) -> tuple[TaskStanding, int, int]:
        """Where a task stands, for how many others it waits, and the node that has it."""
        return TaskStanding(self.standing[task]), self.pending[task], self.owner[task]

    # ---- who has what --------------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """A broker has these tasks now, from the store itself; nothing happens if the node is lost."""
        if node in self.lost:
            return
        for task in tasks:
            self.owner[task] = node
            self.giver.pop(task, None)

    def unowned(self, taker: int = NOBODY) -> ReadyBatch:
        """Tasks that are ready and that nobody has: whoever should have placed them is gone."""
        if taker in self.lost:
            return ReadyBatch([], [])
        standing, ready = self.standing, TaskStanding.READY
        found = [task for task, owner in enumerate(self.owner) if owner == NOBODY and standing[task] == ready]
        return self._placeable(found, taker)

    def moved(self, tickets: Iterable[ReadyTask], giver: int, node: int, number: int = 0) -> ReadyBatch:
        """One broker gives tasks to another; recorded before they are sent.

        If the receiver is gone already the giver is to place them anew, and nothing is to be sent. `number` is that of
        the parcel: recording it a second time changes nothing, even if the giver has got the tasks back since.
        """
        if giver in self.lost:
            return ReadyBatch([], [])
        if number:
            if number <= self._recorded.get(giver, 0):
                return ReadyBatch([], [])
            self._recorded[giver] = number
        again: list[int] = []
        for ticket in tickets:
            task = ticket.task
            if self.owner[task] == giver:
                if node in self.lost:
                    if self.standing[task] == TaskStanding.READY:
                        self._renew(task)
                        again.append(task)
                else:
                    self.owner[task] = node
                    self.giver[task] = giver
        return self._placeable(self._whole(again), giver) if again else ReadyBatch([], [])

    def recorded(self, giver: int) -> int:
        """The number of the last parcel that was recorded for a node."""
        return self._recorded.get(giver, 0)

    def lose(self, node: int, taker: int = NOBODY) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        """A node is gone with all it had: what is to be placed anew, and by owner what it should have got from there.

        The latter may or may not have arrived: the owner claims those that it has not got.
        """
        if taker in self.lost:
            return ReadyBatch([], []), {}
        self._alive_until.pop(node, None)
        self.lost.add(node)
        again: list[int] = []
        promised: dict[int, list[ReadyTask]] = {}
        for task, owner in enumerate(self.owner):
            if self.standing[task] != TaskStanding.READY:
                continue
            if owner == node:
                self._renew(task)
                again.append(task)
            elif self.giver.get(task) == node:
                promised.setdefault(owner, []).append(ReadyTask(task, self.generation[task] * STRIDE))
        again += self._lose_files(node)
        return self._placeable(self._whole(again), taker), promised

    def claim(self, node: int, tickets: Iterable[ReadyTask]) -> ReadyBatch:
        """A node has not got these promised tasks; those that nobody else can have are placed anew by it."""
        found = []
        for ticket in tickets:
            task = ticket.task
            if (
                self.standing[task] == TaskStanding.READY
                and self.owner[task] == node
                and (task not in self.giver or self.giver[task] in self.lost)
                and ticket.attempt == self.generation[task] * STRIDE
            ):
                self._renew(task)
                found.append(task)
        return self._placeable(self._whole(found), node)

    def hand_back(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyTask | None:
        """A broker cannot run a task and has let go of it: the ticket for another one, None if it does not count."""
        task = ticket.task
        if self.standing[task] != TaskStanding.READY or self._is_fenced(task, ticket.attempt):
            return None
        self._renew(task)
        self.owner[task] = taker
        return ReadyTask(task, self.generation[task] * STRIDE, ticket.failures, ticket.losses)

    def _renew(self, task: int) -> None:
        self.generation[task] += 1
        self.owner[task] = NOBODY
        self.giver.pop(task, None)

    # ---- who is there --------------------------------------------------------------------------------------------

    def renew(self, node: int, now: float = 0.0) -> bool:
        """A node is alive, from now on for the length of a lease; False: it was declared lost and must end."""
        if node in self.lost:
            return False
        self._alive_until[node] = now + self._lease
        return True

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over and that nobody has declared lost yet, in order."""
        return sorted(node for node, until in self._alive_until.items() if until < now)

    def has_lease(self, node: int) -> bool:
        """Whether a node was heard of and is not lost."""
        return node in self._alive_until

    def start_leases(self, now: float) -> None:
        """All who have a lease get a new one: the time until now was told by another clock."""
        self._alive_until = dict.fromkeys(self._alive_until, now + self._lease)

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Where a task's inputs are, as pairs of node and bytes."""
        location, sizes, replicas = self.location, self.sizes, self.replicas
        if not location:
            return ()
        inputs = self.work.inputs_of(task)
        if len(inputs) == 1:
            file = inputs[0]
            if location[file] < 0 or not sizes[file]:
                return ()
            if file not in replicas:
                return ((location[file], sizes[file]),)
        found: dict[int, int] = {}
        for file in inputs:
            node = location[file]
            if node >= 0 and sizes[file]:
                found[node] = found.get(node, 0) + sizes[file]
                for other in replicas.get(file, ()):
                    found[other] = found.get(other, 0) + sizes[file]
        return tuple(found.items())

    def copies(self, file: int) -> list[int]:
        """The nodes that have a file."""
        if not self.has_files or self.location[file] < 0:
            return []
        return [self.location[file], *self.replicas.get(file, ())]

    def copied(self, file: int, node: int) -> None:
        """A node has got a copy."""
        if not self.has_files:
            return
        if self.location[file] == EVERYWHERE:
            if node not in self.lost:
                self.location[file] = node
        elif self.location[file] >= 0 and self.location[file] != node and node not in self.lost:
            others = self.replicas.setdefault(file, [])
            if node not in others:
                others.append(node)

    def dropped(self, file: int, node: int) -> None:
        """A node has let go of its copy; the last one is never let go of by choice."""
        if not self.has_files:
            return
        others = self.replicas.get(file)
        if self.location[file] == node:
            self.location[file] = others.pop(0) if others else GONE
        elif others and node in others:
            others.remove(node)
        if others is not None and not others:
            del self.replicas[file]

    def _lose_files(self, node: int) -> list[int]:
        """Files whose last copy was there; the producers that must run again for what is not done yet."""
        if not self.has_files:
            return []
        lost = []
        for file, place in enumerate(self.location):
            if place == node:
                self.dropped(file, node)
                if self.location[file] == GONE:
                    if self._is_source(file):
                        self.location[file] = EVERYWHERE
                    else:
                        lost.append(file)
        for file in [file for file, others in self.replicas.items() if node in others]:
            self.dropped(file, node)
        return self._remake(lost)

    def _remake(self, lost: list[int]) -> list[int]:
        """Tasks that must run again, so that the lost files exist for those that still need them."""
        again: list[int] = []
        wanted = [file for file in lost if self._is_needed(file)]
        for file in wanted:  # grows while we walk it
            task = self._producer_of(file)
            if task == NO_TASK or self.standing[task] != TaskStanding.DONE:
                continue  # nobody can make it again, or it is being made
            self.standing[task] = TaskStanding.READY
            self._renew(task)
            self.left += 1
            self.ready_count += 1
            again.append(task)
            for child in self.work.children_of(task):
                self.pending[child] += 1
            wanted += [other for other in self.work.inputs_of(task) if self.location[other] == GONE]
        return self._whole(again)

    def _is_source(self, file: int) -> bool:
        """Whether it came from outside: nobody has to run to have it again."""
        task = self._producer_of(file)
        return task == NO_TASK or self._is_empty[self.work.category[task]]

    def _is_needed(self, file: int) -> bool:
        task = self._producer_of(file)
        return task != NO_TASK and any(
            self.standing[child] < TaskStanding.DONE for child in self.work.children_of(task)
        )

    def _producer_of(self, file: int) -> int:
        if not self._producer:
            self._producer = array("i", [NO_TASK]) * len(self.work.file_bytes)
            for task in range(len(self.work)):
                for made in self.work.outputs_of(task):
                    self._producer[made] = task
        return self._producer[file]

    def _whole(self, tasks: list[int]) -> list[int]:
        """Those that can be placed at once. The others wait from now on, or end with what they wait for."""
        found = []
        for task in tasks:
            if self.standing[task] != TaskStanding.READY:
                continue  # it was named twice
            if self.has_files and self._is_hopeless(task):
                self._end(task, TaskStanding.DOOMED)
            elif not self.pending[task]:
                found.append(task)
            else:
                self.standing[task] = TaskStanding.WAITING
                self.ready_count -= 1
        return [task for task in found if self.standing[task] == TaskStanding.READY]

    def _is_hopeless(self, task: int) -> bool:
        """Whether something that it reads is gone, and who could make it has failed."""
        for file in self.work.inputs_of(task):
            if self.location[file] == GONE:
                producer = self._producer_of(file)
                if producer == NO_TASK or self.standing[producer] > TaskStanding.DONE:
                    return True
        return False

    def missing(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyBatch:
        """A task found an input missing when it started: it waits for it, or is placed anew if it is there now."""
        task = ticket.task
        if self.standing[task] != TaskStanding.READY or ticket.attempt <= self.generation[task] * STRIDE:
            return ReadyBatch([], [])
        self._renew(task)
        inputs = self.work.inputs_of(task) if self.has_files else ()
        again = self._remake([file for file in inputs if self.location[file] == GONE])
        return self._placeable([*again, *self._whole([task])], taker)
