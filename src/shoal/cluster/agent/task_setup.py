"""Prepares attempts on a node and cleans up after them: room for outputs, launcher orders, captured output, output
checks."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from shoal.cluster.agent.run_description import RunDescription, Seen, TaskSpec, TaskSpecs
from shoal.core.file_names import restored
from shoal.core.task import Profile
from shoal.errors import RunError
from shoal.execution.files.files import signature
from shoal.execution.files.moves import OutputMoves, is_there
from shoal.execution.files.trees import as_listing, list_tree, signature_of_entries
from shoal.execution.processes.launcher_messages import Order
from shoal.execution.processes.orders import settings_of, shell_of
from shoal.execution.processes.shell import NO_BASH, lacks_bash, program
from shoal.ledger.attempt_journal import OutputBefore
from shoal.ledger.cluster_notes import is_given_up, note_path
from shoal.ledger.ownership import DirectoryEntry, Listing, encode_listings
from shoal.ledger.workspace import Workspace

OUTPUT_BYTES = 64 << 10
"""Maximum bytes at the end of a task's standard output that are sent to the client."""
NOTHING: Order = (0, 0, b"", 0.0, b"", b"", 0, b"")


class GivenUpError(RunError):
    """The user has given the run up: no task of it may start, and no file of the workflow may be touched."""


def why_ended(run: str, about: RunDescription) -> str:
    """Returns why a run is ended before this node opens it; empty if its user has not given it up."""
    if about.managed or not about.workflow or not is_given_up(Workspace(about.workflow, about.base), run):
        return ""
    return _given_up_sentence(run, about)


def _given_up_sentence(run: str, about: RunDescription) -> str:
    return f"run {run} of {about.workflow!r} was given up with 'shoal cancel --forget', so it is ended"


