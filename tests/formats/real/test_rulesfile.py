"""Rules files on disk: found, executed, included, and every mistake in them reported at the user's own line."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]  # it has no stubs
import pytest

from shoal.core.task import Call
from shoal.errors import InputError
from shoal.execution.rules_loader import load_rules

IMPORT = "from shoal import directory, file, files, include, namespace, param, pathmap, rule, task\n"


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files are made in a fresh current directory; `sys.path` and `sys.modules` are put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = dict(sys.modules)
    yield
    for name in [name for name in sys.modules if name not in modules]:
        del sys.modules[name]


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def refusal(name: str, **parameters: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load_rules(name, parameters)
    return caught.value


def test_a_rules_file_is_executed_and_gives_a_graph() -> None:
    write("flow.py", IMPORT + "for i in range(param('n', 1)): task(f't{i}', run='echo {i} {__file__}')")
    graph, targets = load_rules("flow.py", {"n": "2"}).graph([], os.path.exists)
    assert (graph.source, graph.actions, targets) == ("flow.py", ["echo 0 flow.py", "echo 1 flow.py"], [0, 1])


def test_a_file_imports_what_lies_beside_it() -> None:
    write("sub/helper_beside.py", "NAME = 'beside'")
    write("sub/flow.py", IMPORT + "import helper_beside\ntask(helper_beside.NAME)")
    assert load_rules("sub/flow.py").names == ["beside"]


def test_files_are_found_beside_the_rules_file() -> None:
    for name in ("sub/r/b.fits", "sub/r/a.fits", "sub/r/deep/c.fits"):
        write(name, "")
    write("sub/flow.py", IMPORT + "task(str(files('r/{x}.fits').map('p/{x}')))\ntask(str(files('r/**/*.fits')))")
    names = load_rules("sub/flow.py").names
    assert names == ["['p/a', 'p/b']", "['r/a.fits', 'r/b.fits', 'r/deep/c.fits']"]


def test_an_included_file_may_stand_in_a_namespace_and_is_relative_to_its_includer() -> None:
    write("flow.py", IMPORT + "\nlib = include('lib/one.py', prefix='lib')\ntask('all', needs=['lib:a', lib.NAME])")
    write("lib/one.py", IMPORT + "include('two.py')\ntask('a', needs='b', run='one')\nNAME = 'lib:b'")
    write("lib/two.py", IMPORT + "task('b', run='two')")
    graph, _ = load_rules("flow.py").graph(["all"], os.path.exists)
    assert graph.names == ["lib:b", "lib:a", "all"]
    assert list(graph.lines) == [3, 3, 4]


def test_a_definition_made_by_a_helper_module_has_the_line_that_called_it() -> None:
    write("helper_defining.py", "from shoal import task\ndef define(name):\n    task(name, run='true')\n")
    write("flow.py", "import helper_defining\n\nhelper_defining.define('a')\nhelper_defining.define('b')")
    graph, _ = load_rules("flow.py").graph([], os.path.exists)
    assert list(graph.lines) == [3, 4]


def test_two_definitions_in_different_files_are_both_named() -> None:
    write("flow.py", IMPORT + "task('a')\ninclude('other.py')")
    write("other.py", IMPORT + "\ntask('a')")
    assert str(refusal("flow.py")).startswith("other.py:3: 'a' is already defined (flow.py, line 2)")


def test_a_file_that_includes_itself_is_refused() -> None:
    write("flow.py", IMPORT + "include('other.py')")
    write("other.py", IMPORT + "include('flow.py')")
    assert str(refusal("flow.py")).startswith("other.py:2: flow.py includes itself")


def test_a_syntax_error_shows_the_users_line() -> None:
    write("flow.py", "x = 1\ntask('a' run='true')\n")
    error = refusal("flow.py")
    assert (error.file, error.line, error.column) == ("flow.py", 2, 6)
    assert "invalid syntax" in error.message
    assert "    task('a' run='true')\n         ^" in str(error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("print(nothing)", "NameError: name 'nothing' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise ValueError", "ValueError"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("exit(3)", "the file called sys.exit(3)"),
        ("task('a', cores=-1)", "cores must be a positive number, not -1"),
        ("files('{x').map('y')", "the pattern '{x' has a '{' that is not closed"),
        ("pathmap('a', '%{[}p')", "the pathmap '%{[}p' contains an invalid regular expression"),
        ("include('missing.py')", "cannot read the rules file missing.py: No such file or directory"),
        ("open('missing')", "FileNotFoundError: [Errno 2] No such file or directory: 'missing'"),
    ],
)
def test_whatever_the_file_raises_is_reported_at_its_innermost_line(line: str, message: str) -> None:
    write("flow.py", f"{IMPORT}def inner():\n    {line}\n\ninner()\n")
    error = refusal("flow.py")
    assert (error.file, error.line, error.text) == ("flow.py", 3, f"    {line}")
    assert error.message.startswith(message)


def test_a_syntax_error_in_an_imported_module_names_that_module() -> None:
    write("helper_broken.py", "\n\nx = = 1\n")
    write("flow.py", "import helper_broken\n")
    error = refusal("flow.py")
    assert (os.path.basename(error.file or ""), error.line) == ("helper_broken.py", 3)


def test_a_file_that_cannot_be_read_is_refused() -> None:
    assert str(refusal("none.py")) == "cannot read the rules file none.py: No such file or directory"
    os.mkdir("directory.py")
    assert "Is a directory" in str(refusal("directory.py"))
    Path("null.py").write_bytes(b"x = '\0'")
    assert "null bytes" in str(refusal("null.py"))
    Path("latin.py").write_bytes(b"x = '\xe4'\n")
    assert "utf-8" in str(refusal("latin.py"))


def test_a_parameter_the_file_does_not_know_is_refused() -> None:
    write("flow.py", IMPORT + "param('n', 3)\ntask('t')")
    assert str(refusal("flow.py", m="1")) == "flow.py: there is no parameter 'm'; the file's parameters are: n"


def test_functions_of_the_file_and_its_includes_reach_another_process() -> None:
    write("flow.py", IMPORT + "other = include('other.py')\nBASE = 40\n@task\ndef t(): return other.two() + BASE\n")
    write("other.py", "def two(): return 2")
    graph, _ = load_rules("flow.py").graph(["t"], os.path.exists)
    action = graph.actions[0]
    assert isinstance(action, Call)
    sent = cloudpickle.dumps(action.function)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert done.stdout == b"42\n"
    assert pickle.loads(sent)() == 42


def test_a_file_of_commands_does_not_load_cloudpickle() -> None:
    write("flow.py", IMPORT + "task('t', run='true')")
    program = (
        "import sys; from shoal.execution.rules_loader import load_rules; load_rules('flow.py'); "
        "sys.exit('cloudpickle' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", ["nosuchmodule", "json"])
def test_what_was_loaded_by_its_path_counts_in_fingerprints(name: str) -> None:
    """Whether or not there is a module of the name that it was given."""
    write(
        "flow.py",
        IMPORT + "import importlib.util as u, os\n"
        f"spec = u.spec_from_file_location({name!r}, os.path.abspath('tools/tool.py'))\n"
        "tool = u.module_from_spec(spec)\nspec.loader.exec_module(tool)\ng = tool.g\n"
        "@task\ndef whole(): return tool.g()\n@task\ndef part(): return g()\ntask('itself', run=g)\n"
        "@task\ndef kind(): return tool.Settings\n",
    )
    found = []
    for number in (1, 2):
        write("tools/tool.py", f"class Settings:\n    rate = {number}\ndef g(): return {number}\n")
        found.append([action.fingerprint for action in load_rules("flow.py").graph([], bool)[0].actions])  # type: ignore[union-attr]
    assert len(found[0]) == 4 and not set(found[0]) & set(found[1])


def test_fingerprints_are_the_same_in_every_process() -> None:
    write(
        "flow.py", IMPORT + "N = 3\ndef g(x): return x in {'a', 'b', 'c', N}\n@task\ndef t(): return g(1), lambda: N\n"
    )
    program = (
        "from shoal.execution.rules_loader import load_rules; "
        "print(load_rules('flow.py').graph([], bool)[0].actions[0].fingerprint)"
    )
    printed = [
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2", "3")
    ]
    assert len({done.stdout for done in printed}) == 1
    assert len(printed[0].stdout.strip()) == 32
