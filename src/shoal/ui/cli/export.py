"""`shoal export`: writes a run as a Workflow Run RO-Crate, for archiving and exchange."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser
from shoal.ui.cli.text import printable

if TYPE_CHECKING:
    from shoal.formats.rocrate.facts import Licence, Person
    from shoal.ui.report.crate import CrateSummary

SUMMARY = """Writes what a run did as a Workflow Run RO-Crate: metadata that other programs read, with the workflow file
and, if requested, the data. The crate is a directory, or a ZIP file if its name ends in .zip. RUN is a workflow file:
its last run that executed tasks is exported; FILE@2 is its second run, FILE@-1 the one before the last."""
USAGE = "[RUN] [OPTION...]"
EXAMPLE = "shoal export flow.py -o crate.zip --data outputs --author 'Ada Lovelace' --license CC-BY-4.0"
_DEFAULT = "crate"
_SPDX = re.compile(r"(?=.*[A-Z0-9])[A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9]\+?")
"""The form of an SPDX identifier: it contains a capital letter or a digit, unlike an ordinary word."""
_NO_LICENCE = ("none", "noassertion")
_NOT_SPDX = ("proprietary", "private", "closed", "confidential", "unknown", "unlicensed")
"""Words that have this form when capitalised but are not identifiers."""
_WITH_URL = re.compile(r"(.*?)\s*<(https?://[^<>\s]+)>\s*")
_NUMBER = re.compile(r"-?[0-9]{1,9}")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")
    parser.add_argument("--run", metavar="ID", help="the run, by its identity or number, instead of @NUMBER")
    parser.add_argument("-o", "--output", metavar="PATH", help=f"the directory or ZIP file to write ({_DEFAULT})")
    parser.add_argument(
        "--data",
        choices=("none", "outputs", "all"),
        default="none",
        help="which files are copied into the crate: none, results, or all files that were read or made (none)",
    )
    parser.add_argument("--all-tasks", action="store_true", help="describe every task, even of a very large run")
    parser.add_argument("--no-checksums", action="store_true", help="do not read files that are not copied")
    parser.add_argument(
        "--env-values",
        action="store_true",
        help="include the values of environment variables that the workflow sets, not only their names",
    )
    about = parser.add_argument_group("metadata of the crate")
    about.add_argument("--name", default="", help="its name (the run and its workflow)")
    about.add_argument("--description", default="", help="its description (what ran)")
    about.add_argument(
        "--author", metavar="NAME", help="who ran it, as 'Name' or 'Name <https://orcid.org/...>' (the user)"
    )
    about.add_argument("--license", metavar="LICENCE", help="an SPDX identifier, a URL or a sentence (none)")


def execute(arguments: argparse.Namespace) -> int:
    import time

    from shoal.execution.run_selection import open_run
    from shoal.ui.cli.workflow_places import STANDARD_OUTPUT
    from shoal.ui.report.crate import CrateOptions, Exporter

    for option in ("name", "description", "author", "license"):
        _check_text(f"--{option}", getattr(arguments, option))
    path, number = _chosen(arguments)
    wanted = _DEFAULT if arguments.output is None else arguments.output
    if wanted in ("", STANDARD_OUTPUT):
        what = "is standard output, and a crate cannot be written there" if wanted else "is empty"
        raise InputError(f"-o {what}", remedy="name a directory, or a file whose name ends in .zip")
    output = os.path.abspath(wanted)
    workspace, view = open_run(path, number)
    options = CrateOptions(
        _author(arguments.author, workspace.ledger),
        _licence(arguments.license),
        time.time(),
        arguments.name,
        arguments.description,
        arguments.data,
        arguments.all_tasks,
        not arguments.no_checksums,
        arguments.env_values,
    )
    summary = Exporter(workspace, view, options).write(output)
    for note in summary.notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    print(printable(f"wrote {wanted}: {_summary(summary)}"))
    return 0


def _check_text(option: str, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise InputError(f"{option} is not UTF-8", remedy="write it in UTF-8") from None


def _summary(summary: CrateSummary) -> str:
    from shoal.core.quantities import count

    how = ", described by category" if summary.by_category else ""
    return f"{summary.tasks}{how}; {count(summary.files, 'file')}, {summary.copied:,} copied"


def _chosen(arguments: argparse.Namespace) -> tuple[str, int | None]:
    """Returns the workflow and the number of its run."""
    from shoal.execution.run_selection import split_run
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import choose_workflow
    from shoal.ui.report.crate import run_numbered

    path, number = split_run(arguments.file) if arguments.file is not None else (choose_workflow(None), None)
    wanted = arguments.run
    if wanted is None:
        return path, number
    if number is not None:
        raise InputError(f"{arguments.file!r} already names a run", remedy="leave out --run")
    if _NUMBER.fullmatch(wanted):
        return path, int(wanted)
    found = run_numbered(Workspace(path).ledger, wanted)
    if found is None:
        raise InputError(f"there is no run {wanted!r} of {path!r}", remedy="name it by its number: --run -1")
    return path, found


def _author(text: str | None, ledger: str) -> Person:
    """The author given by option, else the owner of the ledger."""
    from shoal.formats.rocrate.facts import Person

    if text is not None:
        if not text.strip():
            raise InputError("--author is empty", remedy="write --author 'Ada Lovelace'")
        found = _WITH_URL.fullmatch(text)
        return Person(found[1] or found[2], found[2]) if found else Person(text.strip())
    import pwd

    owner = os.stat(ledger).st_uid
    try:
        account = pwd.getpwuid(owner)
    except KeyError:
        return Person(f"user {owner}")
    return Person(printable(account.pw_gecos.split(",")[0].strip() or account.pw_name))


def _licence(text: str | None) -> Licence:
    from shoal.formats.rocrate.facts import Licence

    if text is None or text.strip().lower() in _NO_LICENCE:
        return Licence(
            "No licence", description="No licence was given. Ask the author what you may do with this crate."
        )
    if not text.strip():
        raise InputError("--license is empty", remedy="write an SPDX identifier, as --license CC-BY-4.0")
    if re.fullmatch(r"https?://[^\s<>\"{}|\\^`]+", text):
        return Licence(text, text)
    if _SPDX.fullmatch(text) and not text.startswith("LicenseRef-") and text.lower() not in _NOT_SPDX:
        return Licence(text, f"https://spdx.org/licenses/{text}")
    return Licence("Terms of use", description=text)
