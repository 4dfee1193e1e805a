"""What stands for modules in the fingerprints of functions, with real files and packages."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from shoal.execution.rules_loader import ModuleVersions


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    package = directory / "apackage"
    package.mkdir(parents=True)
    (directory / "amodule.py").write_text("import json\nfrom apackage import (\n    inner,\n    other as x,\n)\n")
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("def late():\n    from .deep import nothing\n")
    (package / "deep.py").write_text("nothing = 1\n")
    (package / "other.py").write_text("import amodule\n")
    (package / "alone.py").write_text("")
    monkeypatch.syspath_prepend(str(directory))
    return directory


@pytest.mark.parametrize(
    ("edited", "is_seen"),
    [
        ("amodule.py", True),
        ("apackage/__init__.py", True),
        ("apackage/inner.py", True),
        ("apackage/deep.py", True),
        ("apackage/other.py", True),
        ("apackage/alone.py", False),
    ],
)
def test_module_of_the_project_counts_with_all_that_it_imports(project: Path, edited: str, is_seen: bool) -> None:
    before = ModuleVersions(str(project))("amodule")
    assert "amodule" not in sys.modules  # nothing was executed
    file = project / edited
    file.write_text(file.read_text() + "# more\n")
    assert (ModuleVersions(str(project))("amodule") != before) is is_seen


def test_installed_modules_count_by_version_and_those_of_python_by_name(project: Path) -> None:
    versions = ModuleVersions(str(project))
    assert versions("pytest") == f"pytest {pytest.__version__}"
    assert versions("_pytest.config") == f"_pytest {pytest.__version__}"
    assert versions("json") == "json" and versions("json.decoder") == "json.decoder"
    assert versions("sys") == "sys" and versions("shoal.errors") == "shoal.errors"
    assert versions("nosuchmodule") == versions("json.nosuchmodule") == ""


def test_environment_inside_of_the_project_is_not_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = project / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed.py").write_text("one = 1\n")
    monkeypatch.syspath_prepend(str(packages))
    before = ModuleVersions(str(project))("installed")
    (packages / "installed.py").write_text("one = 11\n")
    assert ModuleVersions(str(project))("installed") == before == "installed "


def test_module_of_the_project_may_have_the_name_of_one_of_python(project: Path) -> None:
    (project / "colorsys.py").write_text("one = 1\n")
    assert ModuleVersions(str(project))("colorsys") != "colorsys"


IMPORTS = [
    "import json, \\\n    one",
    "import json, one as two",
    "import json; import one",
    "from apack import (json,  # (x)\n    deep)",
    "from apack import \\\n    deep",
    "from apack.deep import *",
    "from apack import *",
    "from .apack import deep",
    "def f():\n  if f:\n    with f:\n      try:\n        pass\n      finally:\n        import one",
    "def f():\n    match f:\n        case 1:\n            import one",
    "class T:\n  async def f(self):\n    for _ in self:\n      pass\n    else:\n      from one import x",
    "import importlib\nx = importlib.import_module('one')",
    "x = __import__(  'apack.deep')",
    "'''\nimport one\n'''\nx = 'a bad escape: \\d'\nimport one",
    "print 'of another Python'\nimport one",
    "# coding: latin-1\nx = '\xe4'\nimport one",
    "\ufeffimport one",
]


@pytest.mark.parametrize("text", IMPORTS)
def test_imports_are_found_however_they_are_written(text: str, project: Path) -> None:
    (project / "apack").mkdir()
    (project / "apack" / "__init__.py").write_text("__all__ = ['deep']\n")
    (project / "user.py").write_text(text, encoding="latin-1" if "latin" in text else "utf-8")
    files = [project / "one.py", project / "apack" / "deep.py"]
    digests = set()
    for number in range(2):
        for file in files:
            file.write_text(f"x = {number}\n")
        digests.add(ModuleVersions(str(project))("user"))
    assert len(digests) == 2


def test_a_word_in_a_text_or_a_comment_is_no_import(project: Path) -> None:
    (project / "user.py").write_text("'''\nimport one\n'''\n# import one\nx = 1  # from one import x\n")
    digests = set()
    for number in range(2):
        (project / "one.py").write_text(f"x = {number}\n")
        digests.add(ModuleVersions(str(project))("user"))
    assert len(digests) == 1


def test_each_file_is_parsed_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = ast.parse

    def counted(text: bytes) -> ast.AST:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr("shoal.execution.rules_loader.ast.parse", counted)
    versions = ModuleVersions(str(project))
    for name in ("amodule", "apackage.inner", "apackage.deep", "apackage", str(project / "amodule.py")):
        assert versions(name)
    assert len(parsed) == len(set(parsed)) == 3  # the others import nothing


@pytest.mark.parametrize("edited", ["tools/tool.py", "one.py", "tools/near.py", "tools/far/__init__.py", "up.py"])
def test_file_that_was_loaded_by_its_path_counts_with_all_that_it_imports(project: Path, edited: str) -> None:
    files = {
        "tools/tool.py": "import one\nfrom .near import x\nfrom . import far\nfrom ..up import y\n",
        "one.py": "",
        "tools/near.py": "",
        "tools/far/__init__.py": "",
        "up.py": "",
    }
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = ModuleVersions(str(project))(str(project / "tools/tool.py"))
    assert before.startswith("tools/tool.py ")  # wherever the project lies
    (project / edited).write_text(files[edited] + "# more\n")
    assert ModuleVersions(str(project))(str(project / "tools/tool.py")) != before


def test_script_that_was_loaded_by_its_path_may_have_any_name(project: Path) -> None:
    (project / "script").write_text("import one\n")
    digests = set()
    for number in range(2):
        (project / "one.py").write_text(f"x = {number}\n")
        digests.add(ModuleVersions(str(project))(str(project / "script")))
    assert len(digests) == 2


def test_path_of_a_file_that_is_not_of_the_project_says_nothing(project: Path) -> None:
    versions = ModuleVersions(str(project))
    assert versions(json.__file__) == versions(pytest.__file__) == versions(str(project / "nosuchfile.py")) == ""


def test_modules_of_a_package_that_was_loaded_by_its_path_are_found(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project / "elsewhere" / "inner"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("def f():\n    from .deep import x\n")
    spec = importlib.util.spec_from_file_location("bypath", elsewhere / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bypath", module)
    spec.loader.exec_module(module)
    digests = set()
    for number in range(2):
        (elsewhere / "deep.py").write_text(f"x = {number}\n")
        digests.add(ModuleVersions(str(project))("bypath"))
    assert len(digests) == 2
