"""`shoal web`: the live page of a run, served on this machine until Ctrl-C."""

from __future__ import annotations

import argparse

from shoal.cli.parser import CommandParser, port
from shoal.errors import InputError

SUMMARY = """Shows a run in a browser, live or afterwards: progress, cores and memory over time, who ran what when, and
single tasks. The page is served on this machine only, to those who have the address that is printed; it changes
nothing. RUN is a workflow file, whose last run is meant; FILE@2 is its second run, FILE@-1 the one before the last."""
USAGE = "[RUN] [OPTION...]"
EXAMPLE = "shoal web flow.py"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="serve on this port (any that is free)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def execute(arguments: argparse.Namespace) -> int:
    import os
    import secrets
    import threading

    from shoal.cli.places import choose_workflow
    from shoal.engine.workspace import Workspace
    from shoal.report.choose import numbered_run, split_run
    from shoal.web.server import Server, address_of, listen, serve_until

    word = arguments.run if arguments.run is not None else choose_workflow(None)
    path, number = split_run(word)
    workspace = Workspace(path)
    if not os.path.isfile(path) and not os.path.isdir(workspace.directory):
        raise InputError(f"{path!r} does not exist", remedy="name the workflow's file")
    if number is not None:
        number = numbered_run(workspace, path, number)
    token = secrets.token_urlsafe(24)
    try:
        listening = listen(arguments.port)
    except OSError as error:
        remedy = "name another one, or none"
        raise InputError(f"port {arguments.port} cannot be used: {error.strerror}", remedy=remedy) from None
    address = address_of(listening, token)
    server = Server(listening, token, workspace, number)
    print(f"showing {os.path.basename(path)} at {address} until Ctrl-C", flush=True)
    if arguments.open:
        import webbrowser

        webbrowser.open(address)
    is_over = threading.Event()
    try:
        serve_until(server, is_over)
    except KeyboardInterrupt:
        return 0
    return 0
