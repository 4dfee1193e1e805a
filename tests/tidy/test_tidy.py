"""Ratchets: what we do not want more of. The lists of exceptions may only shrink."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_files(folder: str) -> list[Path]:
    """The Python files below a folder of the repository.

    A ledger names a directory after each workflow file, so a path that ends in `.py` may be a directory.
    """
    return sorted(path for path in (ROOT / folder).rglob("*.py") if path.is_file())


SOURCES = python_files("src")
EVERYTHING = [*SOURCES, *python_files("tests"), *python_files("bench")]

LONG_FUNCTIONS: set[str] = set()
BROAD_HANDLERS: set[str] = {
    "shoal.ui.cli.main.main",  # the top of the command: a defect of ours gets a sentence and its traceback
    "shoal.execution.calls.worker.WorkerCalls.perform",  # the top of a worker: errors go to the caller
    "shoal.execution.executor.call_loop.ExecutorLoop.run",  # the top of a thread: futures must end
    "shoal.execution.executor.call_loop._show",  # writes to whatever the program put in the place of sys.stdout
    "shoal.execution.nets.driver.NetDriver.run",  # the top of a thread: the result must come
    "shoal.execution.nets.driver.NetDriver.ask.perform",  # for another thread
    "shoal.ui.top.model.TopModel._guarded",  # the top of threads: whoever draws raises it, with the terminal given back
    "shoal.ui.web.board.GuardedWork.do",  # the top of threads: the page says so
    "shoal.execution.calls.call_main.main",  # the top of a process that makes one call
    # A user's guards, steps and commands, and the functions that tasks call, may raise anything.
    "shoal.petri.interpreter.NetInterpreter._fire",
    "shoal.petri.interpreter.NetFlow.inject",
    "shoal.petri.transition._said",
    "shoal.execution.nets.driver.NetDriver._let_go",
    "shoal.cluster.job_servers.job_server.LoopCalls._perform",
    "shoal.petri.transition.Transition.rendered",
    "shoal.cluster.job_servers.job_server.CallbackServer._outcome",
    # Pickling and unpickling run the user's own code, which may raise anything.
    "shoal.execution.nets.journal.dumps",
    "shoal.execution.nets.journal.read_past",
    "shoal.cluster.input_staging.WorkspaceCalls._write_call",
    "shoal.execution.calls.graph_calls.GraphCalls.start",
    "shoal.execution.calls.call_main._encoded",
    "shoal.execution.calls.pickling._pickled",
    "shoal.formats.rules.fingerprint._parts",
    "shoal.execution.executor.arguments._noting",
    "shoal.execution.executor.arguments.encode",
    "shoal.execution.executor.arguments.encode_all",
    "shoal.execution.executor.call_loop.ExecutorLoop._make_ready",
    "shoal.execution.executor.arguments.FunctionTable.take",
    "shoal.execution.executor.future.unpickled",
    "shoal.execution.executor.future.unpickled_error",
}
LONG_FILES: set[str] = set()
FUNCTION_LINES = 60
FILE_LINES = 800


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{prefix}.{child.name}", child
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from walk(child, f"{prefix}.{child.name}")
            else:
                yield from walk(child, prefix)

    yield from walk(ast.parse(path.read_text()), module_name(path))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    begin = first.end_lineno if has_docstring else function.lineno
    return (function.end_lineno or 0) - (begin or 0)


def is_broad(handler: ast.ExceptHandler) -> bool:
    broad = ("Exception", "BaseException")
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in broad)


def reraises(handler: ast.ExceptHandler) -> bool:
    """Cleaning up and raising again hides nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_functions_fit_a_screen() -> None:
    found = {name for path in SOURCES for name, node in functions(path) if body_lines(node) > FUNCTION_LINES}
    assert found == LONG_FUNCTIONS


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function itself, not in one inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def test_broad_handlers_stand_only_at_the_top_of_a_process() -> None:
    found = set()
    for path in SOURCES:
        for name, node in functions(path):
            handlers = [inner for inner in own_nodes(node) if isinstance(inner, ast.ExceptHandler)]
            if any(is_broad(handler) and not reraises(handler) for handler in handlers):
                found.add(name)
    assert found == BROAD_HANDLERS


def test_files_have_one_subject() -> None:
    assert {module_name(path) for path in SOURCES if len(path.read_text().splitlines()) > FILE_LINES} == LONG_FILES


def test_every_module_says_what_it_is_for() -> None:
    assert [
        str(path.relative_to(ROOT)) for path in EVERYTHING if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


def test_nothing_is_left_to_be_done_later() -> None:
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    assert [
        f"{path.name}: {line}" for path in EVERYTHING for line in path.read_text().splitlines() if words.search(line)
    ] == []


def test_every_command_is_documented_and_has_help() -> None:
    shown = subprocess.run([sys.executable, "-m", "shoal", "--help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z][a-z-]+)  ", shown, re.MULTILINE)
    assert {"run", "plan", "status", "why", "output", "cancel", "clean", "graph"} <= set(commands)
    reference = (ROOT / "docs" / "commands.md").read_text()
    for command in commands:
        assert f"## shoal {command}" in reference, f"docs/commands.md does not tell of 'shoal {command}'"
        section = reference.split(f"## shoal {command}\n", 1)[1].split("\n## ", 1)[0]
        helped = subprocess.run([sys.executable, "-m", "shoal", command, "--help"], capture_output=True, text=True)
        assert helped.returncode == 0
        assert "example" in helped.stdout.lower(), f"'shoal {command} --help' has no example"
        for option in re.findall(r"--[a-z][a-z-]+", helped.stdout):
            assert option in section, f"docs/commands.md is stale: {option}; run tools/write-commands-page"


def test_architecture_stays_short_and_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 250
    packages = sorted(path.name for path in (ROOT / "src" / "shoal").iterdir() if (path / "__init__.py").exists())
    assert [name for name in packages if f"`{name}/" not in text and f"`{name}`" not in text] == []
