"""Commands of `shoal makeflow`: run a workflow, dry run, clean up, summary, and options from a JSON file (`--argv`)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

from shoal.compat.makeflow.command_wrapping import MakeflowSettings, sandboxes
from shoal.compat.makeflow.hooks import MakeflowHooks, failed_directory, remove_file
from shoal.compat.makeflow.log import (
    MakeflowLog,
    RuleState,
    check_log,
    existing_files,
    import_results,
    on_one_line,
    started_files,
)
from shoal.compat.makeflow.workflow import (
    is_script,
    kept_files,
    language_options,
    script_of,
    workflow_of,
    workspace_of,
    write_script,
)
from shoal.core.graph import NO_TASK, Graph
from shoal.core.resources import Resources
from shoal.errors import InputError
from shoal.execution.removal import forget
from shoal.execution.run_options import RunOptions
from shoal.execution.session import RunDriver, Session, without_collection
from shoal.execution.workflow_loader import Workflow, output_files
from shoal.formats.jx import Value, parse_json
from shoal.formats.makeflow import Makeflow
from shoal.ledger.file import LedgerWriter
from shoal.ledger.identity import place_of
from shoal.ledger.records import OutputsCollected
from shoal.ledger.up_to_date import Plan, Reason
from shoal.ledger.workspace import LockHolder, Workspace


def summary_of(
    settings: MakeflowSettings, graph: Graph, log: MakeflowLog, ending: str, seconds: float, outputs: list[str]
) -> str:
    """Returns the text of the summary; `ending` is completed, failed or aborted."""
    total = len(graph)
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    lines = [
        settings.command_line,
        f"Workflow {ending}:\t {time.ctime()}",
        f"Total runtime:\t\t {hours}:{minutes:02}:{rest:02}",
        f"Workflow file:\t\t {settings.dagfile}",
        f"Number of tasks:\t {total}",
        f"Completed tasks:\t {log.count(RuleState.COMPLETE)}/{total}",
    ]
    if aborted := log.count(RuleState.ABORTED):
        lines.append(f"Aborted tasks:\t\t {aborted}/{total}")
    if waiting := log.count(RuleState.WAITING):
        lines.append(f"Tasks not run:\t\t {waiting}/{total}")
    failed = log.rules_in(RuleState.FAILED)
    if failed:
        lines.append(f"Failed tasks:\t\t {len(failed)}/{total}")
        lines += [f"\t{graph.actions[rule]}" for rule in failed]
    made = [name for name in outputs if os.path.exists(name)]
    if made:
        lines.append("Output files:")
        lines += [f"\t{name}\t{os.path.getsize(name):.1f}" for name in made]
    return "\n".join(lines) + "\n"


def run(settings: MakeflowSettings, document: Makeflow, language: str, node: Resources) -> int:
    """Runs the workflow and returns the exit status: 0 only if all rules are done."""
    workflow = without_collection(lambda: workflow_of(settings, document, language))
    graph = workflow.graph
    hooks = MakeflowHooks(settings, document, graph)
    is_new = not os.path.exists(settings.log)
    print(f"{'creating new' if is_new else 'recovering from'} log file {settings.log}...")
    check_log(settings.log)
    if settings.check_files:
        print("checking files for unexpected changes...  (use --skip-file-check to skip this step)")
    _make_monitor_directory(settings)
    workspace = workspace_of(settings)
    session = Session(
        workspace,
        lambda: workflow,
        _options(settings, node, hooks),
        hooks,
        afresh=is_new,
        before=lambda _: _import_results(settings, workflow, workspace),
    )
    try:
        log = MakeflowLog(settings.log, graph)
    except InputError:
        session.abandon()
        raise
    session.report_all = True
    _warn_of_changes(session.plan)
    if session.history.last_run is not None and session.history.last_end is None:
        _remove_unrecorded(session.plan, settings.log)
    if is_new and settings.verbose_log:
        log.describe(graph, [rule.category for rule in document.rules])
    log.begin([task for task in range(len(graph)) if not session.plan.runs(task)])
    hooks.begin(session.plan, log, kept_files(document, graph))
    print("starting workflow....", flush=True)
    began = time.monotonic()
    # The event loop receives every signal that has a handler; the original also stops at this one.
    before = signal.signal(signal.SIGQUIT, lambda number, frame: None)
    try:
        executed = session.execute()
    finally:
        signal.signal(signal.SIGQUIT, before)
    status = _end(executed, log)
    if settings.summary:
        print(f"writing summary to {settings.summary}.")
        ending = "completed" if not status else "aborted" if executed.stop_signal else "failed"
        text = summary_of(settings, graph, log, ending, time.monotonic() - began, output_files(document, graph))
        with open(settings.summary, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    log.close()
    return status


def _options(settings: MakeflowSettings, node: Resources, hooks: MakeflowHooks) -> RunOptions:
    """Returns options for the behaviour of the original.

    Retries start immediately, changed outputs are accepted as they are, nothing is measured or limited, and commands
    inherit standard output and error.
    """
    return RunOptions(
        node,
        hooks=hooks,
        retry_pause=0.0,
        as_found=True,
        check_sources=settings.check_files,
        sizing="fixed",
        enforced=False,
        pass_streams=True,
        more="--local-{name}=N",
    )


def _import_results(settings: MakeflowSettings, workflow: Workflow, workspace: Workspace) -> None:
    taken = import_results(settings.log, workflow.graph, workspace)
    if taken:
        print(f"{taken} of {len(workflow.graph)} rules were done by another program, according to its log.")


def write_dry_run(settings: MakeflowSettings, document: Makeflow, language: str) -> int:
    """Writes the script of `-T dryrun` and runs nothing."""
    graph = workflow_of(settings, document, language).graph
    hooks = MakeflowHooks(settings, document, graph)
    commands = [hooks.wrap_command(task, str(action)) for task, action in enumerate(graph.actions)]
    path = settings.dagfile + ".sh"
    write_script(path, script_of(graph, commands))
    for command in commands:
        print(f"submitting job: {command}")
    print(f"wrote {path}; nothing was run.")
    return 0


def _warn_of_changes(plan: Plan) -> None:
    """Warns of files that were removed or changed since an earlier run."""
    graph = plan.graph
    warnings = 0
    for task, reason in enumerate(plan.reasons):
        if reason == Reason.OUTPUT_MISSING or (reason == Reason.INPUT_CHANGED and plan.detail[task] >= 0):
            what = "is gone" if reason == Reason.OUTPUT_MISSING else "was changed since"
            name = graph.file_names[plan.detail[task]]
            maker = "created" if graph.producer[plan.detail[task]] >= 0 else "read"
            print(f"warning: {name} was previously {maker} by makeflow, but {what}!", file=sys.stderr)
            warnings += 1
    if warnings:
        print(f"found 0 errors and {warnings} warnings during consistency check.", file=sys.stderr)


def _remove_unrecorded(plan: Plan, log: str) -> None:
    """Removes outputs that a killed run made but did not record: a command that appends must start from nothing."""
    graph, names = plan.graph, started_files(log)
    for task in plan.to_run():
        for name in graph.output_names(task):
            if on_one_line(name) in names and remove_file(name):
                print(f"deleted {name}")


def _make_monitor_directory(settings: MakeflowSettings) -> None:
    if settings.monitor is not None:
        try:
            os.makedirs(settings.monitor.directory, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot create the directory {settings.monitor.directory!r} for --monitor: {error.strerror}"
            ) from None


def _end(executed: RunDriver, log: MakeflowLog) -> int:
    totals = executed.statistics
    sys.stdout.flush()
    if totals.done == totals.to_run():
        log.end("COMPLETED")
        print("nothing left to do.")
        return 0
    if executed.stop_signal:
        log.end("ABORTED")
        print(f"got {signal.Signals(executed.stop_signal).name}.\nworkflow was aborted.", file=sys.stderr)
        return 1
    log.end("FAILED")
    for rule in log.rules_in(RuleState.FAILED):
        kept = f" (see {failed_directory(rule)})" if os.path.isdir(failed_directory(rule)) else ""
        print(f"rule {rule} failed: {executed.graph.actions[rule]}{kept}", file=sys.stderr)
    print("workflow failed.", file=sys.stderr)
    return 1


WORKFLOW_KEY = "MAKEFLOW"


def argv_words(text: bytes | str, source: str) -> list[str]:
    """Returns the command-line words that the options file stands for; the workflow's name is the last one."""
    options = parse_json(text, source)
    line, column = getattr(options, "line", None), getattr(options, "column", None)

    def error(message: str, remedy: str) -> InputError:
        return InputError(message, file=source, line=line or None, column=column or None, remedy=remedy)

    if not isinstance(options, dict):
        raise error("a file of options must be an object", 'write { "OPTION": VALUE, ... }')
    words: list[str] = []
    names: list[str] = []
    for option, value in options.items():
        if option == WORKFLOW_KEY:
            if not isinstance(value, str):
                raise error(f"{WORKFLOW_KEY} must be the name of the workflow's file", "write it as a string")
            names.append(value)
        elif not option or option.startswith("-") or "=" in option:
            raise error(f"{option!r} is not the long name of an option", "leave out the dashes")
        elif isinstance(value, (list, dict)):
            raise error(
                f"the value of {option!r} must be a string or a number", "use null for an option without a value"
            )
        else:
            words.append(f"--{option}" if value is None else f"--{option}={_text_of(value)}")
    return [*words, *names]


