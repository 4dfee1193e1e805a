"""Loads a rules file and its includes: executes them, fingerprints imported modules, returns the filled registry.

The file runs as a module named `shoal_rules` with its own directory first on `sys.path`. Modules of the project that it
imports are loaded from their source, because their fingerprints are made from the source, too. Any error in the file
becomes an `InputError` at the user's line. `shoal.formats.rules` interprets the definitions. A file that defines a net
instead of rules raises `NetFoundError`.
"""

from __future__ import annotations

import ast
import glob
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, TypeAlias

from shoal.errors import InputError
from shoal.execution.calls.source_modules import load_from_source
from shoal.execution.files.files import relative_to
from shoal.formats.rules.api import Rules, collecting
from shoal.formats.rules.definitions import UserCodeErrors

if TYPE_CHECKING:
    from shoal.petri import Net


_INSTALLED = ("site-packages", "dist-packages")
_GAP = r"(?:[ \t]|\\\r?\n)+"
_FROM = re.compile(rf"\bfrom{_GAP}([.\w]+){_GAP}import{_GAP}(\([^)]*\)|[^\n#;]*)")
_IMPORT = re.compile(rf"\bimport{_GAP}([\w., \t]+)")
_WORD = re.compile(r"[^\d\W]\w*")
_CALL = re.compile(r"""(?:\bimport_module|\b__import__)\s*\(\s*["']([.\w]+)["']""")
_COMPILED = (".so", ".pyc")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that hold other statements."""
_Imports: TypeAlias = list[tuple[str, list[str]]]
"""Modules, with leading dots if relative, and the names imported from each."""


class ModuleVersions:
    """Maps module names to texts that change when the modules do."""

    def __init__(self, directory: str) -> None:
        """`directory` is the directory of the rules file."""
        self._directory = os.path.realpath(directory) + "/"
        self._library = os.path.dirname(os.path.realpath(os.__file__)) + "/"
        self._texts: dict[str, str] = {}
        self._files: dict[str, str | None] = {}
        self._read: dict[str, tuple[str, _Imports]] = {}

    def __call__(self, name: str) -> str:
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = self._describe(name)
        return found

    def _describe(self, name: str) -> str:
        """Returns names and contents of all modules that the module imports, directly or not, in the order of their
        names."""
        file = self._file(name)
        if file is None or (name.startswith("/") and not self._is_of_project(name, file)):
            return ""
        words: dict[str, None] = {}
        known = {name: None}
        waiting = [name]
        for current in waiting:  # the list grows during the loop
            file = self._file(current)
            if file is None:
                continue
            if not self._is_of_project(current, file):
                words[_name_and_version(current, file, self._library)] = None
                continue
            content, imports = self._look(file)
            words[f"{self._shown(current)} {content}"] = None
            for other in (_package_of(current), *_imported(current, file, imports)):
                if other and other not in known:
                    known[other] = None
                    waiting.append(other)
        if len(words) == 1:
            return next(iter(words))
        return f"{self._shown(name)} {blake2b(chr(10).join(sorted(words)).encode(), digest_size=16).hexdigest()}"

    def _shown(self, name: str) -> str:
        """Returns a path relative to the rules file, because the project may be moved."""
        return os.path.relpath(os.path.realpath(name), self._directory) if name.startswith("/") else name

    def _is_of_project(self, name: str, file: str) -> bool:
        if name.partition(".")[0] == "shoal" or not file.startswith("/"):
            return False
        if file.startswith(self._directory):
            return not any(part in _INSTALLED for part in file[len(self._directory) :].split("/"))
        return not file.startswith(self._library) and not any(part in _INSTALLED for part in file.split("/"))

    def _file(self, name: str) -> str | None:
        """Returns the file of a module; "" if it has no file, None if there is no such module. Imports nothing."""
        if name not in self._files:
            if name.startswith("/"):
                self._files[name] = os.path.realpath(name) if os.path.isfile(name) else None
            else:
                self._files[name] = _file_of(sys.modules.get(name)) if name in sys.modules else _find(name)
        return self._files[name]

    def _look(self, file: str) -> tuple[str, _Imports]:
        """Returns a digest of the file's content, and its imports."""
        found = self._read.get(file)
        if found is None:
            try:
                with open(file, "rb") as stream:
                    content = stream.read()
            except OSError:
                content = b""
            digest = blake2b(content, digest_size=16).hexdigest()
            is_package = os.path.basename(file) == "__init__.py"
            found = self._read[file] = digest, [] if file.endswith(_COMPILED) else list(_imports(content, is_package))
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
        loaded = sys.modules.get(whole)
        if loaded is not None and whole != name:  # it may come from a place that no search finds
            path = getattr(loaded, "__path__", None)
        else:
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


