"""One case of the comparison: a directory, a script that runs the program, and what may differ afterwards.

Both programs get a fresh directory with the same files and the same script. In the script `run` stands for the program
under test. What is compared: the files afterwards, the exit statuses, the lines about rules on standard output, and
that every rule started after those it depends on. What the workflow files say is left to the tables beside this module.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.graph import Graph
from shoal.errors import InputError
from shoal.formats.makeflow import build_graph, parse_makeflow

ORIGINAL = shutil.which("makeflow") or ""
OURS = f"{sys.executable} -m shoal makeflow"
WORKFLOW = "w.mf"
LOG = WORKFLOW + ".makeflowlog"
KILLED_ITSELF = "143"
"""What the shell sees when the original refuses its input: it sends itself SIGTERM."""
PATIENCE = 60.0
ENVIRONMENT = {
    "PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin",
    "HOME": "/nowhere",
    "LANG": "C.UTF-8",
    "FROM_OUTSIDE": "out side",
    # The original is linked with MPI: without the first it does not start by itself, without the others not quickly.
    "OMPI_MCA_ess_singleton_isolated": "1",
    "OMPI_MCA_btl": "self",
    "OMPI_MCA_pml": "ob1",
}
_PRELUDE = """\
run() { $PROGRAM "$@" >>"$REPORT/out" 2>>"$REPORT/err"; echo $? >>"$REPORT/statuses"; }
"""
_COMPARED_LINE = re.compile(r"submitting job: |deleted (?!makeflow.failed)|.* has \d+ rules\.$")
_FAILED_DIRECTORY = re.compile(r"makeflow\.failed\.\d+(?=/|$)")
_RULE_RECORD = re.compile(r"\d+ (\d+) (\d) -?\d+ \d+ \d+ \d+ \d+ \d+ \d+$")
_POSITION = re.compile(r"[^\s:]+:\d+:\d+: ")


@dataclass(frozen=True)
class Case:
    """A workflow `text` (the file `w.mf`) with further `files`, and a script that calls `run` once or more."""

    name: str
    text: str
    script: str = "run w.mf"
    status: str = "0"
    """Exit statuses of the original, one per `run`; where it is 143 ours must be 1 and name the place."""
    ours: str | None = None
    """Our exit statuses where they differ for another reason, which `why` states."""
    why: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str | None] = field(default_factory=dict)
    """Files that ours must leave with another content than the original, or None: not at all."""
    places: bool = True
    """Whether ours names file, line and column where the original kills itself."""
    says_the_same: bool = True
    """Whether the lines about jobs and deleted files on standard output are compared."""


@dataclass(frozen=True)
class Outcome:
    """What one program did."""

    directory: Path
    statuses: list[str]
    out: str
    err: str

    def files(self) -> dict[str, str]:
        """Content by name, without logs and records; of directories for failed rules only that they are there."""
        found = {}
        for path in sorted(self.directory.rglob("*")):
            name = str(path.relative_to(self.directory))
            if ".shoal" in path.parts or name.endswith(".makeflowlog"):
                continue
            if failed := _FAILED_DIRECTORY.match(name):
                found[failed[0]] = "kept"
            elif path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            else:
                found[name] = "a directory" if path.is_dir() else path.read_bytes().decode("utf-8", "backslashreplace")
        return found

    def lines(self) -> list[str]:
        """What it said about rules and files, in no particular order, each once and with runs of blanks made one."""
        return sorted({" ".join(line.split()) for line in self.out.splitlines() if _COMPARED_LINE.match(line)})


def run_both(case: Case, place: Path) -> tuple[Outcome, Outcome]:
    """Runs the case with the original and with ours, at the same time."""
    running = [_start(case, place / name, program) for name, program in (("original", ORIGINAL), ("ours", OURS))]
    try:
        for process, _ in running:
            process.wait(PATIENCE)
    finally:
        for process, _ in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    original, ours = (_outcome(report) for _, report in running)
    return original, ours


def _start(case: Case, place: Path, program: str) -> tuple[subprocess.Popen[bytes], Path]:
    directory, report = place / "work", place / "report"
    report.mkdir(parents=True)
    for name, content in {WORKFLOW: case.text, **case.files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
        if content.startswith("#!"):
            path.chmod(0o755)
    process = subprocess.Popen(
        ["/bin/sh", "-c", _PRELUDE + case.script],
        cwd=directory,
        env=ENVIRONMENT | {"PROGRAM": program, "REPORT": str(report)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return process, report


def _outcome(report: Path) -> Outcome:
    def read(name: str) -> str:
        path = report / name
        return path.read_bytes().decode("utf-8", "backslashreplace") if path.exists() else ""

    return Outcome(report.parent / "work", read("statuses").split(), read("out"), read("err"))


def expected_statuses(case: Case) -> list[str]:
    """Our exit statuses: those of the original, except that ours is never killed."""
    if case.ours is not None:
        return case.ours.split()
    return ["1" if status == KILLED_ITSELF else status for status in case.status.split()]


def must_name_a_place(case: Case) -> bool:
    """Whether the original kills itself over what ours refuses by naming the place."""
    return case.places and case.ours is None and KILLED_ITSELF in case.status.split()


def names_a_place(outcome: Outcome) -> bool:
    """Whether some line on standard error starts with `file:line:column:` (and no traceback is there)."""
    return "Traceback" not in outcome.err and any(_POSITION.search(line) for line in outcome.err.splitlines())


def started_too_early(outcome: Outcome, case: Case) -> list[str]:
    """Rules that the log shows running before a rule they depend on was complete; for Makeflows only."""
    log = outcome.directory / LOG
    if not log.exists() or "--js" in case.script or "--jx" in case.script:
        return []
    graph = _graph_of((outcome.directory / WORKFLOW).read_text(encoding="utf-8"))
    if graph is None:
        return []
    complete = set()
    early = []
    for line in log.read_text(encoding="utf-8", errors="backslashreplace").splitlines():
        record = _RULE_RECORD.match(line)
        if record is None:
            continue
        rule, state = int(record[1]), record[2]
        if state == "1":
            early += [f"{rule} before {other}" for other in graph.predecessors_of(rule) if other not in complete]
        if state == "2":
            complete.add(rule)
        else:
            complete.discard(rule)
    return early


def _graph_of(text: str) -> Graph | None:
    try:
        return build_graph(parse_makeflow(text, source=WORKFLOW, environment=ENVIRONMENT))
    except InputError:
        return None
