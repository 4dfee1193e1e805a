"""The workflow graph: tasks and files as dense integers, edges in flat arrays; its builder, and queries on it.

A `GraphBuilder` takes tasks one at a time from a front end. `build()` closes the graph: it lays out the edges and
rejects cycles; two producers of one file are rejected, too. A million tasks must fit in well under 1 GB. Therefore
there is no object per task or file, only columns, and all traversals are iterative.

Task *t* reads files `inputs[input_start[t]:input_start[t + 1]]` and makes files
`outputs[output_start[t]:output_start[t + 1]]`. `successors` has one entry per edge: a task that reads two files of one
producer appears twice there and is counted twice in `pending`. Completing the producer removes both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import msgspec

from shoal.core.file_names import (
    MOST_FOLDERS,
    Relative,
    check_name,
    has_odd_names,
    is_unusable,
    plain_name,
    refuse_unusable,
    without_ways_up,
)
from shoal.core.task import Action, Call, Profile, category_of_command
from shoal.errors import InputError

NO_TASK = -1
DEFAULT_PROFILE = Profile()


class Graph:
    """A static DAG of tasks. Built by `GraphBuilder`; read-only afterwards."""

    def __init__(self, source: str) -> None:
        self.source = source
        """Name of the workflow file, for messages."""
        self.names: list[str] = []
        self.actions: list[Action] = []
        self.profile = array("i")
        self.profiles: list[Profile] = []
        self.lines = array("i")
        self.input_start = array("i", [0])
        self.inputs = array("i")
        self.output_start = array("i", [0])
        self.outputs = array("i")
        self.after_start = array("i", [0])
        self.after = array("i")
        """Tasks that must be done first although no file connects them (values, grouping)."""
        self.file_names: list[str] = []
        self.producer = array("i")
        self.successor_start = array("i")
        self.successors = array("i")
        self.pending = array("i")
        """Number of edges into each task."""
        self.lacking: dict[str, tuple[tuple[str, ...], str]] = {}
        """By file that counts as a source although a rule matches it: outputs of the rule, and its missing input."""
        self.order: array[int] | None = None
        """See `topological_order`."""

    def __len__(self) -> int:
        return len(self.names)

    def inputs_of(self, task: int) -> array[int]:
        return self.inputs[self.input_start[task] : self.input_start[task + 1]]

    def outputs_of(self, task: int) -> array[int]:
        return self.outputs[self.output_start[task] : self.output_start[task + 1]]

    def after_of(self, task: int) -> array[int]:
        return self.after[self.after_start[task] : self.after_start[task + 1]]

    def successors_of(self, task: int) -> array[int]:
        return self.successors[self.successor_start[task] : self.successor_start[task + 1]]

    def predecessors_of(self, task: int) -> Iterator[int]:
        """Producers of the inputs, then the tasks it comes after; a task may appear more than once."""
        for file in self.inputs_of(task):
            if self.producer[file] != NO_TASK:
                yield self.producer[file]
        yield from self.after_of(task)

    def profile_of(self, task: int) -> Profile:
        return self.profiles[self.profile[task]]

    def input_names(self, task: int) -> list[str]:
        return [self.file_names[file] for file in self.inputs_of(task)]

    def output_names(self, task: int) -> list[str]:
        return [self.file_names[file] for file in self.outputs_of(task)]

    def describe(self, task: int) -> str:
        """The task as messages refer to it: its name and the line of its definition."""
        line = self.lines[task]
        return f"{self.names[task]!r}" + (f" (line {line})" if line else "")


class GraphBuilder:
    """Builds a graph from tasks in any order; file names connect them."""

    def __init__(
        self, source: str = "<workflow>", relative: Relative | None = None, *, as_written: bool = False
    ) -> None:
        """`relative` shortens absolute file names below the workflow's directory. `as_written` keeps all file names
        unchanged, for workflows whose files are not files of this machine."""
        self.graph = Graph(source)
        self._as_written = as_written
        self._relative = relative
        self._file_ids: dict[str, int] = {}
        self._profile_ids: dict[Profile, int] = {}
        self._derived: dict[tuple[int, str], int] = {}
        self._by_first_word: dict[tuple[int, str], tuple[int, Profile]] = {}
        """By `id(profile)` and the command's first word. Holds the profile, so that its id stays valid."""

    def task(
        self,
        name: str,
        action: Action,
        *,
        inputs: Iterable[str] = (),
        outputs: Sequence[str] = (),
        after: Iterable[int] = (),
        profile: Profile | None = None,
        line: int = 0,
    ) -> int:
        """Adds one task and returns its number. An empty name is replaced by the first output or the command."""
        graph = self.graph
        number = len(graph.names)
        graph.names.append(name or (outputs[0] if outputs else str(action or number)))
        graph.actions.append(action)
        graph.profile.append(self._profile_number(profile or DEFAULT_PROFILE, action))
        graph.lines.append(line)
        if type(action) is str and ("\0" in action or not action.isascii()):
            with self._errors_at(number):
                refuse_unusable(action, "the command")
        if ("\0" in name or not name.isascii()) and name not in outputs and not self._as_written:
            with self._errors_at(number):
                refuse_unusable(name, "the name of the task")
        if inputs:
            graph.inputs.extend(map(self._file_id, inputs))
        graph.input_start.append(len(graph.inputs))
        if outputs:
            self._add_outputs(number, outputs)
        graph.output_start.append(len(graph.outputs))
        if after:
            graph.after.extend(after)
        graph.after_start.append(len(graph.after))
        return number

    def _add_outputs(self, number: int, outputs: Sequence[str]) -> None:
        graph = self.graph
        for name in outputs:
            file = self._file_id(name)
            other = graph.producer[file]
            if other == number:
                continue
            if other != NO_TASK:
                raise self._made_twice(name, other, number)
            graph.producer[file] = number
            graph.outputs.append(file)

    def _made_twice(self, name: str, first: int, second: int) -> InputError:
        graph = self.graph
        where = f" (line {graph.lines[first]})" if graph.lines[first] else ""
        return InputError(
            f"two tasks make {name!r}: {graph.names[first]!r}{where} and {graph.names[second]!r}",
            file=graph.source,
            line=graph.lines[second] or None,
            remedy="give one of them another output",
        )

    def _file_id(self, name: str) -> int:
        file = self._file_ids.get(name)
        if file is None:
            file = self._file_ids[name] = len(self.graph.file_names)
            self.graph.file_names.append(name)
            self.graph.producer.append(NO_TASK)
        return file

    def _profile_number(self, profile: Profile, action: Action) -> int:
        """As `_profile_id`, but cached: avoids hashing the profile and parsing commands with a plain first word."""
        if type(action) is not str or not action or not (action[0].isalnum() or action[0] in "./_"):
            return self._profile_id(profile, action)
        first_word = action.split(None, 1)[0]
        if "=" in first_word:
            return self._profile_id(profile, action)
        key = (id(profile), first_word)
        known = self._by_first_word.get(key)
        if known is None:
            known = self._by_first_word[key] = (self._profile_id(profile, action), profile)
        return known[0]

    def _profile_id(self, profile: Profile, action: Action) -> int:
        number = self._profile_ids.get(profile)
        if number is None:
            number = self._profile_ids[profile] = len(self.graph.profiles)
            self.graph.profiles.append(profile)
        if profile.category:
            return number
        category = derive_category(action)
        derived = self._derived.get((number, category))
        if derived is None:
            named = msgspec.structs.replace(profile, category=category)
            derived = self._derived[number, category] = self._profile_id(named, action)
        return derived

    def _normalize_names(self) -> None:
        """Normalizes all file names; several spellings of one file are joined."""
        graph = self.graph
        ids: dict[str, int] = {}
        new_ids = array("i")
        for file, name in enumerate(graph.file_names):
            plain = plain_name(name, self._relative)
            if is_unusable(plain) or len(plain) > MOST_FOLDERS:
                with self._errors_at(self._user_of(file)):
                    check_name(plain)
            new_ids.append(ids.setdefault(plain, len(ids)))
        written, graph.file_names = graph.file_names, list(ids)
        for task in range(len(graph.names)):  # most tasks are named after their first output
            begin, end = graph.output_start[task : task + 2]
            if begin < end and graph.names[task] == written[graph.outputs[begin]]:
                graph.names[task] = graph.file_names[new_ids[graph.outputs[begin]]]
        if len(ids) != len(new_ids):
            self._join_names(ids, new_ids)
        for name, file in ids.items():
            if "/../" in name:
                self._refuse_other_name(name, file, ids.get(without_ways_up(name), file))

    def _refuse_other_name(self, name: str, file: int, other: int) -> None:
        """Rejects two names that may refer to one file. What `..` means depends on symbolic links, so the names cannot
        be joined; as two files, one of them would be out of date when the other is made."""
        producer = self.graph.producer
        if file != other and (producer[file] != NO_TASK or producer[other] != NO_TASK):
            with self._errors_at(self._user_of(file)):
                raise InputError(
                    f"{name!r} may be another name of {self.graph.file_names[other]!r}",
                    remedy="write the file's name in one way",
                )

    def _join_names(self, ids: dict[str, int], new_ids: array[int]) -> None:
        """Merges files whose normalized names are equal."""
        graph = self.graph
        graph.inputs = array("i", map(new_ids.__getitem__, graph.inputs))
        outputs, starts = graph.outputs, graph.output_start
        graph.outputs, graph.output_start = array("i"), array("i", [0])
        graph.producer = array("i", [NO_TASK]) * len(ids)
        self._file_ids = ids
        for task in range(len(graph.names)):
            made = outputs[starts[task] : starts[task + 1]]
            self._add_outputs(task, [graph.file_names[new_ids[file]] for file in made])
            graph.output_start.append(len(graph.outputs))

    def _user_of(self, file: int) -> int:
        """A task that makes or reads the file, for error messages."""
        graph = self.graph
        if graph.producer[file] != NO_TASK:
            return graph.producer[file]
        return bisect_right(graph.input_start, graph.inputs.index(file)) - 1

    @contextmanager
    def _errors_at(self, task: int) -> Iterator[None]:
        """Adds the line of the task to errors that are raised inside."""
        try:
            yield
        except InputError as error:
            error.file, error.line = self.graph.source, self.graph.lines[task] or None
            raise

    def build(self) -> Graph:
        """Closes the graph: lays out the edges and rejects cycles. The builder must not be used afterwards."""
        graph = self.graph
        if not self._as_written and has_odd_names(graph.file_names):
            self._normalize_names()
        lay_out_edges(graph)
        cycle = find_cycle(graph)
        if cycle:
            shown = " -> ".join(graph.describe(task) for task in cycle)
            raise InputError(
                f"the tasks form a cycle: {shown}",
                file=graph.source,
                line=graph.lines[cycle[0]] or None,
                remedy="remove one of these dependencies",
            )
        return graph


