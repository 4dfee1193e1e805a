"""A project on disk: its files as the model reads them, snapshots of all of them, and what a user does to them."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from dataclasses import dataclass

RECORDS = ".shoal"
SECOND = 1_000_000_000
_HIDDEN = (RECORDS, "__pycache__")


@dataclass(frozen=True)
class Entry:
    """One file, link or directory of a snapshot."""

    kind: str
    """file, link or directory."""
    content: bytes | str = b""
    """Bytes, or a link's target."""
    time: int = 0

    def same(self, other: Entry | None) -> bool:
        """Of directories only that they are there counts."""
        return other is not None and (self == other if self.kind == "file" else self.plain() == other.plain())

    def plain(self) -> tuple[str, bytes | str]:
        return self.kind, self.content


Tree = dict[str, Entry]


class Project:
    """A directory with a workflow; names are relative to it."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    # ---- as the model reads it -------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read()
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, root_dir=self.root))

    def below(self, name: str) -> list[str]:
        at = glob.escape(name)
        return [each for each in [*self.glob(f"{at}/*"), *self.glob(f"{at}/*/*")] if os.path.isfile(self.path(each))]

    def is_directory(self, name: str) -> bool:
        return os.path.isdir(self.path(name))

    def entry(self, name: str) -> bytes | tuple[str, str] | None:
        path = self.path(name)
        return ("link", os.readlink(path)) if os.path.islink(path) else self.read(name)

    # ---- snapshots -------------------------------------------------------------------------------------------------

    def tree(self) -> Tree:
        """Everything in the project but Shoal's records and Python's caches."""
        found: Tree = {}
        self._walk(self.root, "", found)
        return found

    def _walk(self, folder: str, prefix: str, found: Tree) -> None:
        for each in os.scandir(folder):
            if each.name in _HIDDEN:
                continue
            name = prefix + each.name
            status = each.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                found[name] = Entry("link", os.readlink(each.path))
            elif stat.S_ISDIR(status.st_mode):
                found[name] = Entry("directory")
                self._walk(each.path, f"{name}/", found)
            else:
                with open(each.path, "rb") as stream:
                    found[name] = Entry("file", stream.read(), status.st_mtime_ns)

    def kept_content(self) -> set[bytes]:
        """The bytes of every file among Shoal's records."""
        found = set()
        for folder, _, names in os.walk(self.path(RECORDS)):
            for name in names:
                try:
                    with open(os.path.join(folder, name), "rb") as stream:
                        found.add(stream.read())
                except OSError:
                    pass
        return found

    # ---- what a user does ------------------------------------------------------------------------------------------

    def write(self, name: str, content: bytes, time: int | None = None) -> None:
        """Writes a file through a link, as an editor does; `time` in nanoseconds."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content)
        if time is not None:
            os.utime(path, ns=(time, time))

    def link(self, name: str, target: str) -> None:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)

    def remove(self, name: str) -> None:
        path = self.path(name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def time(self, name: str) -> int:
        return os.stat(self.path(name)).st_mtime_ns
