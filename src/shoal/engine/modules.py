"""Modules that functions of a rules file use: what stands for each of them in fingerprints.

A module of the project counts by the content of its file and of all modules of the project that it imports, found by
reading, also those that are imported only when something is called. What is installed counts by its name and version,
the standard library by its name. Each file is read once per run.
"""

from __future__ import annotations

import os
import re
import sys
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_INSTALLED = ("site-packages", "dist-packages")
_GAP = r"(?:[ \t]|\\\r?\n)+"
_FROM = re.compile(rf"\bfrom{_GAP}([.\w]+){_GAP}import{_GAP}(\([^)]*\)|[^\n#;]*)")
_IMPORT = re.compile(rf"\bimport{_GAP}([\w., \t]+)")
_WORD = re.compile(r"[^\d\W]\w*")


class ModuleVersions:
    """From names of modules to texts that change when the modules do."""

    def __init__(self, directory: str) -> None:
        """`directory` is that of the rules file."""
        self._directory = os.path.realpath(directory) + "/"
        self._library = os.path.dirname(os.path.realpath(os.__file__)) + "/"
        self._texts: dict[str, str] = {}
        self._files: dict[str, str | None] = {}
        self._read: dict[str, tuple[str, list[str]]] = {}

    def __call__(self, name: str) -> str:
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = self._describe(name)
        return found

    def _describe(self, name: str) -> str:
        """The names and contents of everything that the module leads to, in the order of their names."""
        if self._file(name) is None:
            return ""
        words: dict[str, None] = {}
        known = {name: None}
        waiting = [name]
        for current in waiting:  # grows while we walk it
            file = self._file(current)
            if file is None:
                continue
            if not self._is_of_project(current, file):
                words[_name_and_version(current, file, self._library)] = None
                continue
            content, imported = self._look(current, file)
            words[f"{current} {content}"] = None
            for other in (current.rpartition(".")[0], *imported):
                if other and other not in known:
                    known[other] = None
                    waiting.append(other)
        if len(words) == 1:
            return next(iter(words))
        return f"{name} {blake2b(chr(10).join(sorted(words)).encode(), digest_size=16).hexdigest()}"

    def _is_of_project(self, name: str, file: str) -> bool:
        if name.partition(".")[0] == "shoal" or not file.startswith("/"):
            return False
        if file.startswith(self._directory):
            return not any(part in _INSTALLED for part in file[len(self._directory) :].split("/"))
        return not file.startswith(self._library) and not any(part in _INSTALLED for part in file.split("/"))

    def _file(self, name: str) -> str | None:
        """Where a module is; "" if it has no file, None if there is no such module. Nothing is imported for that."""
        if name not in self._files:
            self._files[name] = _file_of(sys.modules.get(name)) if name in sys.modules else _find(name)
        return self._files[name]

    def _look(self, name: str, file: str) -> tuple[str, list[str]]:
        """A digest of the file's content, and the names that it may import."""
        found = self._read.get(file)
        if found is None:
            try:
                with open(file, "rb") as stream:
                    content = stream.read()
            except OSError:
                content = b""
            digest = blake2b(content, digest_size=16).hexdigest()
            imported = _imported(name, file, content) if file.endswith(".py") else []
            found = self._read[file] = digest, imported
        return found


def _file_of(module: ModuleType | None) -> str | None:
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None) or (spec.origin if isinstance(spec, ModuleSpec) else None)
    return os.path.realpath(file) if file and os.path.isabs(file) else ""


def _find(name: str) -> str | None:
    path = None
    spec = None
    whole = ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        try:
            spec = PathFinder.find_spec(whole, path)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return "" if whole in sys.builtin_module_names else None
        path = spec.submodule_search_locations
        if path is None and whole != name:
            return None
    return os.path.realpath(spec.origin) if spec is not None and spec.has_location and spec.origin else ""


def _imported(name: str, file: str, content: bytes) -> list[str]:
    """Names that a module may import; more than it does if a text in it looks like an import."""
    text = content.decode("utf-8", "replace")
    package = name if os.path.basename(file).startswith("__init__.") else name.rpartition(".")[0]
    found: dict[str, None] = {}
    for match in _FROM.finditer(text):
        module = _absolute(match[1], package)
        if module:
            found[module] = None
        found.update(dict.fromkeys(f"{module}.{part}" if module else part for part in _WORD.findall(match[2])))
    for match in _IMPORT.finditer(text):
        found.update(dict.fromkeys(part.split()[0] for part in match[1].split(",") if part.strip()))
    return [each.strip(".") for each in found if each.strip(".")]


def _absolute(module: str, package: str) -> str:
    """`.x` as seen from a module of the package."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    if not level:
        return name
    parts = package.split(".")
    above = ".".join(parts[: len(parts) - level + 1])
    return ".".join(part for part in (above, name) if part)


def _name_and_version(name: str, file: str, library: str) -> str:
    """What stands for something that is installed, or belongs to Python."""
    package = name.partition(".")[0]
    if package == "shoal" or not file or (file.startswith(library) and "-packages/" not in file):
        return name
    version = getattr(sys.modules.get(package), "__version__", None)
    if not isinstance(version, str):
        from importlib import metadata  # slow to import, and needed for few packages

        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = ""
    return f"{package} {version}"
