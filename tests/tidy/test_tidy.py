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
    "shoal.petri.transition._text_of",
    "shoal.execution.nets.driver.NetDriver._answer_rest",
    "shoal.cluster.job_server.LoopCalls._perform",
    "shoal.petri.transition.Transition.rendered",
    "shoal.cluster.job_server.CallbackServer._outcome",
    # Pickling and unpickling run the user's own code, which may raise anything.
    "shoal.execution.nets.journal.dumps",
    "shoal.execution.nets.journal.read_past",
    "shoal.cluster.input_staging.WorkspaceCalls._write_call",
    "shoal.execution.calls.graph_calls.GraphCalls.start",
    "shoal.execution.calls.call_main._encoded",
    "shoal.execution.calls.pickling._pickled",
    "shoal.formats.rules.fingerprint._parts",
    "shoal.execution.executor.arguments._encode_with_futures",
    "shoal.execution.executor.arguments.encode",
    "shoal.execution.executor.arguments.encode_all",
    "shoal.execution.executor.call_loop.ExecutorLoop._make_ready",
    "shoal.execution.executor.arguments.FunctionTable.take",
    "shoal.execution.executor.future.unpickled",
    "shoal.execution.executor.future.unpickled_error",
}
LONG_FILES: set[str] = set()
SMALL_MODULES: set[str] = {
    "shoal.__main__",  # an entry point: python -m shoal
    "shoal.monitor",  # public: what users import
    "shoal.runtime",  # public: what users import
    "shoal.schedulers",  # public: what users import
    "shoal.former_names",  # loaded with every import of shoal, so it stays apart from what takes time to load
    "shoal.compat.resource_monitor.plot",  # loaded only where a plot is asked for
    "shoal.ui.cli.convert",  # an entry point: loaded by its name, one module per command
    "shoal.ui.cli.monitor",  # the same
    "shoal.ui.report.page",  # the same page for each kind of report
    "shoal.ui.web.critical_process",  # runs in a process of its own
}
"""Modules below 60 lines with one importer at most, each with its reason."""
MANY_PARAMETERS: set[str] = set()
MANY_ATTRIBUTES: set[str] = {
    "shoal.cluster.agent.agent.Agent",
    "shoal.cluster.agent.run_share.RunShare",
    "shoal.cluster.call_client.ClusterCallPool",
    "shoal.cluster.messaging.messenger.Messenger",
    "shoal.cluster.remote_run.RemoteRun",
    "shoal.core.peer_scheduler.PeerScheduler",
    "shoal.core.policies.throttle.hill_climber.Climber",
    "shoal.core.scheduler.Scheduler",
    "shoal.execution.local_run.LocalRun",
    "shoal.execution.processes.process.ProcessRunner",
    "shoal.ledger.run_fold.RunFold",
    "shoal.ledger.statistics.Statistics",
    "shoal.ledger.workspace.Workspace",
    # Records: a field is a column of a file, of a message or of a table.
    "shoal.cluster.agent.messages.ClusterNodeFacts",
    "shoal.cluster.agent.run_description.LogEntry",
    "shoal.core.explain.answer.Answer",
    "shoal.formats.rocrate.facts.RunFacts",
    "shoal.ledger.records.TaskEnded",
    "shoal.ledger.views.attempts.End",
    "shoal.ledger.views.tables.CategoryRow",
    "shoal.ledger.views.tables.NodeRow",
}
OTHER_MESSAGES: set[str] = {
    "shoal.cluster.agent.messages.PeerSchedulerMessage",
    "shoal.cluster.agent.messages.SubmissionPiece",
    "shoal.cluster.agent.messages.SourcePart",
    "shoal.cluster.agent.messages.StagedFileFacts",
    "shoal.cluster.agent.messages.ClusterRunFacts",
    "shoal.cluster.agent.messages.ClusterNodeFacts",
    "shoal.cluster.agent.messages.AgentClock",
    "shoal.cluster.agent.messages.MessageSender",
    "shoal.cluster.call_protocol.StreamPart",
    "shoal.cluster.call_protocol.CallStream",
    "shoal.cluster.call_protocol.SessionOpened",
    "shoal.cluster.call_protocol.FunctionGiven",
    "shoal.cluster.call_protocol.FunctionDropped",
    "shoal.cluster.call_protocol.CallsGiven",
    "shoal.cluster.call_protocol.CallCancelled",
    "shoal.cluster.call_protocol.SessionClosed",
    "shoal.cluster.call_protocol.CallServerStatus",
    "shoal.cluster.call_protocol.CallsEnded",
    "shoal.core.peer_messages.ReadyTask",
    "shoal.core.peer_messages.TaskTransfer",
    "shoal.core.peer_messages.Roster",
    "shoal.core.peer_messages.TasksPlaced",
    "shoal.core.peer_messages.PeerMessageReceived",
    "shoal.core.peer_messages.PeersChanged",
    "shoal.core.peer_messages.QueueNearlyEmpty",
    "shoal.core.peer_messages.PolicyChanged",
    "shoal.core.peer_messages.Send",
    "shoal.core.peer_messages.Prefetch",
    "shoal.core.peer_messages.HandBack",
    "shoal.core.peer_messages.UnacknowledgedTransfer",
    "shoal.core.peer_messages.Transfers",
    "shoal.core.scheduler_messages.Cramped",
    "shoal.core.scheduler_messages.TaskResult",
    "shoal.core.scheduler_messages.TasksReady",
    "shoal.core.scheduler_messages.TasksEnded",
    "shoal.core.scheduler_messages.TaskGrew",
    "shoal.core.scheduler_messages.CancelRequested",
    "shoal.core.scheduler_messages.CapacityChanged",
    "shoal.core.scheduler_messages.CapsChanged",
    "shoal.core.scheduler_messages.DrainRequested",
    "shoal.core.scheduler_messages.DrainEnded",
    "shoal.core.scheduler_messages.TimePassed",
    "shoal.core.scheduler_messages.Start",
    "shoal.core.scheduler_messages.Accept",
    "shoal.core.scheduler_messages.Retry",
    "shoal.core.scheduler_messages.GiveUp",
    "shoal.core.scheduler_messages.Kill",
    "shoal.core.scheduler_messages.WakeAt",
    "shoal.data.memory.protocol.MemoryNode",
    "shoal.data.memory.protocol.MemoryOperationRefused",
    "shoal.data.memory.protocol.Peers",
    "shoal.data.memory.protocol.DescriptorLine",
    "shoal.data.transfer_messages.BadMessageError",
    "shoal.data.transfer_messages.RefusedError",
    "shoal.data.transfer_messages.DataGrant",
    "shoal.execution.calls.messages.CallResult",
    "shoal.execution.calls.protocol.Page",
    "shoal.execution.calls.protocol.ValueOf",
    "shoal.execution.processes.launcher_messages.MessageLink",
}
"""Classes of message modules that are not messages, or whose names are those of the scheduler's inputs and outputs.

The class names of tagged structs are on the wire or in files, so they stay.
"""
FUNCTION_LINES = 60
FILE_LINES = 800
SMALL_MODULE_LINES = 60
CLASS_ATTRIBUTES = 20
CONSTRUCTOR_PARAMETERS = 8
PACKAGES = 12
MODULES = 400
MESSAGE_ENDINGS = ("Request", "Reply", "Event", "Command")


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


