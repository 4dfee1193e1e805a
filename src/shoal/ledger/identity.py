"""Identity of tasks across runs: digests of what a task makes and does, and versions of its files.

`place` identifies the task by the files it makes or, if it makes none, by its name. `content` is what it does. A task
whose place has another content in the ledger has changed. Both are independent of the position in the workflow file.
Resources are part of neither: a larger memory request does not invalidate a result.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

from shoal.core.graph import Graph
from shoal.core.task import STRICT, Call
from shoal.ledger.records import BY_TIME

PLACE_BYTES = 16
CONTENT_BYTES = 8
FOLDER_UNSEEN = (0, 1)
"""What older ledgers record for a directory; they only compared its existence."""
ABSENT = (-1, 0)
Seen: TypeAlias = Callable[[int], tuple[int, int]]
"""Returns size and time (or content number) of a file."""
_MOMENT = struct.Struct("=d")


def place_of(graph: Graph, task: int) -> bytes:
    begin, end = graph.output_start[task], graph.output_start[task + 1]
    if begin == end:
        text = "\1" + graph.names[task]
    elif end - begin == 1:
        text = graph.file_names[graph.outputs[begin]]
    else:
        text = "\0".join(graph.output_names(task))
    return place_of_text(text)


def place_of_text(text: str) -> bytes:
    """The place of a task that makes the files in `text`, separated by NUL; or, after a \\1, of a task with this
    name."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=PLACE_BYTES).digest()


def content_of(graph: Graph, task: int) -> bytes:
    action = graph.actions[task]
    if isinstance(action, Call):
        words = ["\1call", action.fingerprint]
        words += [f"{key}={value}" for key, value in (*action.wildcards, *action.named)]
    else:
        words = [action or ""]
    profile = graph.profiles[graph.profile[task]]
    if profile.environment:
        words += [f"\1env\0{name}={value}" for name, value in profile.environment]
    if profile.directory:
        words.append(f"\1cwd\0{profile.directory}")
    if profile.shell and profile.shell != STRICT and isinstance(action, str):
        words.append(f"\1shell\0{profile.shell}")
    if graph.input_start[task] != graph.input_start[task + 1]:
        words += graph.input_names(task)
    text = "\0".join(words)
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=CONTENT_BYTES).digest()


