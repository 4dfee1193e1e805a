"""`python -m tests.fuzz.rebuild --seeds A..B`: plays one history for each seed and shrinks those that differ."""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import sys
import tempfile
import time
import traceback

from .cluster import Cluster
from .command import Command
from .difference import PROMISES, Difference
from .generate import FEATURES, History, describe, generate
from .play import Player
from .workflow import HELPERS, text_of

_ROUNDS = 3
_BROKEN = 255
SIMPLE = ("hooked", "nested", "guarded", "flaky", "idle", "cuckoo", "fixed_time", "words", "needs")
"""What a task can be without."""


class Worker:
    """Plays histories one after the other in a directory of its own."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder = os.path.join(folder, str(number))
        os.makedirs(self.folder)
        self.cluster = Cluster(self.folder)
        self.command = Command(os.path.join(self.folder, "control"), self.cluster)
        self._load_modules()

    def _load_modules(self) -> None:
        """Plays a small workflow, so that everything a run imports is there before the first fork."""
        at = os.path.join(self.folder, "first")
        os.makedirs(at)
        with open(os.path.join(at, "flow.py"), "w") as stream:
            stream.write("from shoal import file, task\nfile('a', run='echo > a')\n@file('b', needs='a')\n")
            stream.write("def b(t):\n    open(t.out, 'w').close()\n    return 1\n")
        with open(os.path.join(at, "Makeflow"), "w") as stream:
            stream.write("c:\n\techo > c\n")
        words = [["run", "--plain", "--explain", "-j", "2", "flow.py"], ["run", "--check", "content", "Makeflow"]]
        more = [["makeflow", "-j", "2", "Makeflow"], ["clean", "flow.py"], ["run", "flow.py"], ["adopt", "flow.py"]]
        self.command.load_modules(at, *words, *more)

    def play(self, history: History) -> tuple[Difference, Player] | None:
        """What differs, if anything does."""
        at = os.path.join(self.folder, "h")
        shutil.rmtree(at, ignore_errors=True)
        os.makedirs(at)
        player = Player(history, at, self.command)
        try:
            player.play()
        except Difference as difference:
            self.command.await_leftovers()
            return difference, player
        self.command.await_leftovers()
        return None

    def shrink(self, history: History, kind: str) -> History:
        """Leaves steps and tasks out as long as the same kind of difference remains."""
        for _ in range(_ROUNDS):
            before = len(history.dropped)
            for at in range(len(history.steps) - 1, -1, -1):
                history = self._try_without(history, f"s{history.steps[at].seed}", kind)
            for task in list(reversed(history.flow.tasks)):
                history = self._try_without(history, task.key, kind)
            for task in history.flow.tasks:
                for name in SIMPLE:
                    if getattr(task, name):
                        history = self._try_without(history, f"{task.key}.{name}", kind)
            if len(history.dropped) == before:
                break
        return history

    def _try_without(self, history: History, part: str, kind: str) -> History:
        smaller = without(history, [part])
        for _ in range(2):
            found = self.play(smaller)
            if found is not None and found[0].kind == kind:
                return smaller
        return history


def without(history: History, parts: list[str]) -> History:
    """A copy that lacks steps (s and their seed) and tasks (their key)."""
    smaller = copy.deepcopy(history)
    smaller.dropped += parts
    smaller.steps = [step for step in smaller.steps if f"s{step.seed}" not in parts]
    flow = smaller.flow
    flow.tasks = [task for task in flow.tasks if task.key not in parts]
    for task in flow.tasks:
        order = [need for need in task.needs if need[0] == "order"]  # a cuckoo's egg is laid before, or it is a race
        for name in SIMPLE:
            if f"{task.key}.{name}" in parts:
                setattr(task, name, order if name == "needs" else type(getattr(task, name))())
        task.needs = [need for need in task.needs if need[1] not in parts]
        if task.cuckoo in parts:
            task.cuckoo = ""
        if not task.needs and (task.plain or task.link):
            task.plain = task.link = False
    return smaller


def report(seed: int, history: History, difference: Difference, player: Player, options: str) -> str:
    """Everything that is needed to understand and to repeat it."""
    lines = [f"==== seed {seed}: {difference}", f"({describe(history)})"]
    lines += [f"  {at}. {told}" for at, told in enumerate(player.happened, 1)]
    lines += ["---- the workflow", text_of(player.flow, "CONTROL")]
    lines += ["---- the project"]
    for path, entry in sorted(player.project.tree().items()):
        if entry.kind != "directory" and path != player.flow.file:
            lines.append(f"  {path}: {entry.content!r} {entry.time or ''}")
    if player.last is not None:
        lines += [f"---- what shoal said last (status {player.last.status})", player.last.text]
    parts = f" --without {','.join(history.dropped)}" if history.dropped else ""
    lines.append(f"---- again: python -m tests.fuzz.rebuild --seeds {seed}{parts}{options}")
    return "\n".join(lines).replace(HELPERS, "").replace(player.command.control, "CONTROL")


def work(arguments: argparse.Namespace, folder: str, number: int, seeds: list[int]) -> int:
    """Plays some seeds; how many of them differ."""
    worker = Worker(folder, number)
    with worker.cluster:
        found = _work(arguments, worker, seeds)
    with open(os.path.join(folder, f"{number}.killed"), "w") as stream:
        stream.write(str(worker.command.killed))
    return found


def _work(arguments: argparse.Namespace, worker: Worker, seeds: list[int]) -> int:
    only = frozenset(arguments.only.split(",")) if arguments.only else frozenset()
    options = f" --only {arguments.only}" if arguments.only else ""
    options += f" --ignore {arguments.ignore}" if arguments.ignore else ""
    found = 0
    for at, seed in enumerate(seeds):
        history = generate(seed, only)
        if arguments.without:
            history = without(history, arguments.without.split(","))
        failed = worker.play(history)
        if failed is None:
            if at % 200 == 199:
                print(f"{at + 1} of {len(seeds)} histories played", file=sys.stderr, flush=True)
            continue
        found += 1
        if arguments.shrink and found <= arguments.shrink:
            history = worker.shrink(history, failed[0].kind)
            failed = worker.play(history) or failed
        print(report(seed, history, *failed, options), flush=True)
        if arguments.stop:
            break
    return found


def _be_worker(arguments: argparse.Namespace, folder: str, number: int, seeds: list[int]) -> None:
    """A process of its own; its exit status is how many histories differ, or one that says that it broke."""
    status = _BROKEN
    try:
        status = min(work(arguments, folder, number, seeds), _BROKEN - 1)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _number_in(path: str) -> int:
    try:
        with open(path) as stream:
            return int(stream.read())
    except FileNotFoundError:  # its process broke off
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rebuild")
    parser.add_argument("--seeds", default="0..99", help="A..B, or one seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play histories")
    parser.add_argument("--only", default="", help=f"features that histories may use, of {', '.join(FEATURES)}")
    parser.add_argument("--without", default="", help="steps and tasks to leave out, as a failure names them")
    parser.add_argument("--shrink", type=int, default=3, help="how many failures of a process are made small")
    parser.add_argument("--stop", action="store_true", help="end at the first difference")
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None, help="where to play")
    parser.add_argument("--ignore", default="", help=f"promises that are not checked, of {', '.join(PROMISES)}")
    arguments = parser.parse_args()
    for name in filter(None, arguments.ignore.split(",")):
        PROMISES[name] = False
    first, _, last = arguments.seeds.partition("..")
    seeds = list(range(int(first), int(last or first) + 1))
    folder = tempfile.mkdtemp(prefix="shoal-rebuild-", dir=arguments.folder)
    began = time.monotonic()
    try:
        pids = []
        for number in range(arguments.jobs):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _be_worker(arguments, folder, number, seeds[number :: arguments.jobs])
            pids.append(pid)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        killed = sum(_number_in(os.path.join(folder, f"{number}.killed")) for number in range(arguments.jobs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if any(end not in range(_BROKEN) for end in ends):
        print("a process that played histories broke off", file=sys.stderr)
        return 2
    used, found = os.times(), sum(ends)
    cpu = used.children_user + used.children_system
    took = f"{time.monotonic() - began:.1f} s, {cpu:.1f} s of CPU"
    print(f"{len(seeds)} histories, {killed} runs killed, {found} differ; {took}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
