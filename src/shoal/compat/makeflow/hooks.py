"""Hooks that make a run behave like `makeflow`: messages, log, directories of failed rules, and garbage collection.

`MakeflowHooks` serves a run in two roles: it changes each command before its start and its outcome afterwards
(attendant), and it receives the scheduler's decisions about each attempt (listener).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from array import array
from collections.abc import Sequence

from shoal.compat.makeflow.command_wrapping import (
    MakeflowSettings,
    in_sandbox,
    monitored,
    sandboxes,
    waiting_for,
    wrapped,
)
from shoal.compat.makeflow.log import FileState, MakeflowLog, RuleState
from shoal.compat.makeflow.workflow import limits_of
from shoal.core.graph import NO_TASK, Graph
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import BYTE_RESOURCES, FRACTION
from shoal.execution.attempt_recorder import EndedAttempt
from shoal.execution.files.trees import remove_quietly, remove_tree
from shoal.formats.makeflow import Makeflow
from shoal.ledger.identity import place_of
from shoal.ledger.statistics import Statistics
from shoal.ledger.up_to_date import Plan


def failed_directory(rule: int) -> str:
    return f"makeflow.failed.{rule}"


def keep_failed(graph: Graph, attempt: EndedAttempt, category: str) -> None:
    """Moves the outputs of a failed attempt into a directory of the rule, with a description of the rule."""
    rule = attempt.task
    directory = failed_directory(rule)
    if os.path.isdir(directory) and not os.path.islink(directory):  # a file of this name belongs to the user
        remove_quietly(directory)
    os.makedirs(directory, exist_ok=True)
    for name in graph.output_names(rule):
        if os.path.lexists(name):
            place = os.path.join(directory, name.lstrip("/").replace("../", ""))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.move(name, place)
    with open(os.path.join(directory, "INFO.json"), "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(_describe(graph, attempt, category), file, indent=2, ensure_ascii=False)
        file.write("\n")


def _describe(graph: Graph, attempt: EndedAttempt, category: str) -> dict[str, object]:
    rule = attempt.task
    profile = graph.profile_of(rule)
    ended = {"exit_signal": -attempt.status} if attempt.status < 0 else {"exit_code": attempt.status}
    return {
        **ended,
        "command": graph.actions[rule],
        "message": attempt.message,
        "inputs": [{"dag_name": name} for name in graph.input_names(rule)],
        "outputs": [{"dag_name": name} for name in graph.output_names(rule)],
        "environment": dict(profile.environment),
        "category": category,
        "resources": {
            name: amount // 2**20 if name in BYTE_RESOURCES else amount / FRACTION
            for name, amount in profile.resources.amounts
            if name != "jobs"
        },
    }


class Collector:
    """Garbage collection of intermediate files: counts the readers of every file that a rule makes."""

    def __init__(self, graph: Graph, plan: Plan, kept: frozenset[str], settings: MakeflowSettings) -> None:
        self.graph = graph
        self.settings = settings
        self.removed: list[str] = []
        """Names removed since the caller last cleared the list."""
        self._kept = kept
        self._readers = array("i", bytes(4 * len(graph.file_names)))
        for task in plan.to_run():
            for file in dict.fromkeys(graph.inputs_of(task)):
                self._readers[file] += 1
        self._existing = 0
        """Number of files that rules have made and that still exist."""
        self._candidates: list[int] = []
        self._count_existing(plan)

    def _count_existing(self, plan: Plan) -> None:
        """Counts the files of earlier runs, and makes those that no rule of this run reads candidates for removal."""
        graph = self.graph
        is_read = bytearray(len(graph.file_names))
        for file in graph.inputs:
            is_read[file] = 1
        for file, maker in enumerate(graph.producer):
            name = graph.file_names[file]
            if maker != NO_TASK and not plan.runs(maker) and os.path.lexists(name):
                self._existing += 1
                if is_read[file] and not self._readers[file] and name not in self._kept:
                    self._candidates.append(file)

    def task_done(self, task: int) -> None:
        """Updates the counts after a rule is done: its outputs exist, and it no longer needs its inputs."""
        graph = self.graph
        self._existing += len(graph.outputs_of(task))
        for file in dict.fromkeys(graph.inputs_of(task)):
            self._readers[file] -= 1
            if not self._readers[file] and graph.producer[file] != NO_TASK and graph.file_names[file] not in self._kept:
                self._candidates.append(file)

    def collect(self) -> list[bytes]:
        """Removes all candidates if it is time to; returns the places of the rules that made them."""
        if not self._candidates or not self._is_time():
            return []
        graph = self.graph
        places: dict[bytes, None] = {}
        for file in self._candidates:
            name = graph.file_names[file]
            if remove_file(name):
                self.removed.append(name)
                places[place_of(graph, graph.producer[file])] = None
            self._existing -= 1
        self._candidates.clear()
        return list(places)

    def _is_time(self) -> bool:
        if self.settings.collection != "on_demand":
            return True
        if self._existing > self.settings.collect_above:
            return True
        disk = os.statvfs(".")
        return disk.f_bavail * disk.f_frsize <= self.settings.collect_below


def remove_file(name: str) -> bool:
    """Removes a file, or a directory with its contents; False if it does not exist or cannot be removed."""
    if not os.path.lexists(name):
        return False
    try:
        remove_tree(name, force=False)
    except OSError:
        return False
    return True


RUN_AGAIN = 101
"""Exit status by which a command requests to be run again."""
LIMITS_EXCEEDED = (2, 3)
_PIECE_BYTES = 1 << 20


class MakeflowHooks:
    """Prints the messages and writes the log of the original program around each attempt."""

    def __init__(self, settings: MakeflowSettings, document: Makeflow, graph: Graph) -> None:
        self.settings = settings
        self.document = document
        self.graph = graph
        self.log: MakeflowLog | None = None
        self.collector: Collector | None = None
        self._readers_left: dict[int, int] = {}

    def begin(self, plan: Plan, log: MakeflowLog, kept: frozenset[str]) -> None:
        """Prepares for a run with this plan and log; files in `kept` are never collected."""
        self.log = log
        for name in sandboxes("*") if self.settings.sandbox else []:
            remove_file(name)  # of a run that was killed
        if self.settings.collection != "none":
            self.collector = Collector(self.graph, plan, kept, self.settings)
        for task in plan.to_run():
            for file in dict.fromkeys(self.graph.inputs_of(task)):
                self._readers_left[file] = self._readers_left.get(file, 0) + 1

    def wrap_command(self, task: int, command: str) -> str:
        """Returns the command inside wrappers, sandbox, monitor and waiting loop, as the options require."""
        settings, graph = self.settings, self.graph
        command = self._wrap(task, command)
        outputs = [*graph.output_names(task), *self._of_wrapper(settings.wrapper_outputs, task)]
        if settings.sandbox:
            inputs = [*graph.input_names(task), *self._of_wrapper(settings.wrapper_inputs, task)]
            command = in_sandbox(command, task, inputs, outputs)
        if settings.monitor is not None:
            rule = self.document.rules[task]
            command = monitored(command, task, settings.monitor, rule.category, limits_of(self.document, rule))
        if settings.wait_for_files:
            command = waiting_for(command, outputs, settings.wait_for_files)
        return command

    def _wrap(self, task: int, command: str) -> str:
        """Returns the command as messages show it: inside the user's wrappers only."""
        for wrapper in self.settings.wrappers:
            command = wrapped(command, wrapper, task)
        return command

    @staticmethod
    def _of_wrapper(names: Sequence[str], task: int) -> list[str]:
        return [name.replace("%%", str(task)) for name in names]

    def started(self, task: int, attempt: int) -> None:
        log = self._log()
        if attempt > 1:
            log.rule(task, RuleState.WAITING)
        job = log.new_job(task)
        for name in self.graph.output_names(task):
            log.file(name, FileState.EXPECT)
        log.rule(task, RuleState.RUNNING)
        self.print_message(f"submitting job: {self._wrap(task, str(self.graph.actions[task]))}\nsubmitted job {job}")

    def ended(self, attempt: EndedAttempt) -> None:
        """Determines the outcome of an attempt by the rules of the original."""
        if attempt.outcome is AttemptOutcome.CANCELLED:
            self._aborted(attempt)
            return
        self.print_message(f"job {self._log().job_of(attempt.task)} completed")
        if attempt.outcome is AttemptOutcome.OK:
            self._check_further(attempt)
        if attempt.outcome is AttemptOutcome.OK:
            self._succeeded(attempt)
        elif attempt.outcome is not AttemptOutcome.LOST:
            self._failed(attempt)

    def _check_further(self, attempt: EndedAttempt) -> None:
        """Checks what the options require in addition to the outputs."""
        task = attempt.task
        for name in self._of_wrapper(self.settings.wrapper_outputs, task):
            if not os.path.exists(name):
                attempt.outcome, attempt.message = AttemptOutcome.FAILED, f"exit status 0, but it did not make {name!r}"
                return
        if self.settings.refuse_empty:
            for name in self.graph.output_names(task):
                if os.path.isfile(name) and not os.path.getsize(name):
                    attempt.outcome, attempt.message = AttemptOutcome.FAILED, f"exit status 0, but {name!r} is empty"
                    return

    def _succeeded(self, attempt: EndedAttempt) -> None:
        log, graph, task = self._log(), self.graph, attempt.task
        for name in [*graph.output_names(task), *self._of_wrapper(self.settings.wrapper_outputs, task)]:
            log.file(name, FileState.EXISTS, os.path.getsize(name) if os.path.exists(name) else 0)
        for file in dict.fromkeys(graph.inputs_of(task)):
            self._readers_left[file] -= 1
            if not self._readers_left[file] and graph.producer[file] != NO_TASK:
                name = graph.file_names[file]
                log.file(name, FileState.COMPLETE, os.path.getsize(name) if os.path.exists(name) else 0)
        self._drop_failed_directory(task)
        log.rule(task, RuleState.COMPLETE)

    def _failed(self, attempt: EndedAttempt) -> None:
        log, graph, task = self._log(), self.graph, attempt.task
        self.print_error(f"{graph.actions[task]} {self._how_it_failed(attempt)}")
        if attempt.status == RUN_AGAIN and self.settings.run_again:
            attempt.outcome = AttemptOutcome.AGAIN
        if self.settings.save_failed:
            self._drop_failed_directory(task)
            self.print_error(f"rule {task} failed, moving any outputs to {failed_directory(task)}")
            try:
                keep_failed(graph, attempt, self.document.rules[task].category)
                log.file(failed_directory(task), FileState.COMPLETE, 0)
            except OSError as error:  # the other rules can continue
                self.print_error(f"rule {task} failed, cannot move outputs: {error}")
        self._delete_outputs(task)
        log.rule(task, RuleState.FAILED)

    def _how_it_failed(self, attempt: EndedAttempt) -> str:
        if attempt.status < 0:
            return f"crashed with signal {-attempt.status} ({signal.strsignal(-attempt.status)})"
        if self.settings.monitor is not None and attempt.status in LIMITS_EXCEEDED:
            return "was ended because it exceeded its resources"
        if attempt.status:
            return f"failed with exit code {attempt.status}"
        missing = [
            name
            for name in [
                *self.graph.output_names(attempt.task),
                *self._of_wrapper(self.settings.wrapper_outputs, attempt.task),
            ]
            if not os.path.exists(name)
        ]
        if missing:
            return f"did not create file {missing[0]}"
        return f"failed: {attempt.message}"

    def _aborted(self, attempt: EndedAttempt) -> None:
        self._delete_outputs(attempt.task)
        self._log().rule(attempt.task, RuleState.ABORTED)

    def _delete_outputs(self, task: int) -> None:
        for name in self.graph.output_names(task):
            if remove_file(name):
                self.print_message(f"deleted {name}")
            self._log().file(name, FileState.DELETED)

    def _drop_failed_directory(self, task: int) -> None:
        directory = failed_directory(task)
        if os.path.isdir(directory):
            remove_file(directory)
            self.print_message(f"deleted {directory}")
            self._log().file(directory, FileState.DELETED, 0)

    def collect(self) -> list[bytes]:
        """Removes files that no rule needs any more."""
        if self.collector is None:
            return []
        places = self.collector.collect()
        for name in self.collector.removed:
            self.print_message(f"deleted {name}")
            self._log().file(name, FileState.DELETED)
        self.collector.removed.clear()
        return places

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "done" and self.collector is not None:
            self.collector.task_done(attempt.task)
        if verdict == "retry" and attempt.outcome is not AttemptOutcome.LOST:
            self.print_error(f"will retry failed job {self.graph.actions[attempt.task]}")

    def tick(self, statistics: Statistics, now: float) -> None:
        """Does nothing: the original shows no progress."""

    def note(self, text: str) -> None:
        self.print_error(text)

    def _log(self) -> MakeflowLog:
        assert self.log is not None, "nothing is started before the log is open"
        return self.log

    @staticmethod
    def print_message(text: str) -> None:
        print(text, flush=True)

    @staticmethod
    def print_error(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
