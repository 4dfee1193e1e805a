"""A task's identity across runs is its content, never its position in the file.

`place` says which task it is (the files it makes; without any, its name), `content` what it does. A task whose place is
known with another content has changed. Resources are not part of either: asking for more memory does not make a
finished result wrong.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from shoal.model.graph import Graph
from shoal.model.task import Call

PLACE_BYTES = 16
CONTENT_BYTES = 8


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
    if graph.input_start[task] != graph.input_start[task + 1]:
        words += graph.input_names(task)
    text = "\0".join(words)
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=CONTENT_BYTES).digest()


class Versions:
    """What the tasks of a run have made so far: sizes and times of files, and when each task was done.

    A file that does not exist has size -1. With `--check content` the time is a number made from the file's content.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = array("q", b"\xff" * (8 * len(graph.file_names)))
        self.times = array("q", bytes(8 * len(graph.file_names)))
        self.done = array("d", bytes(8 * len(graph)))
        """When a task's accepted result came in; 0.0 for those not done, and for groups until asked for."""

    def of_task(self, task: int) -> float:
        """The version of a task that is done; that of a group is the newest of what it groups, found once."""
        graph, done = self.graph, self.done
        stack = [task]
        while stack:
            top = stack[-1]
            if done[top] or graph.actions[top] is not None:
                stack.pop()
                continue
            unknown = [
                other for other in graph.predecessors_of(top) if not done[other] and graph.actions[other] is None
            ]
            if unknown:
                stack += unknown
                continue
            newest = max((done[other] for other in graph.predecessors_of(top)), default=0.0)
            files = max((self.times[file] / 1e9 for file in graph.inputs_of(top)), default=0.0)
            done[top] = max(newest, files, 1.0)
            stack.pop()
        return done[task]

    def digest_of_inputs(self, task: int) -> bytes:
        """Digest over size and time of each input file and the version of each task it directly comes after."""
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
        if first != last:
            state.update(array("d", [self.of_task(other) for other in graph.after[first:last]]).tobytes())
        return state.digest()
