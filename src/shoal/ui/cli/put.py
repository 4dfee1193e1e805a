"""`shoal put`: puts tokens into a running net, from another terminal."""

from __future__ import annotations

import argparse
import json
from typing import Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser

SUMMARY = """Puts tokens on a place of a net that 'shoal run FILE' is running, all or none, and returns when they are
recorded in its ledger. Each VALUE is JSON: 3, '"text"', '[1, 2]'. --close declares that no more tokens will follow, so
that the net ends when nothing is left to do."""
USAGE = "FILE PLACE VALUE... [--close]"
EXAMPLE = """shoal put stream.py arrived 3 '"four"' '[5, 6]'"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="the workflow file, the place, and the tokens")
    parser.add_argument("--close", action="store_true", help="declare that no more external tokens will follow")


def execute(arguments: argparse.Namespace) -> int:
    import os

    from shoal.core.quantities import count
    from shoal.execution.requests import TokensPut, ask_to_close, ask_to_put
    from shoal.execution.workflow_loader import missing_workflow
    from shoal.ledger.status import Follower
    from shoal.ledger.workspace import Workspace

    if not arguments.words or (len(arguments.words) < 3 and not arguments.close):
        raise InputError(
            "the file, the place or the tokens are missing", remedy="write it as 'shoal put FILE PLACE VALUE...'"
        )
    path, *rest = arguments.words
    workspace = Workspace(path)
    if not os.path.isfile(path) and not os.path.isdir(workspace.directory):
        raise missing_workflow(path)
    values = [_value(word) for word in rest[1:]]
    follower = Follower(workspace)
    follower.refresh()
    if workspace.holder() is not None and follower.state.start is not None and follower.state.net is None:
        raise InputError(f"{os.path.basename(path)} is running, but it is not a net and takes no tokens")
    if rest:
        ask_to_put(workspace, TokensPut(rest[0], values, arguments.close))
    else:
        ask_to_close(workspace)
    done = [f"put {count(len(values), 'token')} on {rest[0]!r}"] if values else []
    done += ["closed the net's input"] if arguments.close else []
    print("; ".join(done))
    return 0


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        raise InputError(f"{word!r} is not valid JSON", remedy=f"write a text as '\"{word}\"'") from None
