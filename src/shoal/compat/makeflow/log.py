"""The log of the original program, `<file>.makeflowlog`, which users and other tools read.

The ledger decides which rules are done, because it identifies rules by content, the log by number. The log is read only
to check its format, to clean up, and to import the results of runs of the original program (`import_results`).
"""

from __future__ import annotations

import os
import re
import time
from array import array
from enum import IntEnum

from shoal.core.graph import Graph, topological_order
from shoal.errors import InputError
from shoal.execution.files.files import look_at_files
from shoal.ledger.file import LedgerReader, LedgerWriter
from shoal.ledger.identity import Versions, content_of, place_of
from shoal.ledger.records import TaskEnded, decode
from shoal.ledger.workspace import Workspace

EXPECTED_SIZE = 1 << 30
"""Size that the original writes for a file that does not exist yet."""


_RECORD = re.compile(rb"#|\s*\d+\s+-?\d+\s+-?\d+\s+-?\d+")
_FILE_RECORD = re.compile(r"# FILE \d+ (.+) (\d) \d+$")


class RuleState(IntEnum):
    """States of a rule, with their numbers in the log."""

    WAITING = 0
    RUNNING = 1
    COMPLETE = 2
    FAILED = 3
    ABORTED = 4


class FileState(IntEnum):
    """States of a file, with their numbers in the log."""

    EXPECT = 1
    EXISTS = 2
    COMPLETE = 3
    DELETED = 4


class MakeflowLog:
    """Appends records to one log, each written immediately."""

    def __init__(self, path: str, graph: Graph) -> None:
        self.path = path
        self.is_new = not os.path.exists(path)
        try:
            self._file = open(path, "a", encoding="utf-8", errors="surrogateescape", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"cannot write the log {path!r}: {error.strerror}") from None
        self._states = bytearray(len(graph))
        self._counts = [len(graph), 0, 0, 0, 0]
        self._jobs = array("q", bytes(8 * len(graph)))
        self._total = len(graph)
        self._next_job = 1

    def begin(self, done: list[int]) -> None:
        """Records the start of a run; rules that are up to date count as complete without a record."""
        for rule in done:
            self._move(rule, RuleState.COMPLETE)
        self._write(f"# STARTED {_now()}")

    def job_of(self, rule: int) -> int:
        return self._jobs[rule]

    def new_job(self, rule: int) -> int:
        """Assigns a job number to a new attempt."""
        self._jobs[rule] = self._next_job
        self._next_job += 1
        return self._jobs[rule]

    def rule(self, rule: int, state: RuleState) -> None:
        self._move(rule, state)
        counts = " ".join(map(str, self._counts))
        self._write(f"{_now()} {rule} {int(state)} {self._jobs[rule]} {counts} {self._total}")

    def file(self, name: str, state: FileState, size: int = EXPECTED_SIZE) -> None:
        self._write(f"# FILE {_now()} {name} {int(state)} {size}")

    def count(self, state: RuleState) -> int:
        return self._counts[state]

    def rules_in(self, state: RuleState) -> list[int]:
        return [rule for rule, found in enumerate(self._states) if found == state]

    def end(self, word: str) -> None:
        """Records the end of the run; `word` is COMPLETED, FAILED or ABORTED."""
        self._write(f"# {word} {_now()}")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def describe(self, graph: Graph, categories: list[str]) -> None:
        """Writes records that describe each rule (`--log-verbose`)."""
        for rule in reversed(range(len(graph))):
            category = categories[rule]
            parents = sorted(set(graph.predecessors_of(rule)))
            for word, values in (
                ("NODE", [str(graph.actions[rule])]),
                ("CATEGORY", [category]),
                ("SYMBOL", [category]),
                ("PARENTS", list(map(str, parents))),
                ("SOURCES", graph.input_names(rule)),
                ("TARGETS", graph.output_names(rule)),
                ("COMMAND", [str(graph.actions[rule])]),
            ):
                self._write("\t".join([f"# {word}", str(rule), *values]))

    def _move(self, rule: int, state: RuleState) -> None:
        self._counts[self._states[rule]] -= 1
        self._counts[state] += 1
        self._states[rule] = state

    def _write(self, line: str) -> None:
        self._file.write(on_one_line(line) + "\n")


def _now() -> int:
    return time.time_ns() // 1000


