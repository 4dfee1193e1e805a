"""`shoal run`: runs a workflow and shows it to the user."""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, port, split_words

if TYPE_CHECKING:
    from shoal.cluster.agent.messages import WireMessage
    from shoal.cluster.messaging.caller import Caller
    from shoal.core.policies.throttle.registry import Regime
    from shoal.core.resources import Resources
    from shoal.execution.run_options import RunOptions
    from shoal.execution.session import RunDriver, Session
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.display import QuietDisplay
    from shoal.ui.web.companion import CompanionServer

SUMMARY = """Runs what is missing, changed or failed in a workflow, and nothing else. Without FILE it looks for flow.py,
Flowfile.py or Makeflow. Exit status: 0 if every target was made, 1 if tasks failed or the run had to stop, 2 for
invalid input (nothing is run then), 130 after Ctrl-C. A file that defines a net instead of rules is run, too: an
interrupted net continues where it stopped, and its result is printed."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal run flow.py all --jobs 4 --memory 8G"
KEPT: dict[str, str | None] = {
    "cluster": None,
    "files": "shared",
    "policy": "flds",
    "to": "one",
    "jobs": None,
    "memory": None,
    "disk": None,
    "resource": None,
    "label": None,
    "check": "time",
    "throttle": None,
}
"""Options that are repeated in the command line to continue a run, with their default values, which are left out."""
ORDERS = ("fifo", "lifo", "hrf", "lifo+hrf", "rank-overlap", "data", "critical")
POLICIES = ("flds", "rlds", "mdl", "mlb", "auto", "pwrake")
SIZINGS = ("max-throughput", "min-waste", "max", "work-queue", "fixed")
INTERRUPTED, TERMINATED = 130, 143


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    add_machine(parser)
    how = parser.add_argument_group("what runs, and in which order")
    how.add_argument("-n", "--dry-run", action="store_true", help="show what would run and exit, as 'shoal plan' does")
    how.add_argument("-f", "--force", action="store_true", help="run everything, including tasks that are up to date")
    overwrite = "overwrite outputs that exist but were not made by this workflow"
    how.add_argument("--overwrite", action="store_true", help=overwrite)
    how.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="continue with tasks that do not depend on a failed one (default)",
    )
    how.add_argument("--fail-fast", action="store_true", help="start no more tasks after the first failure")
    how.add_argument("--check", choices=("time", "content"), default="time", help="how changed files are detected")
    how.add_argument("--order", choices=ORDERS, metavar="ORDER", help=f"one of {', '.join(ORDERS)}")
    how.add_argument(
        "--sizing",
        choices=SIZINGS,
        default=SIZINGS[0],
        metavar="MODE",
        help=f"how to estimate cores, memory and disk of tasks that do not declare them: {', '.join(SIZINGS)}",
    )
    add_throttle(how)
    where = parser.add_argument_group("on a cluster")
    where.add_argument("--cluster", metavar="NAME", help="run on this cluster: its name, or the path of an access file")
    where.add_argument("--policy", choices=POLICIES, default=POLICIES[0], metavar="POLICY", help=", ".join(POLICIES))
    where.add_argument(
        "--files",
        choices=("shared", "managed"),
        default="shared",
        help="shared: all nodes see this directory; managed: nodes fetch input files from each other",
    )
    where.add_argument(
        "--to",
        metavar="WHERE",
        default="one",
        help="where the first tasks go: one node, all nodes, or nodes with a label KEY=VALUE (one)",
    )
    where.add_argument("--detach", action="store_true", help="submit the run and exit; 'shoal attach' follows it")
    shown = parser.add_argument_group("output")
    shown.add_argument("-q", "--quiet", action="store_true", help="show only failures and errors")
    shown.add_argument("--plain", action="store_true", help="print plain lines, as without a terminal")
    shown.add_argument("--json", action="store_true", help="write one JSON object per line to standard output")
    shown.add_argument(
        "--web", action="store_true", help="serve a live page of the run in a browser; its address is printed"
    )
    shown.add_argument("--web-port", type=port, default=0, metavar="N", help="like --web, on this port")
    shown.add_argument("--explain", action="store_true", help="print why each task runs before running it")
    shown.add_argument(
        "--series", metavar="DIR", help="write a time series of the resource use of each task that is not very short"
    )
    inner = parser.add_argument_group("for developers of Shoal")
    inner.add_argument("--trace", metavar="FILE", help="write every scheduler event and the resulting commands")
    inner.add_argument("--paranoid", action="store_true", help="check every invariant after every event")


def add_throttle(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--throttle",
        metavar="HOW",
        help="what limits how many tasks run together, beyond what they declare: adaptive (default) or weasel measure "
        "the machine, contract counts one core for each task (default with --jobs or --cluster), slots=N",
    )


def throttle_of(arguments: argparse.Namespace) -> Regime:
    """Returns the throttle that the options select; with an explicit number of cores, it is `contract`.

    A cluster does not estimate memory sizes, so cores limit the number of tasks there, unless an option says otherwise.
    """
    from shoal.core.policies.throttle.registry import regime

    counted = arguments.jobs is not None or arguments.cluster is not None
    return regime(arguments.throttle or ("contract" if counted else "adaptive"))


def add_machine(parser: CommandParser) -> None:
    """Adds the options that limit what tasks may use."""
    machine = parser.add_argument_group("what tasks may use")
    machine.add_argument("-j", "--jobs", metavar="N", help="cores to use (default: all this process may use)")
    machine.add_argument("--memory", metavar="SIZE", help="memory to use, such as 8G (default: all there is)")
    machine.add_argument("--disk", metavar="SIZE", help="disk to use (default: what is free here)")
    machine.add_argument(
        "--resource",
        metavar="NAME=N",
        action="append",
        default=[],
        help="declare a resource that tasks request by name",
    )
    machine.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], help="a label that tasks require of a node"
    )


def execute(arguments: argparse.Namespace) -> int:
    if arguments.dry_run:
        from shoal.ui.cli.plan import show_plan

        by_content = arguments.check == "content"
        return show_plan(arguments, force=arguments.force, by_content=by_content, overwrite=arguments.overwrite)
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ui.cli.display import choose_display

    path = find_workflow(split_words(arguments.words, arguments.workflow)[0])
    display = choose_display(arguments)
    page = _Page(arguments, path, display)
    try:
        return _execute(arguments, path, display, page)
    finally:
        page.close()


class _Page:
    """The live page of a run, if one was requested. A run that is refused has none."""

    def __init__(self, arguments: argparse.Namespace, path: str, display: QuietDisplay) -> None:
        self._wanted = arguments.web or arguments.web_port
        self._path, self._port = os.path.abspath(path), arguments.web_port
        self._display = display
        self._beside: CompanionServer | None = None

    def open(self) -> None:
        """Starts the process that serves the page and reports its address."""
        if not self._wanted:
            return
        from shoal.ui.web.companion import CompanionServer

        try:
            self._beside = CompanionServer(self._path, self._port)
        except OSError as error:
            remedy = "choose another one with --web-port, or leave it out"
            raise InputError(f"port {self._port} cannot be used: {error.strerror}", remedy=remedy) from None
        self._display.note(f"live page: {self._beside.address}")

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()


def _execute(arguments: argparse.Namespace, path: str, display: QuietDisplay, page: _Page) -> int:
    from shoal.execution.rules_loader import NetFoundError
    from shoal.execution.session import enter

    named, words = split_words(arguments.words, arguments.workflow)
    options = options_from(arguments, path)
    caller = _line_to(arguments.cluster) if arguments.cluster else None
    access = os.path.abspath(arguments.cluster) if caller and os.path.isfile(arguments.cluster) else arguments.cluster
    workspace = enter(path)
    try:
        session = _session(arguments, workspace, words, options, display, caller)
    except NetFoundError as found:
        from shoal.ui.cli.nets import run_net

        if caller is not None:
            caller.close()
        return run_net(found.net, workspace, words, arguments, options.node, access, page.open)
    try:
        page.open()
    except InputError:
        session.abandon()
        raise
    session.report_all = display.report_all
    display.begin(session)
    if arguments.explain:
        for task in session.plan.to_run():
            display.explain(session.plan.graph.names[task], f"runs because {session.plan.why(task)}")
    run = session.execute()
    status = exit_status(run)
    display.end(session, run, status)
    if not (arguments.quiet or arguments.json):
        words = [*words, *kept_options(arguments)]
        print_summary(session, run, [named] if named else [], words, display.shown_failures())
    return status


def _session(
    arguments: argparse.Namespace,
    workspace: Workspace,
    words: list[str],
    options: RunOptions,
    display: QuietDisplay,
    caller: Caller[WireMessage] | None,
) -> Session:
    """Returns the session that runs the workflow, locally or on a cluster."""
    from shoal.execution.session import Session, load

    if caller is None:
        return Session(workspace, lambda: load(workspace, words), options, display, force=arguments.force)
    from shoal.cluster.session import ClusterSession, SubmissionOptions

    return ClusterSession(
        workspace,
        lambda: load(workspace, words),
        options,
        display,
        arguments.cluster,
        caller,
        SubmissionOptions(
            words=words,
            policy=arguments.policy,
            to=arguments.to,
            managed=arguments.files == "managed",
            detach=arguments.detach,
        ),
        force=arguments.force,
    )


def _line_to(cluster: str) -> Caller[WireMessage]:
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.session import call

    return call(cluster)


def options_from(arguments: argparse.Namespace, path: str) -> RunOptions:
    """Builds the run options from the command line, while the current directory is still the user's."""
    import os

    from shoal.core.policies.order import DEFAULT_ORDER
    from shoal.execution.run_options import RunOptions

    if arguments.trace:
        try:
            open(arguments.trace, "ab").close()
        except OSError as error:
            raise InputError(f"cannot write trace {arguments.trace!r}: {error.strerror}") from None
    if arguments.series:
        try:
            os.makedirs(arguments.series, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create directory {arguments.series!r}: {error.strerror}") from None
    return RunOptions(
        node_for(arguments, path),
        order=arguments.order or DEFAULT_ORDER,
        fail_fast=arguments.fail_fast,
        by_content=arguments.check == "content",
        overwrite=arguments.overwrite,
        paranoid=arguments.paranoid,
        trace=os.path.abspath(arguments.trace) if arguments.trace else None,
        sizing=arguments.sizing,
        throttle=throttle_of(arguments),
        series=os.path.abspath(arguments.series) if arguments.series else None,
    )


def kept_options(arguments: argparse.Namespace) -> list[str]:
    """Returns the options that a command line to continue this run must repeat: where it runs and what it may use."""
    found = []
    for name, usual in KEPT.items():
        value = getattr(arguments, name)
        for word in value if isinstance(value, list) else [value]:
            if word != usual:
                found += [f"--{name}", word]
    return found


def print_summary(session: Session, run: RunDriver, workflow: list[str], words: list[str], shown: int) -> None:
    """Prints the summary to standard output. A closed output does not change the exit status of the run."""
    import sys

    from shoal.ui.cli.display import summarise
    from shoal.ui.cli.screen import Screen

    if run.detached:
        Screen(sys.stdout).say("the run goes on without this terminal; 'shoal attach' follows it")
        return
    text = summarise(run.statistics, session.plan.graph.names, run.stop_reason, workflow, words, shown)
    screen = Screen(sys.stdout)
    totals = run.statistics
    first, *rest = text.split("\n")
    colour = "green" if totals.done == totals.to_run() else "red" if totals.failed else "yellow"
    screen.say("\n".join([screen.paint(first, colour), *rest]))


def node_for(arguments: argparse.Namespace, path: str) -> Resources:
    """Resources that the tasks may use, from the machine and the options."""
    import os

    from shoal.core.resources import carrying, parse_label
    from shoal.execution.run_options import this_node

    declared = {}
    for word in arguments.resource:
        name, equals, amount = word.partition("=")
        if not (name and equals and amount):
            raise InputError(f"--resource {word!r} has no amount", remedy="write it as NAME=N, such as licence=2")
        declared[name] = amount
    for name in ("memory", "disk"):
        if getattr(arguments, name) is not None:
            declared[name] = getattr(arguments, name)
    directory = os.path.dirname(os.path.abspath(path))
    if arguments.jobs is not None:
        declared["cores"] = jobs_of(arguments.jobs)
    labels = [parse_label(text, "--label") for text in arguments.label]
    return carrying(this_node(directory, declared=declared), labels)


def jobs_of(text: str) -> str:
    """Validates the requested number of cores."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise InputError(f"--jobs must be a positive number of cores, not {text!r}", remedy="leave it out to use all")
    return text


def exit_status(run: RunDriver) -> int:
    """0 only if every requested task is done, or if the run was detached on request."""
    totals = run.statistics
    if totals.done == totals.to_run() or (run.detached and not run.stop_signal):
        return 0
    if run.stop_signal == signal.SIGINT:
        return INTERRUPTED
    return TERMINATED if run.stop_signal else 1