def _package_of(name: str) -> str:
    """Returns the package of a module, which is imported with it."""
    if not name.startswith("/"):
        return name.rpartition(".")[0]
    directory, base = os.path.split(name)
    return _first_file(f"{os.path.dirname(directory) if base == '__init__.py' else directory}/__init__.py")


def _imported(name: str, file: str, imports: _Imports) -> Iterator[str]:
    """Yields the names of modules that a module may import by these statements."""
    if name.startswith("/"):
        package = os.path.dirname(name)
    else:
        package = name if os.path.basename(file).startswith("__init__.") else name.rpartition(".")[0]
    for module, parts in imports:
        below = module.lstrip(".")
        level = len(module) - len(below)
        if not level:
            yield from (below, *(f"{below}.{part}" for part in parts))
        elif package.startswith("/"):
            yield from _imported_beside(package, level, below, parts)
        else:
            above = package.split(".")[: -level + 1 or None] if package else []
            whole = ".".join(filter(None, (*above, below)))
            yield from (whole, *(f"{whole}.{part}" if whole else part for part in parts))


def _imported_beside(directory: str, level: int, below: str, parts: list[str]) -> Iterator[str]:
    """Yields files of the modules that a file in the directory imports relative to itself."""
    for _ in range(level - 1):
        directory = os.path.dirname(directory)
    whole = os.path.join(directory, *below.split("."))
    yield _first_file(f"{whole}.py", f"{whole}/__init__.py") if below else _first_file(f"{whole}/__init__.py")
    for part in parts:
        yield _first_file(f"{whole}/{part}.py", f"{whole}/{part}/__init__.py")


def _first_file(*paths: str) -> str:
    return next(filter(os.path.isfile, paths), "")