def on_one_line(text: str) -> str:
    """Escapes line ends in a name or command, so that a record is one line."""
    return text.replace("\n", "\\n")


def check_log(path: str) -> None:
    """Refuses a file that is not a log, to protect users' files; truncates an incomplete last line."""
    if not os.path.isfile(path):
        return
    with open(path, "rb+") as file:
        whole = 0
        for number, line in enumerate(file, 1):
            if whole and not line.endswith(b"\n"):
                break
            if not _RECORD.match(line):
                raise InputError(
                    f"{path} appears to be corrupted on line {number}",
                    remedy="remove it to start from scratch, or choose another log with -l",
                )
            whole += len(line)
        else:
            return
        file.truncate(whole)


def existing_files(path: str) -> list[str]:
    """Returns the files that, according to the log, were made and not removed."""
    return [name for name, state in _last_states(path).items() if state in (FileState.EXISTS, FileState.COMPLETE)]


def started_files(path: str) -> frozenset[str]:
    """Returns the names, as in the log, of files that rules had made or started to make at the end of the log."""
    return frozenset(name for name, state in _last_states(path).items() if state != FileState.DELETED)


def _last_states(path: str) -> dict[str, int]:
    states: dict[str, int] = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if record := _FILE_RECORD.match(line):
                    states[record[1]] = int(record[2])
    except OSError:
        return {}
    return states


_FILE = re.compile(r"# FILE \d+ (.*) (\d+) \d+$")
_RULE = re.compile(r"(\d+) (\d+) (\d+) \S+ \d+ \d+ \d+ \d+ \d+ (\d+)$")
_SLACK = 1.0
"""The original counts in whole seconds."""


def import_results(log: str, graph: Graph, workspace: Workspace) -> int:
    """Adds results to the ledger for rules that the log shows as done, if the ledger has none; returns their number."""
    if not os.path.exists(log) or _has_results(workspace):
        return 0
    done = _completed(log, graph)
    if not done:
        return 0
    versions = Versions(graph)
    look_at_files(graph, bytearray(b"\1" * len(graph)), versions, by_content=False, check_sources=False)
    ledger = LedgerWriter(workspace.ledger, workspace.ballast)
    taken = 0
    try:
        for rule in topological_order(graph):
            moment = done.get(rule)
            if moment is not None and _is_valid(graph, rule, versions, moment):
                ledger.add(_result(graph, rule, versions, moment))
                taken += 1
    finally:
        ledger.close()
    return taken


def _has_results(workspace: Workspace) -> bool:
    return any(isinstance(decode(payload), TaskEnded) for payload in LedgerReader(workspace.ledger).payloads())


def _completed(log: str, graph: Graph) -> dict[int, float]:
    """Returns the completion times of the completed rules whose outputs have the same names in the log."""
    done: dict[int, float] = {}
    made: set[str] = set()
    with open(log, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if record := _FILE.match(line):
                if int(record[2]) == FileState.EXISTS:
                    made.add(record[1])
            elif record := _RULE.match(line):
                moment, rule, state, total = map(int, record.groups())
                if total != len(graph) or rule >= total:
                    return {}  # the log belongs to another workflow
                done.pop(rule, None)
                if state == RuleState.COMPLETE and made.issuperset(map(on_one_line, graph.output_names(rule))):
                    done[rule] = moment / 1e6
    return done


def _is_valid(graph: Graph, rule: int, versions: Versions, moment: float) -> bool:
    inputs, outputs = graph.inputs_of(rule), graph.outputs_of(rule)
    newest = max((versions.times[file] / 1e9 for file in inputs if file not in versions.folders), default=0.0)
    return newest <= moment + _SLACK and all(versions.sizes[file] >= 0 for file in (*inputs, *outputs))


def _result(graph: Graph, rule: int, versions: Versions, moment: float) -> TaskEnded:
    versions.done[rule] = moment
    outputs = [(versions.sizes[file], versions.times[file]) for file in graph.outputs_of(rule)]
    identity = (place_of(graph, rule), content_of(graph, rule), versions.digest_of_inputs(rule))
    nothing = (0.0, 0.0, 0, 0, 0, "")
    ended = (moment, moment, *nothing)
    return TaskEnded(rule, 1, "ok", True, 0, *ended, *identity, outputs, None, check=versions.check)