class Versions:
    """Versions of files and tasks in a run: size and time of each file, and when each task was done.

    A file that does not exist has size -1. With `--check content` the time is a number computed from the file's
    content. For a directory they are the total bytes below it and a number computed from its listing.
    """

    def __init__(self, graph: Graph, check: int = BY_TIME) -> None:
        self.graph = graph
        self.check = check
        """How files are compared: `BY_TIME` or `BY_CONTENT`."""
        self.sizes = array("q", b"\xff" * (8 * len(graph.file_names)))
        self.times = array("q", bytes(8 * len(graph.file_names)))
        self.folders: set[int] = set()
        """Files that are directories."""
        self.standing = array("i")
        """Outputs that existed when the plan was made, including dangling links."""
        self.done = array("d", bytes(8 * len(graph)))
        """When a task's result was accepted; 0.0 for tasks that are not done, and for groups."""
        self.look: Callable[[int, int], tuple[int, int] | None] | None = None
        """Examines a file with a given check, for results that were recorded with the other one."""
        self._otherwise: dict[int, tuple[int, int]] = {}
        self._groups: dict[int, bytes] = {}
        self._groups_otherwise: dict[int, bytes] = {}

    def seen(self, file: int, check: int) -> tuple[int, int]:
        """Size and time of a file, or size and content number."""
        if check == self.check or self.look is None:
            return self.sizes[file], self.times[file]
        found = self._otherwise.get(file)
        if found is None:
            found = self._otherwise[file] = self.look(file, check) or ABSENT
        return found

    def assume(self, file: int, check: int, pair: tuple[int, int]) -> None:
        """Records a version for a file that does not exist, as if it did."""
        if check == self.check:
            self.sizes[file], self.times[file] = pair
        else:
            self._otherwise[file] = pair

    def digest_of_inputs(self, task: int) -> bytes:
        """Digest of size and time of each input file and the version of each direct dependency.

        A call that makes a file may also have a return value, so its version is included with the file.
        """
        graph = self.graph
        begin, end = graph.input_start[task], graph.input_start[task + 1]
        first, last = graph.after_start[task], graph.after_start[task + 1]
        if begin == end and first == last:
            return b""
        state = blake2b(digest_size=8)
        if begin != end:
            files = graph.inputs[begin:end]
            state.update(array("q", [self.sizes[file] for file in files]).tobytes())
            state.update(array("q", [self.times[file] for file in files]).tobytes())
            self._add_values(state, files)
        if first != last:
            self._add_versions(state, graph.after[first:last], self._groups, self._seen_here)
        return state.digest()

    def digest_otherwise(self, task: int, check: int) -> bytes:
        """The same digest with files compared by `check`."""
        if check == self.check:
            return self.digest_of_inputs(task)
        graph = self.graph
        files, others = graph.inputs_of(task), graph.after_of(task)
        if not files and not others:
            return b""
        state = blake2b(digest_size=8)
        if files:
            pairs = [self.seen(file, check) for file in files]
            state.update(array("q", [size for size, _ in pairs]).tobytes())
            state.update(array("q", [time for _, time in pairs]).tobytes())
            self._add_values(state, files)
        if others:
            self._add_versions(state, others, self._groups_otherwise, lambda file: self.seen(file, check))
        return state.digest()

    def forget_groups(self) -> None:
        """Clears the cached versions of groups, because some of their members will run again."""
        self._groups.clear()

    def _seen_here(self, file: int) -> tuple[int, int]:
        return self.sizes[file], self.times[file]

    def _add_values(self, state: blake2b, files: array[int]) -> None:
        producer, actions = self.graph.producer, self.graph.actions
        for file in files:
            maker = producer[file]
            if maker >= 0 and type(actions[maker]) is Call:
                state.update(_MOMENT.pack(self.done[maker]))

    def _add_versions(self, state: blake2b, others: array[int], known: dict[int, bytes], seen: Seen) -> None:
        actions, done, pack = self.graph.actions, self.done, _MOMENT.pack
        for other in others:
            state.update(pack(done[other]) if actions[other] is not None else self._group(other, known, seen))

    def _group(self, group: int, known: dict[int, bytes], seen: Seen) -> bytes:
        """The version of a group: a digest of its members in order, so that it changes with every member. Groups in it
        are processed first, without recursion."""
        graph, actions = self.graph, self.graph.actions
        stack = [group]
        while stack:
            top = stack[-1]
            unknown = [other for other in graph.after_of(top) if actions[other] is None and other not in known]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            if top in known:
                continue
            state = blake2b(digest_size=8)
            files = graph.inputs_of(top)
            for file in files:
                name = graph.file_names[file].encode("utf-8", "surrogateescape")
                state.update(b"%d %d %s\0" % (*seen(file), name))
            self._add_values(state, files)
            for other in graph.after_of(top):
                state.update(known[other] if actions[other] is None else _MOMENT.pack(self.done[other]))
            known[top] = state.digest()
        return known[group]


class OldVersions:
    """The comparison rules of older ledgers that do not record the kind of check: the version of a group is that of its
    newest member, and of a directory only its existence counts."""

    def __init__(self, versions: Versions, check: int) -> None:
        self._versions = versions
        self._check = check
        self._groups: dict[int, float] = {}

    def seen(self, file: int) -> tuple[int, int]:
        return FOLDER_UNSEEN if file in self._versions.folders else self._versions.seen(file, self._check)

    def digest_of_inputs(self, task: int) -> bytes:
        graph = self._versions.graph
        files, others = graph.inputs_of(task), graph.after_of(task)
        if not files and not others:
            return b""
        state = blake2b(digest_size=8)
        if files:
            pairs = [self.seen(file) for file in files]
            state.update(array("q", [size for size, _ in pairs]).tobytes())
            state.update(array("q", [time for _, time in pairs]).tobytes())
        if others:
            state.update(array("d", [self._version(other) for other in others]).tobytes())
        return state.digest()

    def _version(self, task: int) -> float:
        graph, known = self._versions.graph, self._groups
        actions, done = graph.actions, self._versions.done
        if actions[task] is not None:
            return done[task]
        stack = [task]
        while stack:
            top = stack[-1]
            members = list(graph.predecessors_of(top))
            unknown = [other for other in members if actions[other] is None and other not in known]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            newest = max((known[other] if actions[other] is None else done[other] for other in members), default=0.0)
            files = max((self.seen(file)[1] / 1e9 for file in graph.inputs_of(top)), default=0.0)
            known[top] = max(newest, files, 1.0)
        return known[task]
