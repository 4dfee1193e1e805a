"""Modules of the project are loaded from what is in their files now.

Python takes the compiled form of a module if the source has the time (in seconds) and the size of the one that it was
made from. A file that was edited within a second, or got its old time back, then runs as it was before, while its
fingerprint is that of the new text. So of files that are neither installed nor Python's nor ours, this process only
takes compiled forms that hold a digest of their source (PEP 552). Python checks those by itself and so does every other
process that finds them. Other compiled forms are made anew.

Python's own loader is changed, and no finder added, because that also reaches files that are loaded by their path.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = os.path.dirname(os.__file__) + "/"
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + "/"
_CHECKED = b"\x03\0\0\0"
"""In the head of a compiled file: it holds a digest of its source, which is to be compared."""
_DIGEST = "shoal_digest"
"""The attribute of a loader that holds the digest of the source it has read."""

_plain_get_data = SourceFileLoader.get_data
_plain_set_data = SourceFileLoader.set_data
_of_project: dict[str, bool] = {}
"""By directory."""


def load_from_source() -> None:
    """From now on this process loads modules of the project as their files are."""
    SourceFileLoader.get_data = _get_data  # type: ignore[assignment, method-assign]
    SourceFileLoader.set_data = _set_data  # type: ignore[method-assign]


def _get_data(self: SourceFileLoader, path: str) -> bytes:
    data = _plain_get_data(self, path)
    if _is_of_project(self.path):
        if path == self.path:
            from importlib.util import source_hash  # needed only where there are such modules

            self.__dict__[_DIGEST] = source_hash(data)
        elif path.endswith(".pyc") and data[4:8] != _CHECKED:
            raise OSError(f"{path} does not say which source it was made from")
    return data


def _set_data(self: SourceFileLoader, path: str, data: Any, *, _mode: int = 0o666) -> None:
    digest = self.__dict__.get(_DIGEST)
    if digest is not None and path.endswith(".pyc"):
        data = bytes(data[:4]) + _CHECKED + digest + bytes(data[16:])
    _plain_set_data(self, path, data, _mode=_mode)


def _is_of_project(file: str) -> bool:
    if file.startswith(_OURS) or (file.startswith(_LIBRARY) and "-packages/" not in file):
        return False
    directory = os.path.dirname(file)
    found = _of_project.get(directory)
    if found is None:
        # An installed package may be a link to the place where somebody works on it.
        whole = os.path.realpath(directory) + "/" if "-packages/" in file else file
        found = "/site-packages/" not in whole and "/dist-packages/" not in whole
        _of_project[directory] = found
    return found
