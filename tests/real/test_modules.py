"""What stands for modules in the fingerprints of functions, with real files and packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.engine.modules import ModuleVersions


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
