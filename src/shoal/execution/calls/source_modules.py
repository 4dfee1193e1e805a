"""Makes workers import project modules from their current source, not from stale compiled files.

Python uses the compiled form of a module if the source has the recorded time (in seconds) and size. A file that was
edited within a second, or got its old time back, then runs in its old form, while its fingerprint is that of the new
text. So for files that belong neither to an installed package nor to Python or Shoal, this process accepts only
compiled forms that hold a digest of their source (PEP 552). Python checks those by itself, and so does every other
process that finds them. Other compiled forms are made anew.

This changes Python's own loader instead of adding a finder, because that also covers files that are loaded by path.
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
"""In the header of a compiled file: it holds a digest of its source, to be checked."""
_DIGEST = "shoal_digest"
"""The loader attribute that holds the digest of the source."""

_plain_get_data = SourceFileLoader.get_data
_plain_set_data = SourceFileLoader.set_data
_of_project: dict[str, bool] = {}
"""By directory."""


def load_from_source() -> None:
    """Makes this process load project modules from their current source from now on."""
    SourceFileLoader.get_data = _get_data  # type: ignore[assignment, method-assign]
    SourceFileLoader.set_data = _set_data  # type: ignore[method-assign]


def _get_data(self: SourceFileLoader, path: str) -> bytes:
    data = _plain_get_data(self, path)
    if _is_of_project(self.path):
        if path == self.path:
            from importlib.util import source_hash  # imported only if there are such modules

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
        # An installed package may be a link to its source tree, which the user edits.
        whole = os.path.realpath(directory) + "/" if "-packages/" in file else file
        found = "/site-packages/" not in whole and "/dist-packages/" not in whole
        _of_project[directory] = found
    return found