def derive_category(action: Action) -> str:
    if isinstance(action, str):
        return category_of_command(action)
    if isinstance(action, Call):
        return getattr(action.function, "__name__", "call")
    return "group"


def lay_out_edges(graph: Graph) -> None:
    """Fills `pending`, `successor_start` and `successors` by counting, then placing: two linear passes."""
    size = len(graph.names)
    producer = graph.producer
    pending = array("i", bytes(4 * size))
    counts = array("i", bytes(4 * (size + 1)))
    for edge_from, edge_to in _edges(graph, producer):
        counts[edge_from + 1] += 1
        pending[edge_to] += 1
    start = array("i", accumulate(counts))
    place = array("i", start)
    successors = array("i", bytes(4 * start[size]))
    for edge_from, edge_to in _edges(graph, producer):
        successors[place[edge_from]] = edge_to
        place[edge_from] += 1
    graph.pending, graph.successor_start, graph.successors = pending, start, successors


def _edges(graph: Graph, producer: array[int]) -> Iterator[tuple[int, int]]:
    input_start, inputs = graph.input_start, graph.inputs
    after_start, after = graph.after_start, graph.after
    if inputs:
        begin = 0
        for task in range(len(graph.names)):
            end = input_start[task + 1]
            if begin != end:
                for file in inputs[begin:end]:
                    maker = producer[file]
                    if maker >= 0:
                        yield maker, task
                begin = end
    if after:
        begin = 0
        for task in range(len(graph.names)):
            end = after_start[task + 1]
            if begin != end:
                for other in after[begin:end]:
                    yield other, task
                begin = end


