"""`python -m tests.fuzz.rebuild.mutants`: puts known defects back one by one, and plays histories until each is found.

A history finds a defect if it differs with it and does not differ without it. The seed is named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from shoal.cluster import session as cluster_session
from shoal.execution import removal, session
from shoal.execution.files import backups, files, moves
from shoal.formats.rules import fingerprint
from shoal.ledger import history, identity, up_to_date, workspace
from shoal.ledger.attempt_journal import MovedUnit, OutputBefore

from .__main__ import Worker
from .generate import generate

Defect = Callable[[ExitStack], None]


def _put(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.enter_context(patch.object(owner, name, value))


def _no_file_is_unknown(stack: ExitStack) -> None:
    """What was not made by the workflow is removed before a task starts."""
    _put(stack, session, "find_unknown", lambda *_: None)
    _put(stack, backups.Backups, "_look", lambda self, file, name, made: _removed(name))


def _removed(name: str) -> OutputBefore:
    found = os.lstat(name)
    if stat.S_ISDIR(found.st_mode):
        return OutputBefore(os.fsencode(name), [MovedUnit(os.fsencode(name), b"", found.st_dev, found.st_ino, True)])
    os.unlink(name)
    return OutputBefore(os.fsencode(name))


def _everything_in_output_directories_is_removed(stack: ExitStack) -> None:
    """`shoal clean` takes what somebody else has put into an output directory."""
    is_as_left = removal._is_as_left
    _put(stack, removal, "_is_as_left", lambda made, relative, path: bool(relative) or is_as_left(made, "", path))


def _half_made_outputs_stay(stack: ExitStack) -> None:
    """What a failed attempt has begun stays under its name."""
    _put(stack, moves.OutputMoves, "take_away", lambda self, before: {})


def _groups_are_as_new_as_their_newest(stack: ExitStack) -> None:
    """The version of a group is the maximum of the times of its members."""

    def newest(self: identity.Versions, group: int, known: dict[int, bytes], seen: identity.Seen) -> bytes:
        graph, found = self.graph, [0.0]
        pending = [group]
        for top in pending:  # grows while we walk it
            found += [seen(file)[1] / 1e9 for file in graph.inputs_of(top)]
            for other in graph.after_of(top):
                if graph.actions[other] is None:
                    pending.append(other)
                else:
                    found.append(self.done[other])
        return struct.pack("=d", max(found))

    _put(stack, identity.Versions, "_group", newest)


def _directories_only_have_to_be_there(stack: ExitStack) -> None:
    """Nobody looks into a directory."""
    _put(stack, files, "tree_signature", lambda *_, **__: identity.FOLDER_UNSEEN)


def _half_a_directory_is_a_result(stack: ExitStack) -> None:
    """An output directory of which a killed run has made a half counts as it was."""
    _interrupted_attempts_are_forgotten(stack)
    _put(stack, session, "restore_all", lambda *_: {})
    outputs = up_to_date._Comparison._outputs

    def unless_directory(self: Any, *arguments: Any) -> Any:
        found = outputs(self, *arguments)
        is_directory = found[0] is up_to_date.Reason.OUTPUT_CHANGED and found[1] in self._versions.folders
        return up_to_date._HOLDS if is_directory else found

    _put(stack, up_to_date._Comparison, "_outputs", unless_directory)


def _interrupted_attempts_are_forgotten(stack: ExitStack) -> None:
    """An attempt that began and never ended leaves the result before it valid, and what it has half made."""
    take_away = moves.OutputMoves.take_away
    _put(
        stack, moves.OutputMoves, "take_away", lambda self, before: {} if self._after_kill else take_away(self, before)
    )
    _put(stack, history.History, "is_interrupted", lambda *_: False)
    _put(stack, backups, "_record_interrupted", lambda *_: None)


def _attached_runs_are_booked_as_they_are_now(stack: ExitStack) -> None:
    """`shoal attach` books results under the workflow and the sources of its own time."""

    def as_now(self: Any, options: Any, force: bool) -> Any:
        if self.attach is not None:
            self.workflow = session.load(self.workspace, self.attach.words)
        return session.Session._make_plan(self, options, force)

    _put(stack, cluster_session.ClusterSession, "_make_plan", as_now)


def _outputs_of_others_are_accepted(stack: ExitStack) -> None:
    """What another task wrote between plan and start counts as made by a task that made nothing."""
    _put(stack, backups, "is_there", lambda _: False)


def _runs_on_clusters_are_not_seen(stack: ExitStack) -> None:
    """A local run, or `clean`, begins although a cluster has the workflow."""
    acquire = workspace.Workspace.acquire
    _put(stack, workspace.Workspace, "acquire", lambda self, holder, **_: acquire(self, holder, attaching=True))


def _classes_count_by_name(stack: ExitStack) -> None:
    """Methods and attributes of classes do not count."""

    def of_class(self: Any, kind: type) -> Iterator[str]:
        yield f"class {kind.__qualname__}"

    _put(stack, fingerprint._Walk, "_class", of_class)


def _objects_count_by_type(stack: ExitStack) -> None:
    """Of paths, patterns and other objects only the type counts."""
    _put(stack, fingerprint, "_parts", lambda _: [])


def _containers_count_by_length(stack: ExitStack) -> None:
    """What is in a dictionary does not count."""

    def pairs(self: Any, mapping: Any) -> Iterator[str]:
        yield str(len(mapping))

    _put(stack, fingerprint._Walk, "_pairs", pairs)


def _modules_count_by_name(stack: ExitStack) -> None:
    """Modules that a rules file imports do not count."""
    from shoal.execution import rules_loader

    _put(stack, rules_loader.ModuleVersions, "__call__", lambda _, name: name)


def _results_are_compared_as_asked(stack: ExitStack) -> None:
    """A result that was recorded in one way is compared in the other one."""
    compare = up_to_date._Comparison._compare

    def as_asked(self: Any, task: int, result: Any, check: int, is_collected: bool) -> Any:
        import msgspec

        own = self._versions.check
        return compare(self, task, msgspec.structs.replace(result, check=own), own, is_collected)

    _put(stack, up_to_date._Comparison, "_compare", as_asked)


STAND_IN = frozenset({"makeflow", "dropin", "kills", "failures", "outputs"})
CLUSTERS = frozenset({"cluster", "members", "definitions", "functions"})


class Sign(NamedTuple):
    """How one sees that a history has found a defect and nothing else."""

    put_back: Defect
    differences: str
    """Kinds, separated by commas."""
    word: str = ""
    """Stands in what is told of the history."""
    only: frozenset[str] = frozenset()
    """What histories hold in which it can show itself, if that is rare."""


DEFECTS: dict[str, Sign] = {
    "1": Sign(_no_file_is_unknown, "lost,not refused"),
    "2 clean": Sign(_everything_in_output_directories_is_removed, "lost", "clean"),
    "2 partial": Sign(_half_made_outputs_stay, "half,stray"),
    "3": Sign(_groups_are_as_new_as_their_newest, "stale"),
    "4": Sign(_directories_only_have_to_be_there, "stale"),
    "5": Sign(_half_a_directory_is_a_result, "stale", "SIGKILL"),
    "6": Sign(_interrupted_attempts_are_forgotten, "stale", "shoal -j", STAND_IN),
    "7": Sign(_attached_runs_are_booked_as_they_are_now, "stale,rerun", "attach", CLUSTERS),
    "8 classes": Sign(_classes_count_by_name, "stale"),
    "8 objects": Sign(_objects_count_by_type, "stale"),
    "8 dictionaries": Sign(_containers_count_by_length, "stale"),
    "8 modules": Sign(_modules_count_by_name, "stale"),
    "9": Sign(_results_are_compared_as_asked, "rerun", "--check"),
    "13": Sign(_outputs_of_others_are_accepted, "stale", "must fail"),
    "17": Sign(_runs_on_clusters_are_not_seen, "not refused", "a cluster has the run", CLUSTERS),
}
"""By the numbers under which they were found first."""


@contextmanager
def defect(name: str) -> Iterator[None]:
    """Shoal has this defect meanwhile; commands are forks of this process."""
    with ExitStack() as stack:
        DEFECTS[name].put_back(stack)
        yield


def search(worker: Worker, name: str, seeds: range) -> tuple[int, str] | None:
    """The first history that finds the defect, and what differs in it."""
    sign = DEFECTS[name]
    for seed in seeds:
        history = generate(seed, sign.only)
        with defect(name):
            found = worker.play(history)
        if found is None or found[0].kind not in sign.differences.split(","):
            continue
        told = "\n".join([str(found[0]), *found[1].happened])
        if sign.word in told and worker.play(history) is None:
            return seed, str(found[0])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rebuild.mutants")
    parser.add_argument("--seeds", default="0..1999", help="A..B")
    parser.add_argument("defects", nargs="*", metavar="DEFECT", help=f"of {', '.join(DEFECTS)} (default: all)")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    folder = tempfile.mkdtemp(prefix="shoal-mutants-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    missed = 0
    worker = Worker(folder, 0)
    try:
        with worker.cluster:
            for name in arguments.defects or DEFECTS:
                found = search(worker, name, range(int(first), int(last or first) + 1))
                missed += found is None
                told = f"Found by seed {found[0]}: {found[1][:150]}" if found else "Not found."
                print(f"{name}: {DEFECTS[name].put_back.__doc__} {told}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