def _imports(content: bytes, is_package: bool) -> Iterator[tuple[str, list[str]]]:
    """Yields what a source text imports: modules, with leading dots if relative, and the names imported from them."""
    if b"import" not in content and b"__all__" not in content:
        return
    text = content.decode("utf-8", "replace")
    yield from ((match[1], []) for match in _CALL.finditer(text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings appear when the file is executed
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from _like_imports(text)
        return
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # the list grows during the loop
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names if alias.name != "*"]
        elif is_package and isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            yield from ((".", [name]) for name in _all(node))
        else:
            for block in _BLOCKS:
                waiting += getattr(node, block, ())


def _all(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[str]:
    """Returns the names in `__all__`: `from package import *` imports the modules among them."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
        return []
    items = getattr(node.value, "elts", ())
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _like_imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields what looks like imports in a text that cannot be parsed; another version of Python might parse it."""
    for match in _FROM.finditer(text):
        yield match[1], _WORD.findall(match[2])
    for match in _IMPORT.finditer(text):
        yield from ((part.split()[0], []) for part in match[1].split(",") if part.strip())


def _name_and_version(name: str, file: str, library: str) -> str:
    """Returns name and version of an installed module, or of one from the standard library."""
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


MODULE_NAME = "shoal_rules"


class NetFoundError(InputError):  # an error only for callers that expect rules
    """The file defines a net and no rules. Callers that do not support nets show it as an error."""

    def __init__(self, path: str, net: Net) -> None:
        super().__init__(
            f"the file defines the net {net.name!r}, whose tasks are not known in advance",
            file=path,
            remedy="nets are for 'shoal run', 'status', 'graph', 'why', 'put' and 'cancel'",
        )
        self.net = net


def load_rules(path: str, parameters: Mapping[str, str] | None = None) -> Rules:
    """Executes the file at `path`; `parameters` are the `name=value` words of the command line."""
    return _Loader(path, parameters or {}).run()


class _Loader:
    """The files of one workflow: the one named on the command line and those that it includes."""

    def __init__(self, path: str, parameters: Mapping[str, str]) -> None:
        self._path = path
        self._directory = os.path.dirname(os.path.abspath(path))
        self._modules: list[ModuleType] = []
        self._open: list[str] = []
        """Absolute names of the files being executed, outermost first."""
        self._rules = Rules(
            path,
            parameters,
            load=self._include,
            glob=self._glob,
            modules=ModuleVersions(self._directory),
            relative=relative_to(self._directory),
        )

    def run(self) -> Rules:
        if sys.path[:1] != [self._directory]:
            sys.path.insert(0, self._directory)
        load_from_source()
        with collecting(self._rules):
            self._execute(self._path, MODULE_NAME)
        self._rules.check_parameters()
        net = self._find_net()
        if self._rules.has_functions or net is not None:
            self._send_functions_by_value()
        if net is not None:
            raise NetFoundError(self._path, net)
        return self._rules

    def _find_net(self) -> Net | None:
        """Returns the net among the globals of the file, if any; a sub-net is the same net under a prefix."""
        building = sys.modules.get("shoal.petri.net")
        if building is None:
            return None
        nets: dict[int, Net] = {}
        for value in self._modules[0].__dict__.values():
            if isinstance(value, building.Net) and not value._prefix:
                nets[id(value.places)] = value
        if len(nets) > 1:
            names = " and ".join(repr(net.name) for net in nets.values())
            raise InputError(
                f"the file defines {len(nets)} nets, {names}",
                file=self._path,
                remedy="keep one of them in the file, or run them from a program with shoal.Executor",
            )
        net = next(iter(nets.values()), None)
        if net is not None and (self._rules.names or self._rules.rules):
            raise InputError(
                f"the file defines the net {net.name!r} and rules", file=self._path, remedy="move one to another file"
            )
        return net

    def _execute(self, path: str, module_name: str) -> ModuleType:
        real = os.path.abspath(path)
        if real in self._open:
            raise InputError(f"{path} includes itself", remedy="remove one of the include() calls")
        code = self._compile(path)
        module = ModuleType(module_name)
        module.__file__ = path
        sys.modules[module_name] = module
        self._modules.append(module)
        self._open.append(real)
        with UserCodeErrors(self._rules.texts):
            exec(code, module.__dict__)
        self._open.pop()
        return module

    def _compile(self, path: str) -> CodeType:
        try:
            with open(path, "rb") as stream:
                text = stream.read()
        except OSError as error:
            raise InputError(f"cannot read the rules file {path}: {error.strerror or error}") from None
        self._rules.texts[path] = text.decode("utf-8", "replace")
        with UserCodeErrors(self._rules.texts):
            try:
                return compile(text, path, "exec", dont_inherit=True)
            except ValueError as error:  # a NUL byte, in older versions of Python
                raise InputError(str(error), file=path) from None

    def _include(self, path: str, from_file: str) -> ModuleType:
        found = os.path.join(os.path.dirname(from_file), path)
        return self._execute(found, f"{MODULE_NAME}_{len(self._modules)}")

    def _glob(self, pattern: str) -> list[str]:
        try:
            return sorted(glob.glob(pattern, root_dir=self._directory, recursive=True))
        except RecursionError:
            raise InputError(
                f"files({pattern!r}) would search directories that are nested too deeply",
                remedy="write a pattern that excludes the deepest ones, or name the files",
            ) from None

    def _send_functions_by_value(self) -> None:
        """Makes workers receive the functions of these files as code, because no worker can import a rules file."""
        # cloudpickle has no stubs, and its import costs 20 ms that a workflow of commands need not pay.
        import cloudpickle  # type: ignore[import-untyped]

        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)