class TaskSetup:
    """Setup and cleanup of the tasks of one run on one node.

    The current directory is the workflow's directory, if nodes share a file system.
    """

    def __init__(self, run: str, about: RunDescription, profiles: Sequence[Profile], task_specs: TaskSpecs) -> None:
        self._run, self._about, self._base = run, about, about.base
        self._task_specs = task_specs
        profiles = [restored(profile, Profile) for profile in profiles]
        self._circumstances = [settings_of(profile) for profile in profiles]
        self._profiles = profiles
        self._shell = [shell_of(profile) for profile in profiles]
        self._may_lack_bash = program("bash") is None
        self.notes: list[str] = []
        """Messages for the user about this node and its files that were not sent yet."""
        self._memory = [profile.resources.get("memory") if about.enforced else 0 for profile in profiles]
        self._disk = [profile.resources.get("disk") if about.enforced else 0 for profile in profiles]
        self._made = {""}
        workspace = Workspace(about.workflow, about.base)
        self._asides = OutputMoves(workspace)
        self._given_up = note_path(workspace, run) if about.workflow and not about.managed else ""
        self._output = -1
        self._output_path = ""

    def read_output_from(self, path: str) -> None:
        self._output_path = path

    def _command(self, spec: TaskSpec, category: int, base: str) -> bytes:
        """Returns the launcher's command. The description of a call is named relative to `base`, in case the task runs
        elsewhere."""
        if not spec.value:
            return os.fsencode(spec.command)
        words = [sys.executable, "-m", "shoal.execution.calls.call_main", spec.command, spec.value]
        if self._profiles[category].directory:
            words.append(base)
        return os.fsencode(shlex.join(words))

    def _shell_of(self, spec: TaskSpec, category: int) -> bytes:
        """Returns the shell of a category; the user's choice applies to their commands, not to Python calls."""
        if spec.value:
            return b""
        shell = self._profiles[category].shell
        if self._may_lack_bash and lacks_bash(shell, spec.command):
            self._may_lack_bash = False
            self.notes.append(NO_BASH)
        return self._shell[category]

    def refuse_given_up(self) -> None:
        """Raises `GivenUpError` if the run was given up. The check is one system call before each attempt."""
        if self._given_up and os.path.exists(self._given_up):
            raise GivenUpError(_given_up_sentence(self._run, self._about))

    def spec(self, task: int) -> TaskSpec:
        return self._task_specs.of(task)

    def order_in(self, folder: str, task: int, attempt: int, category: int) -> Order:
        """Returns the launcher order to run a task in a directory of its own."""
        spec = self._task_specs.of(task)
        limit, variables, directory = self._circumstances[category]
        place = os.path.join(os.fsencode(folder), directory)
        if directory and not os.path.isabs(directory):
            with suppress(OSError):  # otherwise the launcher reports that it cannot change to the directory
                os.makedirs(place, exist_ok=True)  # the task's inputs and outputs may all be elsewhere
        circumstances = (limit, variables, place, self._memory[category], self._shell_of(spec, category))
        plain = (task, attempt, self._command(spec, category, folder), *circumstances)
        disk = self._disk[category]
        if not disk:
            return plain
        paths = b"".join(os.fsencode(os.path.join(folder, name)) + b"\0" for name in spec.outputs)
        return (*plain, disk, paths)

    def order(self, task: int, attempt: int, category: int) -> tuple[Order, str | None]:
        """Returns the launcher order, and why the task cannot be started, or None."""
        self.refuse_given_up()
        spec = self._task_specs.of(task)
        obstacle = self._make_room(spec, is_first=attempt == 1)
        if obstacle is not None:
            return NOTHING, obstacle
        shell = self._shell_of(spec, category)
        circumstances = (*self._circumstances[category], self._memory[category], shell)
        plain = (task, attempt, self._command(spec, category, self._base), *circumstances)
        disk = self._disk[category]
        if not disk:
            return plain, None
        paths = b"".join(os.fsencode(os.path.join(self._base, name)) + b"\0" for name in spec.outputs)
        return (*plain, disk, paths), None

    def _make_room(self, spec: TaskSpec, *, is_first: bool) -> str | None:
        """Removes the outputs of earlier attempts. Files from before the run are in the client's backup. A file that
        has appeared since then is kept if no node has attempted the task before; otherwise it is half-made by an
        earlier attempt."""
        befores = None
        for at, name in enumerate(spec.outputs):
            parent = os.path.dirname(name)
            try:
                if parent not in self._made:
                    os.makedirs(parent, exist_ok=True)
                    self._made.add(parent)
                if not is_there(name):
                    continue
                if name == spec.value:
                    os.unlink(name)
                    continue
                befores = befores or _befores(spec)
                before = befores[at]
                if not is_first:
                    self._asides.take_away(before)
                elif not before.remains and not before.others:
                    where = self._asides.keep(name, name, name)
                    self.notes.append(f"{name!r} did not exist when the run was submitted: it is kept as {where}")
            except OSError as error:
                return f"cannot prepare its output {name!r}: {error.strerror}"
        return None

    def has_half_made(self, task: int) -> bool:
        """Whether half-made files may stand under the names of the task's outputs."""
        return any(is_there(name) for name in self._task_specs.of(task).outputs)

    def take_away(self, task: int) -> str:
        """Moves the half-made outputs of a failed attempt to `partial`; returns a message with the new path."""
        self.refuse_given_up()  # the files may belong to a later run
        spec = self._task_specs.of(task)
        places = []
        for before in _befores(spec):
            name = os.fsdecode(before.path)
            try:
                if name == spec.value:
                    os.unlink(name)
                else:
                    places += [*self._asides.take_away(before).values()][:1]
            except FileNotFoundError:
                pass
            except OSError as error:
                return f"cannot move the partial output {name!r}: {error.strerror}"
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return f"what it had made is kept as {places[0]}{more}" if places else ""

    def look(self, task: int) -> tuple[tuple[Seen, ...], bytes, str | None]:
        """Returns the state of each output as the task left it, with listings for the ledger, and a message about the
        first missing output, or None. The client may look later, when other programs have changed the files."""
        spec = self._task_specs.of(task)
        found: list[Seen] = []
        listings: dict[int, Listing] = {}
        befores = None
        for at, name in enumerate(spec.outputs):
            try:
                is_plain = stat.S_ISREG(os.lstat(name).st_mode)
            except OSError:
                is_plain = False
            listing: Listing = {}
            if is_plain:
                pair = signature(name, by_content=False)
            else:
                befores = befores or _befores(spec)
                pair, listing = _look_closely(name, befores[at])
            if pair is None:
                return (), b"", f"exit status 0, but it did not make {name!r}"
            found.append((*pair, not is_plain and os.path.isdir(name)))
            if listing:
                listings[at] = listing
        return tuple(found), encode_listings(listings), None

    def output_of(self, at: int, size: int, tail: bytes) -> bytes:
        """Returns the output of a task, or its end if it is long."""
        if not size:
            return b""
        if size <= len(tail):
            return bytes(tail[-size:])
        if self._output < 0:
            self._output = os.open(self._output_path, os.O_RDONLY | os.O_CLOEXEC)
        begin = max(at, at + size - OUTPUT_BYTES)
        return os.pread(self._output, at + size - begin, begin)

    def close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


_decode_befores = msgspec.msgpack.Decoder(list[OutputBefore]).decode


def _befores(spec: TaskSpec) -> list[OutputBefore]:
    """Returns what remains under the name of each output of a task."""
    told = _decode_befores(spec.before) if spec.before else []
    return told + [OutputBefore(os.fsencode(name)) for name in spec.outputs[len(told) :]]


def _look_closely(name: str, before: OutputBefore) -> tuple[tuple[int, int] | None, Listing]:
    """Returns the signature of an output that is not a plain file, and its entries that did not exist before."""
    if os.path.islink(name):
        return signature(name, by_content=False), {"": DirectoryEntry("link", 0, 0, os.readlink(name))}
    if not os.path.isdir(name):
        return signature(name, by_content=False), {}
    others, stood = set(map(os.fsdecode, before.others)), set(map(os.fsdecode, before.stood))
    entries = list(list_tree(name, is_left_out=others.__contains__))
    listing = {"": DirectoryEntry("directory", 0, 0, "")} | as_listing(entries)
    return signature_of_entries(entries), {each: entry for each, entry in listing.items() if each not in stood}