def find_cycle(graph: Graph) -> list[int]:
    """A cycle as a list of tasks, the first repeated at the end, or an empty list. Kahn's algorithm, then one walk."""
    order = topological_order(graph)
    if len(order) == len(graph):
        return []
    stuck = bytearray(b"\x01" * len(graph))
    for task in order:
        stuck[task] = 0
    # Every remaining task has a remaining predecessor, so a walk backwards must reach a task twice.
    task = stuck.index(1)
    seen: dict[int, int] = {}
    path: list[int] = []
    while task not in seen:
        seen[task] = len(path)
        path.append(task)
        task = next(other for other in graph.predecessors_of(task) if stuck[other])
    cycle = path[seen[task] :]
    cycle.reverse()
    return [cycle[-1], *cycle]


def topological_order(graph: Graph) -> array[int]:
    """Tasks in topological order; fewer than all if there is a cycle. Computed once, then cached."""
    if graph.order is not None:
        return graph.order
    pending = array("i", graph.pending)
    start, successors = graph.successor_start, graph.successors
    order = array("i", [task for task, count in enumerate(pending) if not count])
    append = order.append
    for task in order:  # the list grows during the loop
        begin, end = start[task], start[task + 1]
        if begin != end:
            for child in successors[begin:end]:
                pending[child] -= 1
                if not pending[child]:
                    append(child)
    graph.order = order
    return order


