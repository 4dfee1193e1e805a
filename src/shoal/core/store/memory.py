"""The run store in memory: dependencies, finished tasks, owners of tasks, and locations of files.

`shoal.core.store.interface` describes the guarantees of the operations. Waiting tasks live here, not in a scheduler.
The most frequent operation is `complete`: its reply contains the children that became ready and the locations of their
inputs, so that the scheduler that completed the last parent can place them immediately.

When a node is lost its tasks are placed again. Files whose last copy was on the node are made again if they are still
needed: their producers, and if necessary the producers of their inputs, are no longer done. Source files remain at
their origin. A task that finds an input missing at its start returns here (`missing`) and waits until the file exists
again; if no task can make it any more, the task is doomed.

`rows.lua`, `tasks.lua` and `files.lua` implement the same rules inside Redis: every change here must be made there,
too.
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
    """The log and the named data of a run, as opaque bytes."""

    def __init__(self) -> None:
        self._log: list[bytes] = []
        self._pieces: dict[str, bytes] = {}
        self._about: dict[int, bytes] = {}

    def about_of(self, file: int) -> bytes | None:
        """Opaque information about a file from the task that made it last."""
        return self._about.get(file)

    def note(self, entry: bytes) -> None:
        """Appends an entry to the log."""
        self._log.append(entry)

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """Up to `most` log entries from number `start` on."""
        return self._log[start : start + most]

    def put_piece(self, name: str, data: bytes) -> None:
        """Stores named data of the run."""
        self._pieces[name] = data

    def get_piece(self, name: str) -> bytes | None:
        """Data stored under a name."""
        return self._pieces.get(name)

    def forget(self) -> None:
        """Removes log and named data."""
        self._log.clear()
        self._pieces.clear()


__all__ = ["GONE", "NOBODY", "STRIDE", "MemoryStore", "ReadyBatch", "TaskStanding"]


NOTHING_READY = ReadyBatch([], [])
NO_TASKS: list[int] = []
"""Shared empty list; never modified."""


class MemoryStore(StoreNotes):
    """The shared state of one run, in memory."""

    def __init__(self, work: Work, nodes: int, *, shared_files: bool = False, lease: float = LEASE) -> None:
        """With `shared_files` all nodes see all files, so files have no locations."""
        super().__init__()
        self.size = tasks = len(work)
        self.work = work
        self.standing = bytearray(tasks)
        self.pending = array("i", work.waits_for)
        self.generation = array("i", bytes(4 * tasks))
        self.owner = array("i", [NOBODY]) * tasks
        self.giver: dict[int, int] = {}
        """By task: the previous owner, if the task was moved."""
        self.lost: set[int] = set()
        """Nodes that were declared lost."""
        self._lease = lease
        self._alive_until: dict[int, float] = {}
        self._recorded: dict[int, int] = {}
        """By giver: number of the last recorded transfer."""
        self.left = tasks
        """Number of tasks that are neither done nor given up."""
        self.ready_count = 0
        self.has_files = bool(work.input_start) and not shared_files
        """Whether the store tracks locations of files."""
        self.location = array("i", [GONE]) * len(work.file_bytes) if self.has_files else array("i")
        """The first node that has each file, `EVERYWHERE`, or `GONE`."""
        self.sizes: Any = work.file_bytes
        self.replicas: dict[int, list[int]] = {}
        """By file: further nodes that have it."""
        self._producer = array("i")
        self._is_empty = [not profile.resources.amounts for profile in work.profiles]
        """By category: whether its tasks run nothing."""
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
        """The same as `left`: the store is local."""
        return self.left

    @property
    def seen_ready(self) -> int:
        """The same as `ready_count`."""
        return self.ready_count

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing to release."""

    def begin(self) -> ReadyBatch:
        """Returns the tasks that are ready at the start; called once. Tasks that run nothing are completed here."""
        return self._placeable(self._settle([task for task, count in enumerate(self.pending) if not count]))

    def _settle(self, ready: list[int]) -> list[int]:
        """Completes ready tasks without resources: they run nothing and use no core. Returns the others."""
        empty, category = self._is_empty, self.work.category
        found: list[int] = []
        for task in ready:  # the list grows during the loop
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
        """Records results of a node. Returns the accepted tasks and the newly ready ones."""
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
        """Returns the accepted results and logs their entries."""
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
        if not self._about:  # the sizes in `work.file_bytes` are shared with other users until now
            self.sizes = array("q", self.sizes)
        for (task, attempt), files in zip(ended, made, strict=True):
            if self.standing[task] == TaskStanding.READY and attempt > self.generation[task] * STRIDE:
                for file, size, about in files:
                    self.sizes[file] = size
                    self._about[file] = about

    def _release(self, task: int, node: int) -> list[int]:
        """Marks the task as done; returns the children for which it was the last dependency."""
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
        """Records that a task failed for good or is cancelled. Returns the tasks that can therefore never run.

        `attempt` is the last one, if a scheduler gives the task up: with an earlier generation there is no effect.
        """
        if self.standing[task] > TaskStanding.READY or (attempt is not None and self._is_fenced(task, attempt)):
            return []
        if entry:
            self._log.append(entry)
        return self._end(task, TaskStanding.FAILED)

    def _is_fenced(self, task: int, attempt: int) -> bool:
        return attempt < self.generation[task] * STRIDE

    def _end(self, task: int, standing: TaskStanding) -> list[int]:
        """Sets a final state without a result; returns the tasks that are doomed by it."""
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
                else:  # it has read this task's output before; a missing input is detected when it is placed
                    self.pending[child] -= 1
        return doomed

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Cancels tasks and everything that depends on them; returns those owned by schedulers, which must be
        notified."""
        held = []
        for task in tasks:
            if self.standing[task] == TaskStanding.READY:
                held.append(task)
            self.give_up(task)
        return held

    def standing_of(self, task: int) -> TaskStanding:
        """State of a task."""
        return TaskStanding(self.standing[task])

    def standings(self) -> bytes:
        """States of all tasks, one byte each."""
        return bytes(self.standing)

    def whereabouts(self, task: int) -> tuple[TaskStanding, int, int]:
        """State of a task, number of its unfinished dependencies, and the node that owns it."""
        return TaskStanding(self.standing[task]), self.pending[task], self.owner[task]

    # ---- owners of tasks -----------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """Assigns tasks from the store to a scheduler; has no effect if the node is lost."""
        if node in self.lost:
            return
        for task in tasks:
            self.owner[task] = node
            self.giver.pop(task, None)

    def unowned(self, taker: int = NOBODY) -> ReadyBatch:
        """Ready tasks without an owner: the node that should have placed them is lost."""
        if taker in self.lost:
            return ReadyBatch([], [])
        standing, ready = self.standing, TaskStanding.READY
        found = [task for task, owner in enumerate(self.owner) if owner == NOBODY and standing[task] == ready]
        return self._placeable(found, taker)

    def moved(self, tickets: Iterable[ReadyTask], giver: int, node: int, number: int = 0) -> ReadyBatch:
        """Records that one scheduler gives tasks to another, before they are sent.

        If the receiver is lost already, the giver must place them again and send nothing. `number` is the sequence
        number of the transfer: recording it a second time has no effect, even if the giver has got the tasks back
        since.
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
        """Sequence number of the last transfer recorded for a node."""
        return self._recorded.get(giver, 0)

    def lose(self, node: int, taker: int = NOBODY) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        """Declares a node lost. Returns its tasks for placement, and by owner the tasks that were in transit from the
        node.

        The latter may have arrived or not: the owner claims those that it does not have.
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
        """Reports that promised tasks have not arrived; the node places those again that no other node can have."""
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
        """Takes a task back from a scheduler that cannot run it; returns it for another one, or None if it is
        outdated."""
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

    # ---- leases of nodes -----------------------------------------------------------------------------------------

    def renew(self, node: int, now: float = 0.0) -> bool:
        """Renews the lease of a node; False: it was declared lost and must terminate."""
        if node in self.lost:
            return False
        self._alive_until[node] = now + self._lease
        return True

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes with an expired lease that were not declared lost yet, in order."""
        return sorted(node for node, until in self._alive_until.items() if until < now)

    def has_lease(self, node: int) -> bool:
        """Whether a node has ever renewed its lease and is not lost."""
        return node in self._alive_until

    def start_leases(self, now: float) -> None:
        """Restarts all leases: the times so far came from another clock."""
        self._alive_until = dict.fromkeys(self._alive_until, now + self._lease)

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Locations of a task's inputs, as pairs of node and bytes."""
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
        """Nodes that have a copy of a file."""
        if not self.has_files or self.location[file] < 0:
            return []
        return [self.location[file], *self.replicas.get(file, ())]

    def copied(self, file: int, node: int) -> None:
        """Records that a node has a copy of a file."""
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
        """Records that a node has removed its copy; the last copy is never removed deliberately."""
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
        """Removes the copies of a lost node; returns the producers that must run again for unfinished tasks."""
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
        """Tasks that must run again so that the lost files exist for the tasks that still need them."""
        again: list[int] = []
        wanted = [file for file in lost if self._is_needed(file)]
        for file in wanted:  # the list grows during the loop
            task = self._producer_of(file)
            if task == NO_TASK or self.standing[task] != TaskStanding.DONE:
                continue  # no task can make it again, or it is being made
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
        """Whether the file came from outside: no task has to run to restore it."""
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
        """Tasks that can be placed now. The others wait again, or are doomed with their missing inputs."""
        found = []
        for task in tasks:
            if self.standing[task] != TaskStanding.READY:
                continue  # listed twice
            if self.has_files and self._is_hopeless(task):
                self._end(task, TaskStanding.DOOMED)
            elif not self.pending[task]:
                found.append(task)
            else:
                self.standing[task] = TaskStanding.WAITING
                self.ready_count -= 1
        return [task for task in found if self.standing[task] == TaskStanding.READY]

    def _is_hopeless(self, task: int) -> bool:
        """Whether an input is gone and its producer has failed."""
        for file in self.work.inputs_of(task):
            if self.location[file] == GONE:
                producer = self._producer_of(file)
                if producer == NO_TASK or self.standing[producer] > TaskStanding.DONE:
                    return True
        return False

    def missing(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyBatch:
        """Reports that an input was missing at the start of a task: the task waits for it, or is placed again if it
        exists."""
        task = ticket.task
        if self.standing[task] != TaskStanding.READY or ticket.attempt <= self.generation[task] * STRIDE:
            return ReadyBatch([], [])
        self._renew(task)
        inputs = self.work.inputs_of(task) if self.has_files else ()
        again = self._remake([file for file in inputs if self.location[file] == GONE])
        return self._placeable([*again, *self._whole([task])], taker)
