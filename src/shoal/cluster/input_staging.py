"""Staging of a run's files for nodes without a shared file system: uploads inputs, downloads results. Client side."""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
import sys
from collections.abc import Callable, Sequence

import msgspec

from shoal.cluster.agent.messages import FilesReply, FilesRequest, SourcePart, SubmissionPiece, WireMessage
from shoal.cluster.agent.node_cache import grant_at
from shoal.cluster.agent.task_files import SOURCE, SOURCES, FileVersion, encode_made, object_name
from shoal.cluster.selection import Selection, values_read
from shoal.core.graph import Graph
from shoal.core.task import Call
from shoal.data.cache import Cache
from shoal.data.fetch import Fetcher
from shoal.data.shelf import describe
from shoal.errors import InputError
from shoal.execution.calls.graph_calls import Values
from shoal.execution.files.trees import remove_quietly
from shoal.ledger.identity import place_of
from shoal.ledger.workspace import Workspace

PART_BYTES = 4 << 20
PATIENCE_SECONDS = 60.0
AT_ONCE = 256
"""Number of files whose locations are requested together."""

_decode_made = msgspec.msgpack.Decoder(FileVersion).decode
Ask = Callable[[WireMessage], WireMessage]


def upload_inputs(run: str, selection: Selection, ask: Ask) -> None:
    """Uploads the input files that no task of the selection makes; their versions are sent with the other pieces of the
    run."""
    made: dict[int, FileVersion] = {}
    for at in selection.sources:
        path = selection.files[at]
        if os.path.isdir(path):
            raise InputError(f"{path!r} is a directory, which cannot be sent to other nodes", remedy="pack it")
        try:
            about = describe(path, object_name(run, at, SOURCE), precious=True, seconds_to_get=0.0)
            executable = bool(os.stat(path).st_mode & stat.S_IXUSR)
            _send(run, at, path, about.size, about.checksum, executable, ask)
        except OSError as error:
            raise InputError(f"{path!r} cannot be sent: {error.strerror}") from None
        made[at] = FileVersion(SOURCE, about.size, about.checksum)
    ask(SubmissionPiece(run, SOURCES, 0, encode_made(made)))


def _send(run: str, file: int, path: str, size: int, checksum: int, executable: bool, ask: Ask) -> None:
    with open(path, "rb") as source:
        at = 0
        while True:
            data = source.read(PART_BYTES)
            ask(SourcePart(run, file, at, data, size, checksum, executable))
            at += len(data)
            if at >= size or not data:
                return


