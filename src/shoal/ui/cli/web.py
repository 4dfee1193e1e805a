"""`shoal web`: serves the live page of a run or of a cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.ui.web.board import PageSource

SUMMARY = """Shows a run in a browser, live or finished: progress, cores and memory over time, a task timeline, and
single tasks. The page is served on this machine only, to users who have the printed address; it is read-only. RUN is a
workflow file: its last run that executed tasks is shown; FILE@2 is its second run, FILE@-1 the one before the last.
With --cluster NAME it shows a cluster, also without runs: its nodes, their state and problems, and which nodes are
missing and why."""
USAGE = "[RUN | --cluster NAME] [OPTION...]"
EXAMPLE = "shoal web flow.py"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")
    parser.add_argument("--cluster", metavar="NAME", help="show this cluster; NAME may be the path of an access file")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="serve on this port (default: any free port)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    import secrets
    import signal

    from shoal.execution.processes.wakeup import catchable
    from shoal.ui.cli.text import printable
    from shoal.ui.web.companion import address_of, listen, use_one_heap
    from shoal.ui.web.server import CLUSTER, RUN, PageServer, serve_until

    use_one_heap()
    shown, make = _cluster(arguments) if arguments.cluster is not None else _run(arguments.run)
    token = secrets.token_urlsafe(24)
    try:
        listening = listen(arguments.port)
    except OSError as error:
        remedy = "choose another one, or leave it out"
        raise InputError(f"port {arguments.port} cannot be used: {error.strerror}", remedy=remedy) from None
    address = address_of(listening, token)
    server = PageServer(listening, token, make, CLUSTER if arguments.cluster is not None else RUN)
    over = _SignalWait(catchable((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
    print(printable(f"showing {shown} at {address} until Ctrl-C"), flush=True)
    with suppress(_Interrupted), _in_a_browser(address) if arguments.open else nullcontext():
        serve_until(server, over, at_once=True)
    return 0


class _Interrupted(Exception):  # noqa: N818  # the usual end of a server
    pass


class _SignalWait:
    """Waits for a signal in the main thread, which then exits.

    A handler that raises an exception could do so anywhere, even while a thread starts and holds half of its locks.
    Therefore the handler does nothing, and the byte that Python writes for the signal ends the wait in the main thread,
    whichever thread received the signal.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        import os
        import signal

        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda number, frame: None)

    def wait(self) -> object:
        import os
        import signal

        number = os.read(self._reader, 1)[0]
        raise _Interrupted if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def _in_a_browser(address: str) -> Iterator[None]:
    """Opens the page in a browser while it is served.

    All users can see the arguments of a browser process, so it gets the path of a file that only its owner can read and
    that redirects to the page.
    """
    import os
    import tempfile
    import threading
    import webbrowser
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="shoal-web-") as folder:
        path = Path(folder, "page.html")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                f'<!DOCTYPE html>\n<meta charset="utf-8">\n<meta http-equiv="refresh" content="0; url={address}">\n'
                f'<title>Shoal</title>\n<a href="{address}">The live page</a>\n'
            )
        # webbrowser.open may wait for the browser, which needs the page meanwhile.
        threading.Thread(target=webbrowser.open, args=(path.as_uri(),), name="browser", daemon=True).start()
        yield


def _run(word: str | None) -> tuple[str, Callable[[], PageSource]]:
    """Returns the run's display name and a function that creates its page."""
    import os

    from shoal.execution.run_selection import numbered_run, split_run
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import choose_workflow
    from shoal.ui.web.server import of_run

    path, number = split_run(word if word is not None else choose_workflow(None))
    workspace = Workspace(choose_workflow(path))
    if number is not None:
        number = numbered_run(workspace, path, number)
    return os.path.basename(path), of_run(workspace, number)


def _cluster(arguments: argparse.Namespace) -> tuple[str, Callable[[], PageSource]]:
    """Returns the cluster's display name and a function that creates its page."""
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.messaging.access import access_path, read
    from shoal.ui.web.server import of_cluster

    if arguments.run is not None:
        raise InputError("a run and a cluster cannot be shown on one page", remedy="name either RUN or --cluster NAME")
    access = read(access_path(arguments.cluster))  # reports an unknown cluster at once
    return f"the cluster {access.name}", of_cluster(arguments.cluster)
