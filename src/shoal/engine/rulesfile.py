"""Reads and executes a rules file, and whatever it includes, and hands back the filled registry.

The file runs as a module named `shoal_rules` with its own directory first on `sys.path`. Modules of the project that it
imports are loaded from their source: their fingerprints are made of that, too. Whatever goes wrong in it is the user's
to mend and becomes an `InputError` at their line. What the definitions mean is left to `shoal.frontend.rules`. A file
that makes a net in place of rules is told by `NetFound`.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from shoal.engine.filenames import relative_to
from shoal.engine.modules import ModuleVersions
from shoal.errors import InputError
from shoal.frontend.rules.api import collecting
from shoal.frontend.rules.places import Blame
from shoal.frontend.rules.registry import Rules
from shoal.runner.sources import load_from_source

if TYPE_CHECKING:
    from shoal.flow.net import Net

MODULE_NAME = "shoal_rules"


class NetFound(InputError):  # noqa: N818  # not wrong by itself, only for who wants rules
    """The file defines a net and no rules; to whoever knows nothing of nets it is one sentence."""

    def __init__(self, path: str, net: Net) -> None:
        super().__init__(
            f"the file defines the net {net.name!r}, which has no tasks that are known beforehand",
            file=path,
            remedy="nets are for 'shoal run', 'status', 'graph', 'why', 'put' and 'cancel'",
        )
        self.net = net


def load_rules(path: str, parameters: Mapping[str, str] | None = None) -> Rules:
    """Executes the file at `path`; `parameters` are the `name=value` words of the command line."""
    return _Loader(path, parameters or {}).run()


class _Loader:
    """The files of one workflow: the one named on the command line and those it includes."""

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
            self._let_functions_travel()
        if net is not None:
            raise NetFound(self._path, net)
        return self._rules

    def _find_net(self) -> Net | None:
        """The net among the globals of the file, if it has one; a sub-net is the same net under a prefix."""
        building = sys.modules.get("shoal.flow.net.build")
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
                remedy="leave one of them in it, or run them from a program with shoal.Executor",
            )
        net = next(iter(nets.values()), None)
        if net is not None and (self._rules.names or self._rules.rules):
            raise InputError(
                f"the file defines the net {net.name!r} and rules", file=self._path, remedy="put one of them elsewhere"
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
        with Blame(self._rules.texts):
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
        with Blame(self._rules.texts):
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
                f"the folders that files({pattern!r}) would look into have too many levels",
                remedy="write a pattern that leaves out the deepest ones, or name the files",
            ) from None

    def _let_functions_travel(self) -> None:
        """Has the files' functions sent to workers as code, for no worker can import a rules file."""
        # It has no stubs, and costs 20 ms that a workflow of commands need not pay.
        import cloudpickle  # type: ignore[import-untyped]

        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)
