"""A task's identity across runs is its content, never its position in the file.

`place` says which task it is (the files it makes; without any, its name), `content` what it does. A task whose place is
known with another content has changed. Resources are not part of either: asking for more memory does not make a
finished result wrong.
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
"""What ledgers have of a directory from the time when only its being there counted."""
ABSENT = (-1, 0)
Seen: TypeAlias = Callable[[int], tuple[int, int]]
"""From a file to its size and time, or what stands for them."""
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
    """The place of a task that makes the files of this text (with a NUL between them), or is named so behind a \\1."""
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
    """What the tasks of a run have made so far: sizes and times of files, and when each task was done.

    A file that does not exist has size -1. With `--check content` the time is a number made from the file's content. Of
    a directory they are the bytes below it and a number made from its listing.
    """

    def __init__(self, graph: Graph, check: int = BY_TIME) -> None:
        self.graph = graph
        self.check = check
        """How files are looked at: `BY_TIME` or `BY_CONTENT`."""
        self.sizes = array("q", b"\xff" * (8 * len(graph.file_names)))
        self.times = array("q", bytes(8 * len(graph.file_names)))
        self.folders: set[int] = set()
        """Files that are directories."""
        self.standing = array("i")
        """Outputs that were there, if only as a link that leads nowhere, when the plan was made."""
        self.done = array("d", bytes(8 * len(graph)))
        """When a task's accepted result came in; 0.0 for those not done, and for groups."""
        self.look: Callable[[int, int], tuple[int, int] | None] | None = None
        """Looks at a file in one of the two ways; for results that were recorded in the other one."""
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
        """Takes a file that is not there for being as it was recorded."""
        if check == self.check:
            self.sizes[file], self.times[file] = pair
        else:
            self._otherwise[file] = pair

    def digest_of_inputs(self, task: int) -> bytes:
        """Digest over size and time of each input file and the version of each task it directly comes after.

        A call that makes a file may have a value beside it, so its version counts with the file.
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
        """The same for files as the other check sees them."""
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
        """Groups are looked at again: some of what they group will be made anew."""
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
        """The version of a group: a digest over its members in their order, so that no change of one hides behind
        another. Those of groups in it are found first, without recursion."""
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
    """How ledgers compare that do not say how they looked at files: a group was as new as the newest of what it
    groups, and of a directory only its being there counted."""

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