def _text_of(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


KINDS = ("all", "intermediates", "outputs", "cache")


def clean(settings: MakeflowSettings, document: Makeflow, language: str, kind: str) -> int:
    """Removes files of one kind; with `all`, also logs and the records of earlier runs."""
    graph = workflow_of(settings, document, language).graph
    check_log(settings.log)
    workspace = workspace_of(settings)
    print("cleaning filesystem...", flush=True)
    if kind == "cache":
        print("nothing left to do.")
        return 0
    known = os.path.isdir(workspace.directory)
    if known:
        workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, "", time.time()))
    try:
        status = _clean_children(settings, document, language, kind) if kind == "all" else 0
        gone = _remove_targets(document, graph, kind, settings)
        if kind == "all":
            _remove_state(settings, workspace, graph, document)
        elif kind == "intermediates" and known and gone:
            _record(workspace, graph, gone)
    finally:
        workspace.release()
    print("nothing left to do.")
    return status


def _remove_targets(document: Makeflow, graph: Graph, kind: str, settings: MakeflowSettings) -> list[int]:
    """Removes files of this kind that rules have made; returns the numbers of those that existed."""
    outputs = frozenset(output_files(document, graph))
    kept = kept_files(document, graph) if kind == "intermediates" else frozenset(document.inputs) - outputs
    gone = []
    for file, maker in enumerate(graph.producer):
        name = graph.file_names[file]
        if maker == NO_TASK or name in kept or (kind == "outputs" and name not in outputs):
            continue
        if os.path.lexists(name) and remove_file(name):
            print(f"deleted {name}")
            gone.append(file)
    if kind == "all":
        further = [name.replace("%%", str(rule)) for rule in range(len(graph)) for name in settings.wrapper_outputs]
        named = frozenset(graph.file_names)
        for name in dict.fromkeys([*further, *existing_files(settings.log)]):
            if name not in named and remove_file(name):
                print(f"deleted {name}")
    return gone