class OutputReturn:
    """Downloads result files from the nodes that have them."""

    def __init__(self, run: str, selection: Selection, folder: str, ask: Ask) -> None:
        self._run, self._ask = run, ask
        self._number = {name: at for at, name in enumerate(selection.files)}
        self._folder = folder
        self._cache: Cache | None = None
        self._fetcher: Fetcher | None = None

    def get(self, files: Sequence[str]) -> list[str]:
        """Downloads files to their final paths; returns those that are not available."""
        lost: list[str] = []
        for begin in range(0, len(files), AT_ONCE):
            lost += self._get(files[begin : begin + AT_ONCE])
        return lost

    def _get(self, files: Sequence[str]) -> list[str]:
        if self._cache is None or self._fetcher is None:
            self._cache = Cache(self._folder)
            self._fetcher = Fetcher(self._cache)
        told = self._ask(FilesRequest(self._run, [self._number[file] for file in files]))
        assert isinstance(told, FilesReply)
        waiting: dict[str, str] = {}
        lost: list[str] = []
        for file, place in zip(files, told.files, strict=True):
            if not place.made:
                lost.append(file)
                continue
            made = _decode_made(place.made)
            name = object_name(self._run, self._number[file], made.attempt)
            grants = [grant_at(address, told.token, told.encrypted) for address in place.places]
            waiting[name] = file
            self._fetcher.fetch(name, [grant for grant in grants if grant is not None], made.size, made.checksum)
        poll = select.poll()
        poll.register(self._fetcher.fd(), select.POLLIN)
        received = -1
        while waiting:
            if not poll.poll(PATIENCE_SECONDS * 1000):
                if self._fetcher.received_bytes == received:
                    return [*lost, *waiting.values()]
                received = self._fetcher.received_bytes  # a large file is still arriving
            for fetched in self._fetcher.finished():
                file = waiting.pop(fetched.name, "")
                if not file:
                    continue  # of a request that was given up
                if fetched.description is None:
                    lost.append(file)
                else:
                    self._put(fetched.name, file)
        return lost

    def _put(self, name: str, target: str) -> None:
        """Writes a file that the user may modify, so it is not a link to the cached object.

        It is prepared in our own directory: a process that is killed in between leaves no partial file beside the
        target.
        """
        assert self._cache is not None
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        ready = os.path.join(self._folder, "ready")
        self._cache.link(name, ready)
        mode = os.stat(ready).st_mode
        self._cache.drop(name)  # the target is now the only name of the file
        os.chmod(ready, mode | stat.S_IWUSR)
        try:
            os.replace(ready, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_over(ready, target)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        if self._cache is not None:
            self._cache.close()
        remove_quietly(self._folder)


def _move_over(source: str, target: str) -> None:
    """Moves a file to another file system atomically."""
    fresh = f"{target}.shoal-arriving"
    try:
        shutil.copy(source, fresh)
        os.replace(fresh, target)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
    os.unlink(source)


class WorkspaceCalls:
    """Call descriptions and results in the workflow's `.shoal` directory, where those of local runs are."""

    def __init__(self, graph: Graph, workspace: Workspace) -> None:
        self._graph = graph
        self._folder = os.path.join(workspace.directory, "calls")
        self._values = os.path.relpath(workspace.values, workspace.base)
        self._calls = os.path.relpath(self._folder, workspace.base)

    def call_of(self, task: int) -> str:
        return f"{self._calls}/{place_of(self._graph, task).hex()}"

    def value_of(self, task: int) -> str:
        return f"{self._values}/{place_of(self._graph, task).hex()}"

    def write(self, tasks: Sequence[int], values: Values) -> None:
        """Writes the descriptions of the calls among `tasks`, and the results of earlier runs that they need."""
        graph, chosen = self._graph, set(tasks)
        for task in tasks:
            action = graph.actions[task]
            if isinstance(action, Call):
                self._write_call(task, action)
                for other in self._makers(task):
                    if other not in chosen:
                        self._write_value(other, values)

    def _makers(self, task: int) -> list[int]:
        """Calls whose results a call may read."""
        graph = self._graph
        found = [graph.producer[file] for file in graph.inputs_of(task)] + list(graph.after_of(task))
        return [maker for maker in found if maker >= 0 and isinstance(graph.actions[maker], Call)]

    def _write_call(self, task: int, action: Call) -> None:
        from shoal.execution.calls.call_main import pack_call
        from shoal.execution.calls.protocol import plain_payload, task_payload

        graph = self._graph
        needs = [graph.file_names[file] for file in graph.inputs_of(task)]
        needs += [graph.names[other] for other in graph.after_of(task)]
        try:
            if action.wants_task:
                payload = task_payload(
                    graph.names[task],
                    graph.output_names(task),
                    needs,
                    named=dict(action.named),
                    wildcards=dict(action.wildcards),
                )
            else:
                payload = plain_payload(action.arguments, dict(action.keywords))
            packed = pack_call(action.function, payload, values_read(graph, task, self), sys.path)
        except Exception as error:  # pickling the user's own objects may raise anything
            raise InputError(
                f"{graph.names[task]!r} cannot be sent to other nodes: {type(error).__name__}: {error}",
                file=graph.source,
                line=graph.lines[task] or None,
            ) from None
        _write(self.call_of(task), packed)

    def _write_value(self, task: int, values: Values) -> None:
        value = values.get(task)
        if value is not None and not os.path.exists(self.value_of(task)):
            _write(self.value_of(task), value)

    def clear(self) -> None:
        remove_quietly(self._folder)


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)