def ancestors(graph: Graph, targets: Iterable[int]) -> bytearray:
    """Marks the targets and everything they depend on."""
    wanted = bytearray(len(graph))
    stack = []
    for target in targets:
        if not wanted[target]:
            wanted[target] = 1
            stack.append(target)
    while stack:
        for other in graph.predecessors_of(stack.pop()):
            if not wanted[other]:
                wanted[other] = 1
                stack.append(other)
    return wanted


def files_read(graph: Graph, task: int, known: set[int] | None = None) -> Iterator[int]:
    """Inputs of the task, then the files of the groups that it depends on, including nested groups.

    Groups in `known` are skipped; groups that are visited are added to it.
    """
    known = set() if known is None else known
    pending = [task]
    while pending:
        top = pending.pop()
        yield from graph.inputs_of(top)
        for other in graph.after_of(top):
            if graph.actions[other] is None and other not in known:
                known.add(other)
                pending.append(other)


def files_for(graph: Graph, targets: Iterable[int]) -> set[int]:
    """Files that the targets make; for groups the files that they collect, including nested groups."""
    found: set[int] = set()
    known: set[int] = set()
    for target in targets:
        found.update(graph.outputs_of(target))
        if graph.actions[target] is None and target not in known:
            known.add(target)
            found.update(files_read(graph, target, known))
    return found


def find_task(graph: Graph, text: str, relative: Relative | None = None) -> int | None:
    """As `lookup_tasks` for a single name, without building an index."""
    names, files = graph.names, graph.file_names
    text = text if text in names else plain_name(text, relative)
    if text in names:
        return len(names) - 1 - names[::-1].index(text)  # if several tasks have this name, the last one counts
    if text in files and graph.producer[files.index(text)] != NO_TASK:
        return graph.producer[files.index(text)]
    return _numbered(graph, text)


def _numbered(graph: Graph, text: str) -> int | None:
    """The task with this number, if the text is one; a text with thousands of digits is not."""
    return int(text) if len(text) < 12 and text.isdecimal() and int(text) < len(graph) else None


def lookup_tasks(graph: Graph, relative: Relative | None = None) -> Callable[[str], int | None]:
    """A function that maps user input (name of a task, a file that it makes, or its number) to the task."""
    by_name: dict[str, int] = {}
    for file, maker in enumerate(graph.producer):
        if maker != NO_TASK:
            by_name[graph.file_names[file]] = maker
    for task, name in enumerate(graph.names):
        by_name[name] = task

    def find(text: str) -> int | None:
        found = by_name.get(text)
        if found is None:
            found = by_name.get(plain_name(text, relative))
        return found if found is not None else _numbered(graph, text)

    return find


def ranks(graph: Graph) -> array[int]:
    """Rank of each task: 0 for a sink, else the highest rank of its successors, plus one if the task runs something."""
    rank = array("i", bytes(4 * len(graph)))
    start, successors, actions = graph.successor_start, graph.successors, graph.actions
    for task in reversed(topological_order(graph)):
        begin, end = start[task], start[task + 1]
        if begin != end:
            highest = max([rank[child] for child in successors[begin:end]])
            rank[task] = highest + (actions[task] is not None)
    return rank


def upward_lengths(graph: Graph, durations: Sequence[float]) -> array[float]:
    """Length of the longest path from the start of each task to the end of the workflow."""
    length = array("d", durations)
    start, successors = graph.successor_start, graph.successors
    for task in reversed(topological_order(graph)):
        begin, end = start[task], start[task + 1]
        if begin != end:
            length[task] += max([length[child] for child in successors[begin:end]])
    return length