def _clean_children(settings: MakeflowSettings, document: Makeflow, language: str, kind: str) -> int:
    """Runs `shoal makeflow --clean` for each sub-workflow; returns 1 if one of them fails."""
    status = 0
    for number, rule in enumerate(document.rules):
        if rule.workflow and os.path.exists(rule.workflow):
            print(f"cleaning sub-workflow {rule.workflow}", flush=True)
            log = settings.log_of_child(number, rule.workflow)
            words = [sys.executable, "-m", "shoal", "makeflow", "-T", "local", rule.workflow, "-l", log]
            words += [f"--clean={kind}", *shlex.split(" ".join(language_options(rule, language)))]
            status |= subprocess.run(words, check=False).returncode
            print(f"done cleaning sub-workflow {rule.workflow}")
    return 1 if status else 0


def _remove_state(settings: MakeflowSettings, workspace: Workspace, graph: Graph, document: Makeflow) -> None:
    for rule in range(len(graph)):
        if os.path.isdir(failed_directory(rule)):
            remove_file(failed_directory(rule))
            print(f"deleted {failed_directory(rule)}")
    for name in sandboxes("*"):
        remove_file(name)
    logs = [settings.log, settings.dagfile + ".batchlog"]
    if is_script(settings.dagfile + ".sh"):
        logs.append(settings.dagfile + ".sh")
    logs += [
        settings.log_of_child(number, rule.workflow) for number, rule in enumerate(document.rules) if rule.workflow
    ]
    for name in logs:
        remove_file(name)
    forget(workspace)


def _record(workspace: Workspace, graph: Graph, gone: list[int]) -> None:
    """Records the removed files, so that the next run makes them again only if a rule needs them."""
    ledger = LedgerWriter(workspace.ledger, workspace.ballast)
    try:
        ledger.add(OutputsCollected(list(dict.fromkeys(place_of(graph, graph.producer[file]) for file in gone))))
    finally:
        ledger.close()
