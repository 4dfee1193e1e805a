"""Files of a run on nodes that share none, seen from the client: what is brought there, and what comes back."""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
from collections.abc import Callable, Sequence

import msgspec

from shoal.agent.depot import grant_at
from shoal.agent.goods import SOURCE, SOURCES, Made, encode_made, object_name
from shoal.agent.messages import FilesAsked, FilesTold, Piece, SourcePart, WireMessage
from shoal.cluster.selection import Selection
from shoal.depot.cache import Cache
from shoal.depot.fetch import Fetcher
from shoal.depot.shelf import describe
from shoal.engine.removal import remove_quietly
from shoal.errors import InputError

PART_BYTES = 4 << 20
PATIENCE_SECONDS = 60.0
AT_ONCE = 256
"""Files whose places are asked for together."""

_decode_made = msgspec.msgpack.Decoder(Made).decode
Ask = Callable[[WireMessage], WireMessage]


def bring_sources(run: str, selection: Selection, ask: Ask) -> None:
    """Sends what no task of the selection makes; the versions go with the run's other pieces."""
    made: dict[int, Made] = {}
    for at in selection.sources:
        path = selection.files[at]
        if os.path.isdir(path):
            raise InputError(f"{path!r} is a directory, which cannot be brought to other nodes", remedy="pack it")
        try:
            about = describe(path, object_name(run, at, SOURCE), precious=True, seconds_to_get=0.0)
            executable = bool(os.stat(path).st_mode & stat.S_IXUSR)
            _send(run, at, path, about.size, about.checksum, executable, ask)
        except OSError as error:
            raise InputError(f"{path!r} cannot be brought: {error.strerror}") from None
        made[at] = Made(SOURCE, about.size, about.checksum)
    ask(Piece(run, SOURCES, 0, encode_made(made)))


def _send(run: str, file: int, path: str, size: int, checksum: int, executable: bool, ask: Ask) -> None:
    with open(path, "rb") as source:
        at = 0
        while True:
            data = source.read(PART_BYTES)
            ask(SourcePart(run, file, at, data, size, checksum, executable))
            at += len(data)
            if at >= size or not data:
                return


class Return:
    """Gets files back from the nodes that have them."""

    def __init__(self, run: str, selection: Selection, folder: str, ask: Ask) -> None:
        self._run, self._ask = run, ask
        self._number = {name: at for at, name in enumerate(selection.files)}
        self._folder = folder
        self._cache: Cache | None = None
        self._fetcher: Fetcher | None = None

    def get(self, files: Sequence[str]) -> list[str]:
        """Puts files where they belong; returns those that cannot be had."""
        lost: list[str] = []
        for begin in range(0, len(files), AT_ONCE):
            lost += self._get(files[begin : begin + AT_ONCE])
        return lost

    def _get(self, files: Sequence[str]) -> list[str]:
        if self._cache is None or self._fetcher is None:
            self._cache = Cache(self._folder)
            self._fetcher = Fetcher(self._cache)
        told = self._ask(FilesAsked(self._run, [self._number[file] for file in files]))
        assert isinstance(told, FilesTold)
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
                received = self._fetcher.received_bytes  # something large is still coming
            for fetched in self._fetcher.finished():
                file = waiting.pop(fetched.name, "")
                if not file:
                    continue  # of a question that was given up
                if fetched.description is None:
                    lost.append(file)
                else:
                    self._put(fetched.name, file)
        return lost

    def _put(self, name: str, target: str) -> None:
        """A file of the user's own: one that can be changed, so not a link to what is kept.

        Made ready in our own folder, so that whoever is ended in between leaves nothing beside the target.
        """
        assert self._cache is not None
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        ready = os.path.join(self._folder, "ready")
        self._cache.link(name, ready)
        mode = os.stat(ready).st_mode
        self._cache.drop(name)  # now it is the only name of the file
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
    """Moves a file to another file system: whole or not at all."""
    fresh = f"{target}.shoal-arriving"
    try:
        shutil.copy(source, fresh)
        os.replace(fresh, target)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
    os.unlink(source)