def classes(path: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class at the top of a module with its dotted name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield f"{module_name(path)}.{node.name}", node


def attributes(node: ast.ClassDef) -> set[str]:
    """What an object of the class carries: fields that the body declares, and what methods assign on self."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if "ClassVar" not in ast.unparse(each.annotation)
    }
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    assigned = {
        each.attr
        for method in methods
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if isinstance(each.value, ast.Name) and each.value.id == "self"
    }
    return declared | assigned


def constructor_parameters(node: ast.ClassDef) -> int:
    """The number of parameters of `__init__` without self; 0 for a class that has none of its own."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return len(each.args.posonlyargs + each.args.args + each.args.kwonlyargs) - 1
    return 0


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, at its top or inside a function.

    For `from a import b` both `a` and `a.b` are named, because b may be a module. A relative import counts from the
    package of the module.
    """
    package = path.relative_to(ROOT / "src").parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_a_public_class_name_stands_for_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for name, node in classes(path):
            if not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_small_modules_with_one_importer_have_a_reason() -> None:
    importers: dict[str, set[str]] = {}
    for path in SOURCES:
        for name in set(imports(path)) - {module_name(path)}:
            importers.setdefault(name, set()).add(module_name(path))
    modules = [path for path in SOURCES if path.name != "__init__.py"]
    small = [module_name(path) for path in modules if len(path.read_text().splitlines()) < SMALL_MODULE_LINES]
    assert {name for name in small if len(importers.get(name, ())) <= 1} == SMALL_MODULES


def test_constructors_take_few_parameters() -> None:
    every = [each for path in SOURCES for each in classes(path)]
    assert {name for name, node in every if constructor_parameters(node) > CONSTRUCTOR_PARAMETERS} == MANY_PARAMETERS


def test_objects_carry_few_attributes() -> None:
    every = [each for path in SOURCES for each in classes(path)]
    assert {name for name, node in every if len(attributes(node)) > CLASS_ATTRIBUTES} == MANY_ATTRIBUTES


def test_the_tree_can_be_looked_over() -> None:
    packages = [path for path in (ROOT / "src" / "shoal").iterdir() if (path / "__init__.py").exists()]
    assert len(packages) <= PACKAGES
    assert len(SOURCES) <= MODULES


def test_messages_say_which_kind_they_are() -> None:
    named = [path for path in SOURCES if path.stem.rpartition("_")[2] in ("messages", "protocol")]
    found = {name for path in named for name, node in classes(path) if not node.name.endswith(MESSAGE_ENDINGS)}
    assert found == OTHER_MESSAGES


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


def test_architecture_stays_short_and_names_every_module() -> None:
    """The code map has one row per package, which names all of its modules and no others."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 250
    code_map = text.split("\n## Code map\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w/.]+)`(.*)$", code_map, re.MULTILINE)
    named = {(name.rstrip("/"), module) for name, row in rows for module in re.findall(r"`(\w+)`:? ?", row)}
    base = ROOT / "src" / "shoal"
    packages = {str(path.parent.relative_to(base)) for path in base.rglob("__init__.py")}
    assert {name.rstrip("/") for name, _ in rows} >= {name for name in packages if has_modules(base / name)}
    modules = {(str(path.parent.relative_to(base)), path.stem) for path in base.rglob("*.py")}
    modules -= {(name, "__init__") for name in packages if name != "."}
    assert modules - named == set()
    packages_named = {(name, word) for name, word in named if (base / name / f"{word}.py").exists()}
    words = {"rule", "file", "task", "shoal", "sh", "assets", "native", "why"}
    assert {word for _, word in named - packages_named} <= words, "the code map names modules that are not there"


def has_modules(package: Path) -> bool:
    return any(path.stem != "__init__" for path in package.glob("*.py"))
