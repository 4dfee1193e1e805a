"""Plays a history: does what its steps say, runs `shoal`, and compares every file with what the model demands."""

from __future__ import annotations

import copy
import importlib.util
import os
import shlex
import shutil
import time
from collections.abc import Callable
from random import Random

from shoal.ui.cli.text import printable

from .cleaning import clean
from .command import Command, Said
from .difference import PROMISES, Content, Difference, content_of, is_of_dropin
from .generate import ODD_NAMES, History, lines
from .project import RECORDS, SECOND, Project, Tree
from .run import Run
from .workflow import FAILING, Adopted, Made, Model, Task, text_of

AWAY = ("edit", "touch", "add member", "remove member", "swap members", "rename member", "edit word", "edit command",
        "edit needs", "fail", "mend", "attach")  # fmt: skip
"""Steps that may happen while a run is on a cluster."""
_BEGIN = 1_600_000_000 * SECOND


class Player:
    """One history in a directory of its own."""

    def __init__(self, history: History, folder: str, command: Command) -> None:
        self.history, self.folder, self.command = history, folder, command
        self.flow = copy.deepcopy(history.flow)
        self.project = Project(os.path.join(folder, "p0"))
        self.happened: list[str] = []
        self.copies = 0
        self.left: list[tuple[Project, Tree]] = []
        """Copies that were left behind, as they were."""
        self.removed: list[tuple[int, Task]] = []
        self.recorded: dict[str, str] = {}
        """By output: whether the ledger has it as made: yes or maybe."""
        self.versions: dict[str, set[Content]] = {}
        """By output: every complete content that a task may have made."""
        self.settled: dict[str, tuple[str, dict[str, int]]] = {}
        """By key of a result: the stamp it was made under, and the times of its sources."""
        self.checked: dict[str, str] = {}
        """By key: how the run that made it looked at files, if that is known."""
        self.unclear: dict[str, set[Content]] = {}
        """By output: content of which the model does not know whose it is: left by killed runs, found by `adopt` in a
        directory beside what its task makes, or known to records that are lost."""
        self.adopted: dict[str, Adopted] = {}
        self.signatures: dict[str, dict[tuple[int, int], bytes]] = {}
        """By file: the content with which it ever had a size and a time."""
        self.clock = _BEGIN
        self.knows_adopt = importlib.util.find_spec("shoal.ui.cli.adopt") is not None
        self.last: Said | None = None
        self.away: Run | None = None
        """What has been brought to a cluster and not been collected."""
        self.edited_away = False
        self.cut_off: list[Made] = []
        """What a killed run was to make: the next command puts back what stood there before, or moves halves away."""
        self.skew = 0.0

    # ---- the whole -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Raises `Difference` at the first thing that is wrong."""
        self._set_up()
        for step in self.history.steps:
            method: Callable[[Random], str | None] = getattr(self, "_" + step.kind.replace(" ", "_"))
            self.happened.append(f"{step.kind} ...")
            chance = Random(step.seed)
            told = self._while_away(chance, step.kind) if self.away else None
            told = told or method(chance)
            if told is None:
                self.happened.pop()
            else:
                self.happened[-1] = told
        if self.away is not None:
            self._attach(Random(0))
        for project, tree in self.left:
            self.compare_others(tree, project.tree(), lambda path: True, "a copy that was left behind")
        if self.history.seed % 25 == 0:
            self._build_elsewhere()

    def _set_up(self) -> None:
        for name in os.listdir(self.command.control):
            os.unlink(os.path.join(self.command.control, name))
        os.makedirs(self.project.root)
        for name, content in self.flow.sources.items():
            if isinstance(content, tuple):
                self.project.link(name, content[1])
            else:
                self._write(name, content, self._later())
        for word in self.flow.words.values():
            for name, content in word.files().items():
                self._write(name, content, self._later())
        self._write_flow()

    def _write_flow(self) -> None:
        self.project.write(self.flow.file, text_of(self.flow, self.command.control).encode(), self._later())

    def _later(self) -> int:
        self.clock += SECOND + 1
        return self.clock

    def _write(self, name: str, content: bytes, when: int | None) -> None:
        self.project.write(name, content, when)
        self._note_signature(name)

    def _note_signature(self, name: str) -> None:
        """No file has the same size and time with two contents: what looks at times cannot tell these apart."""
        content, when = self.project.read(name) or b"", self.project.time(name)
        if self.history.check != "content":
            while any(known.get((len(content), when), content) != content for known in self._seen(name)):
                when += 1
                os.utime(self.project.path(name), ns=(when, when))
        for known in self._seen(name):
            known[len(content), when] = content

    def _seen(self, name: str) -> list[dict[tuple[int, int], bytes]]:
        """What is known of a file, under its own name and under that of its link."""
        real = os.path.relpath(os.path.realpath(self.project.path(name)), os.path.realpath(self.project.root))
        return [self.signatures.setdefault(each, {}) for each in {name, real}]

    def words(self) -> list[str]:
        return [f"{word.key}={word.value}" for word in self.flow.words.values() if self._is_used(word.key, "parameter")]

    def _is_used(self, key: str, kind: str) -> bool:
        return self.flow.words[key].kind == kind and any(key in task.words for task in self.flow.tasks)

    def _surroundings(self) -> dict[str, str]:
        return {f"FUZZ_{word.key}": word.value for word in self.flow.words.values() if word.kind == "surroundings"}

    def times(self, made: Made) -> dict[str, int]:
        """When the sources of a result were last written."""
        return {name: self.project.time(name) for name in made.sources if self.project.read(name) is not None}

    def model(self, failing: frozenset[str] = frozenset()) -> Model:
        return Model(self.flow, self.project, self.adopted, failing)

    def shoal(self, *words: str, strike: Callable[[int], None] | None = None) -> Said:
        said = self.command.run(
            self.project.root, *words, surroundings=self._surroundings(), skew=self.skew, strike=strike
        )
        self.last = said
        if said.timed_out:
            raise Difference("hang", f"shoal {shlex.join(words)} did not end")
        if "Traceback (most recent call last)" in said.text and "shoal_rules" not in said.text:
            raise Difference("traceback", f"shoal {shlex.join(words)}")
        return said

    # ---- detached runs ---------------------------------------------------------------------------------------------

    def _gate(self, closed: bool) -> None:
        """Holds gated tasks back, or lets them go on."""
        path = f"{self.command.control}/gate"
        if closed:
            open(path, "w").close()
        elif os.path.exists(path):
            os.unlink(path)

    def _detach(self, chance: Random) -> str | None:
        self._gate(chance.random() < 0.6)
        run = Run(self, chance, away=True)
        run.perform()
        if not run.is_left():
            self._gate(False)
            return run.told()
        self.away, self.edited_away = run, False
        return run.told()

    def _attach(self, chance: Random) -> str | None:
        if self.away is None:
            return None
        self._gate(False)
        run, self.away = self.away, None
        said = self.shoal("attach", "--plain", "-w", self.flow.file)
        run.end(said, edited=self.edited_away)
        return f"attach -> status {said.status}"

    def note_version(self, made: Made, path: str, content: Content) -> None:
        """A task made this, or `adopt` has taken it as made."""
        known = self.unclear if made.is_beside(path) else self.versions
        known.setdefault(path, set()).add(content)

    def is_settled_back(self, path: str) -> bool:
        """Whether the next command may change a path because a run was killed."""
        return any(made.owns(path) for made in self.cut_off)

    def _while_away(self, chance: Random, kind: str) -> str | None:
        """What happens in place of a step while a run is on a cluster, if it may not happen as it is."""
        if kind in AWAY:
            self.edited_away |= kind != "attach"
            return None
        if kind in ("run", "clean", "adopt", "detach") and PROMISES["away"] and chance.random() < 0.5:
            return self._must_be_refused(chance, kind)
        told = self._attach(chance)
        if kind in ("run", "detach"):
            return told
        self.happened.insert(-1, told or "")
        return None

    def _must_be_refused(self, chance: Random, kind: str) -> str:
        words = [kind, "-w", self.flow.file, *self.words()]
        if kind in ("run", "detach"):
            words = ["run", "--plain", *words[1:]]
        said = self.shoal(*words)
        if said.status != 2:
            raise Difference("not refused", f"shoal {shlex.join(words)}, although a cluster has the run")
        return f"shoal {shlex.join(words)} is refused"

    # ---- edits of sources ------------------------------------------------------------------------------------------

    def _sources(self) -> list[str]:
        """Files of the user that tasks may read."""
        found = [name for name in self.flow.sources if self.project.read(name) is not None]
        more = [*self.project.glob(f"{self.flow.pool}/*.txt"), *self.project.below("srcdir")]
        return sorted({*found, *more} - {"linkdir"})

    def _edit(self, chance: Random) -> str | None:
        names = self._sources()
        if not names:
            return None
        return self._rewrite(chance, chance.choice(names), lines(chance))

    def _rewrite(self, chance: Random, name: str, content: bytes) -> str:
        size, before = len(self.project.read(name) or b""), self.project.time(name)
        how = chance.choice(("newer", "older", "equal", "now", "far newer"))
        if how == "equal" and len(content) == size and self.history.check != "content":
            how = "older"
        when = {
            "newer": before + SECOND * chance.randint(1, 9) + chance.randint(1, 999),
            "older": before - SECOND * chance.randint(1, 9) - chance.randint(1, 999),
            "equal": before,
            "far newer": time.time_ns() + 3600 * SECOND + chance.randint(1, 10**9),
        }.get(how)
        self._write(name, content, when)
        return f"edit {name!r} ({how} time, {'same' if len(content) == size else 'another'} size)"

    def _touch(self, chance: Random) -> str | None:
        names = self._sources()
        if not names:
            return None
        name = chance.choice(names)
        when = self._later()
        os.utime(self.project.path(name), ns=(when, when))
        self._note_signature(name)
        return f"touch {name!r}"

    def _fail(self, chance: Random) -> str | None:
        names = self._sources()
        if not names:
            return None
        name = chance.choice(names)
        return self._rewrite(chance, name, lines(chance, 1) + FAILING + b"\n") + f" so that it holds {FAILING.decode()}"

    def _mend(self, chance: Random) -> str | None:
        for name in self._sources():
            if FAILING in (self.project.read(name) or b""):
                return self._rewrite(chance, name, lines(chance))
        missing = [name for name, content in self.flow.sources.items() if self.project.read(name) is None]
        for name in missing:
            content = self.flow.sources[name]
            if isinstance(content, bytes) and not os.path.lexists(self.project.path(name)):
                self._write(name, content, self._later())
                return f"write {name!r} again"
        return None

    def _turn_link(self, chance: Random) -> str | None:
        name = chance.choice([name for name in ("linked", "linkdir") if name in self.flow.sources])
        targets = ("store/kept", "store/other") if name == "linked" else ("srcdir", "other")
        path = self.project.path(name)
        if not os.path.islink(path):
            return None
        target = targets[os.readlink(path) == targets[0]]
        os.unlink(path)
        self.project.link(name, target)
        if name == "linked" and self.project.read(name) is not None:
            self._note_signature(name)
        return f"turn the link {name!r} to {target!r}"

    def _stumble(self, chance: Random) -> str | None:
        keys = [task.key for task in self.flow.tasks if task.flaky]
        if not keys:
            return None
        key = chance.choice(keys)
        with open(f"{self.command.control}/flaky.{key}", "w"):
            pass
        return f"let {key} fail once"

    def _delete_source(self, chance: Random) -> str | None:
        names = self._sources()
        if not names:
            return None
        name = chance.choice(names)
        self.project.remove(name)
        return f"delete {name!r}"

    # ---- members ---------------------------------------------------------------------------------------------------

    def _members(self) -> list[str]:
        return [*self.project.glob(f"{self.flow.pool}/*.txt"), *self.project.below("srcdir")]

    def _add_member(self, chance: Random) -> str:
        stem = chance.choice(("n", "zz", "aa", "k")) + str(chance.randrange(10))
        if "names" in self.history.features and self.flow.language == "rules" and chance.random() < 0.3:
            stem += chance.choice(ODD_NAMES).replace("*", "").replace("[", "")
        name = f"{self.flow.pool}/{stem}.txt" if chance.random() < 0.7 else f"srcdir/{stem}"
        if "srcdir/" in name and not self.project.is_directory("srcdir"):
            name = f"{self.flow.pool}/{stem}.txt"
        when = chance.choice((_BEGIN - SECOND * chance.randint(1, 10**6), self._later(), time.time_ns()))
        self._write(name, lines(chance), when + chance.randint(1, 999))
        return f"add {name!r} ({'old' if when < _BEGIN else 'new'} time)"

    def _remove_member(self, chance: Random) -> str | None:
        names = self._members()
        if not names:
            return None
        name = chance.choice(names)
        self.project.remove(name)
        return f"remove {name!r}"

    def _swap_members(self, chance: Random) -> str | None:
        names = self._members()
        if len(names) < 2:
            return None
        one, two = chance.sample(names, 2)
        paths = [self.project.path(one), self.project.path(two)]
        os.rename(paths[0], paths[0] + "~")
        os.rename(paths[1], paths[0])
        os.rename(paths[0] + "~", paths[1])
        for name in (one, two):
            self._note_signature(name)
        return f"swap {one!r} and {two!r}"

    def _rename_member(self, chance: Random) -> str | None:
        names = self._members()
        if not names:
            return None
        name = chance.choice(names)
        folder = os.path.dirname(name)
        other = f"{folder}/r{chance.randrange(10**4)}{os.path.splitext(name)[1]}"
        os.rename(self.project.path(name), self.project.path(other))
        self._note_signature(other)
        return f"rename {name!r} to {other!r}"

    # ---- outputs ---------------------------------------------------------------------------------------------------

    def _outputs(self, there: bool = True) -> list[tuple[Made, str]]:
        """Declared outputs that are, or are not, on disk."""
        return [
            (made, name)
            for made in self.model().made.values()
            for name in made.names()
            if os.path.lexists(self.project.path(name)) == there
        ]

    def _disturb(self, made: Made) -> None:
        self.settled.pop(made.key, None)

    def _delete_output(self, chance: Random) -> str | None:
        found = self._outputs()
        if not found:
            return None
        made, name = chance.choice(found)
        self.project.remove(name)
        self._disturb(made)
        return f"delete output {name!r}"

    def _edit_output(self, chance: Random) -> str | None:
        found = [(made, name) for made, name in self._outputs() if not made.task.directory and not made.task.link]
        found = [(made, name) for made, name in found if os.path.isfile(self.project.path(name))]
        if not found:
            return None
        made, name = chance.choice(found)
        if os.path.islink(self.project.path(name)):
            return None
        self._disturb(made)
        content = b"user " + lines(chance)
        self.project.write(name, content, chance.choice((None, self._later(), _BEGIN - chance.randint(1, 10**9))))
        return f"edit output {name!r}"

    def _touch_output(self, chance: Random) -> str | None:
        found = [(made, name) for made, name in self._outputs() if not made.task.directory and not made.task.link]
        if not found:
            return None
        made, name = chance.choice(found)
        if not os.path.exists(self.project.path(name)):
            return None
        os.utime(self.project.path(name))
        self._disturb(made)
        return f"touch output {name!r}"

    def _replace_output(self, chance: Random) -> str | None:
        """Puts a link or a file of the user in the place of an output."""
        found = [(made, name) for made, name in self._outputs() if not made.task.directory]
        if not found:
            return None
        made, name = chance.choice(found)
        if os.path.isdir(self.project.path(name)):
            return None
        self._disturb(made)
        self.project.remove(name)
        return self._put_something(chance, name)

    def _put_something(self, chance: Random, name: str) -> str:
        laid = {task.cuckoo for task in [*self.flow.tasks, *(task for _, task in self.removed)] if task.cuckoo}
        is_egg = any(name in task.outputs for task in self.flow.tasks if task.key in laid)
        if chance.random() < 0.25 and not is_egg:  # the command that lays an egg would write through the link
            target = f"mine{chance.randrange(10**6)}"
            self.project.write(target, b"user " + lines(chance), self._later())
            self.project.link(name, "../" * name.count("/") + target)
            return f"make {name!r} a link to a file of the user"
        when = chance.choice((None, self._later(), _BEGIN - chance.randint(1, 10**9)))
        self.project.write(name, b"user " + lines(chance), when)
        return f"write {name!r} by hand"

    def _intrude(self, chance: Random) -> str | None:
        found = [(made, name) for made, name in self._outputs(there=False) if made.task.form != "task"]
        if not found:
            return None
        made, name = chance.choice(found)
        if made.task.directory:
            name = f"{name}/hand{chance.randrange(100)}"
        try:
            return self._put_something(chance, name)
        except OSError:
            return None

    def _directories(self) -> list[tuple[Made, str]]:
        return [(made, name) for made, name in self._outputs() if made.task.directory]

    def _add_to_output_directory(self, chance: Random) -> str | None:
        found = [(made, name) for made, name in self._directories() if self.project.is_directory(name)]
        if not found:
            return None
        made, name = chance.choice(found)
        path = f"{name}/hand{chance.randrange(100)}"
        self.project.write(path, b"user " + lines(chance), chance.choice((None, None, self._later())))
        self._disturb(made)
        return f"add {path!r} to an output directory"

    def _delete_from_output_directory(self, chance: Random) -> str | None:
        found = [(made, path) for made, name in self._directories() for path in self.project.below(name)]
        if not found:
            return None
        made, path = chance.choice(found)
        self.project.remove(path)
        self._disturb(made)
        return f"delete {path!r} in an output directory"

    def _edit_in_output_directory(self, chance: Random) -> str | None:
        found = [(made, path) for made, name in self._directories() for path in self.project.below(name)]
        if not found:
            return None
        made, path = chance.choice(found)
        content = b"user " + lines(chance)
        self.project.write(path, content, chance.choice((None, self._later(), _BEGIN - chance.randint(1, 10**9))))
        self._disturb(made)
        return f"edit {path!r} in an output directory"

    # ---- definitions -----------------------------------------------------------------------------------------------

    def _edit_word(self, chance: Random) -> str | None:
        used = [key for task in self.flow.tasks for key in task.words]
        if not used:
            return None
        word = self.flow.words[chance.choice(used)]
        before = word.files()
        word.value = f"v{chance.randrange(100, 1000)}"
        for name, content in word.files().items():
            if content != before[name]:
                self._write(name, content, self._later())
        self._write_flow()
        return f"edit the {word.kind} {word.key}, used by {[t.key for t in self.flow.tasks if word.key in t.words]}"

    def _edit_command(self, chance: Random) -> str | None:
        tasks = [task for task in self.flow.tasks if task.action and not task.plain and not task.link]
        if not tasks:
            return None
        task = chance.choice(tasks)
        task.salt += 1
        self._write_flow()
        return f"edit the {task.action} of {task.key}"

    def _edit_needs(self, chance: Random) -> str | None:
        tasks = [task for task in self.flow.tasks if task.form != "family" and not task.plain and not task.link]
        if not tasks:
            return None
        task = chance.choice(tasks)
        values = any(kind == "value" for kind, _ in task.needs)
        if len(task.needs) > 1 and chance.random() < 0.4:
            gone = task.needs[chance.randrange(len(task.needs))]
            if gone[0] == "order":  # or two tasks would write one file at the same time
                return None
            task.needs.remove(gone)
            self._write_flow()
            return f"{task.key} needs {gone} no more"
        if len(task.needs) > 1 and chance.random() < 0.3 and not values:
            chance.shuffle(task.needs)
            self._write_flow()
            return f"{task.key} needs {task.needs} in this order"
        names = [name for name in self.flow.sources if "/" not in name and name != "linkdir"]
        need = ("file", chance.choice(names))
        if need in task.needs:
            return None
        task.needs.append(need)
        self._write_flow()
        return f"{task.key} needs {need} as well"

    def _rename_output(self, chance: Random) -> str | None:
        tasks = [task for task in self.flow.tasks if task.outputs and task.form == "file"]
        if not tasks or self.flow.language != "rules":
            return None
        task = chance.choice(tasks)
        at = chance.randrange(len(task.outputs))
        before = task.outputs[at]
        name = before[:-1] if before.endswith("~") else before + "~"
        if any(each == name or each.startswith(f"{name}/") for each in self.project.tree()) and chance.random() < 0.5:
            return None
        # Under its new name it is another task; what it made is recognised if it is exactly as it was left.
        self.recorded |= {each: "maybe" for each in task.outputs if each in self.recorded}
        task.outputs[at] = name
        self._write_flow()
        return f"{task.key} makes {name!r} in place of {before!r}"

    def _remove_task(self, chance: Random) -> str | None:
        needed = {name for task in self.flow.tasks for kind, name in task.needs if kind not in ("file", "dir", "glob")}
        needed |= {task.cuckoo for task in self.flow.tasks}
        free = [task for task in self.flow.tasks if task.key not in needed]
        if not free or len(self.flow.tasks) < 2:
            return None
        task = chance.choice(free)
        self.removed.append((self.flow.tasks.index(task), task))
        self.settled.pop(task.key, None)  # until it is back nobody follows what it needs
        self.flow.tasks.remove(task)
        self._write_flow()
        return f"remove the task {task.key}"

    def _restore_task(self, chance: Random) -> str | None:
        if not self.removed:
            return None
        at, task = self.removed.pop()
        known = {each.key for each in self.flow.tasks}
        if any(kind not in ("file", "dir", "glob") and name not in known for kind, name in task.needs):
            return None
        self.flow.tasks.insert(at, task)
        self._write_flow()
        return f"put the task {task.key} back"

    # ---- the project as a whole ------------------------------------------------------------------------------------

    def _new_root(self) -> str:
        self.copies += 1
        return os.path.join(self.folder, f"p{self.copies}")

    def _copy(self, *options: str) -> None:
        root = self._new_root()
        os.spawnvp(os.P_WAIT, "cp", ["cp", *options, self.project.root, root])
        self.left.append((self.project, self.project.tree()))
        self.project = Project(root)
        for name in self._sources():
            self._note_signature(name)

    def _copy_project(self, chance: Random) -> str:
        self._copy("-r")
        made = self.model().made
        self.settled = {  # what was looked at by time has another time now
            key: (stamp, self.times(made[key]))
            for key, (stamp, _) in self.settled.items()
            if key in made and self.checked.get(key) == "content"
        }
        return "cp -r the project, and go on in the copy"

    def _copy_project_exactly(self, chance: Random) -> str:
        self._copy("-rp")
        return "cp -rp the project, and go on in the copy"

    def _move_project(self, chance: Random) -> str:
        root = self._new_root()
        os.rename(self.project.root, root)
        self.project = Project(root)
        return "move the project"

    def _step_clock(self, chance: Random) -> str:
        self.skew = chance.choice((-1, 1)) * chance.choice((1.0, 3600.0, 86400.0 * 400))
        return f"step the clock to {self.skew:+.0f} s"

    # ---- records ---------------------------------------------------------------------------------------------------

    def _ledger(self) -> str | None:
        path = self.project.path(f"{RECORDS}/{self.flow.file}/ledger")
        return path if os.path.exists(path) and os.path.getsize(path) else None

    def _doubt(self) -> None:
        """Records may be lost, and with them what of an output directory was made by its task."""
        self.recorded = dict.fromkeys(self.recorded, "maybe")
        self.settled.clear()
        for path, contents in self.versions.items():
            self.unclear.setdefault(path, set()).update(contents)

    def _damage_ledger(self, chance: Random) -> str | None:
        path = self._ledger()
        if path is None:
            return None
        with open(path, "r+b") as stream:
            at = chance.randrange(os.path.getsize(path))
            stream.seek(at)
            stream.write(bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 64, 400)))))
        self._doubt()
        return f"damage the ledger at {at}"

    def _cut_ledger(self, chance: Random) -> str | None:
        path = self._ledger()
        if path is None:
            return None
        os.truncate(path, chance.randrange(os.path.getsize(path)))
        self._doubt()
        return "cut the end off the ledger"

    def _remove_ledger(self, chance: Random) -> str | None:
        path = self._ledger()
        if path is None:
            return None
        os.unlink(path)
        self._doubt()
        return "remove the ledger"

    def _remove_records(self, chance: Random) -> str | None:
        if self._ledger() is None:
            return None
        shutil.rmtree(self.project.path(RECORDS))
        self._doubt()
        self.recorded.clear()
        self.adopted.clear()
        return "remove .shoal"

    def _clean(self, chance: Random) -> str:
        return clean(self)

    def _adopt(self, chance: Random) -> str | None:
        if not self.knows_adopt:
            return None
        before = self.project.tree()
        model = self.model()
        if any(made.status == "missing" for made in model.made.values()) or not model.wanted([]):
            return None
        how = ["--check", self.history.check] if self.history.check else []
        said = self.shoal("adopt", "--verbose", *how, self.flow.file, *self.words())
        self.compare_others(before, self.project.tree(), lambda path: not self.is_settled_back(path), "adopt")
        self.cut_off.clear()
        if said.status != (2 if "cannot adopt" in said.text else 0):
            raise Difference("status", f"adopt ended with {said.status}")
        taken = {line[2:] for line in said.text.splitlines() if line.startswith("  ")}
        wanted = model.wanted([])
        for key in model.made:  # what comes after a task reads what was adopted of it
            if key in wanted and printable(model.made[key].name) in taken:
                self._take_as_made(self.model().made[key], before)
        return f"adopt (status {said.status})"

    def _take_as_made(self, made: Made, tree: Tree) -> None:
        names = made.names()
        if made.status not in ("ok", "fails") or not all(name in tree for name in names) or not names:
            return
        files = {
            path: content_of(entry) for path, entry in tree.items() if made.owns(path) and entry.kind != "directory"
        }
        read = {path: self.project.read(path) or b"" for path in files}
        self.adopted[made.key] = Adopted(made.stamp, files, read)
        self.checked[made.key] = self.history.check or "time"
        for path, content in files.items():
            self.note_version(made, path, content)
        for name in names:
            self.recorded[name] = "maybe"
        self.settled.pop(made.key, None)

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _run(self, chance: Random) -> str:
        run = Run(self, chance)
        run.perform()
        told = [run.told()]
        self.happened[-1] = f"{told[0]}; ..."
        if run.refused and chance.random() < 0.8:
            told.append(self._answer(chance))
        elif run.said.status == 0 and chance.random() < 0.4:
            again = Run(self, chance, again=run)
            again.perform()
            told.append(again.told())
        return "; ".join(told)

    def _answer(self, chance: Random) -> str:
        """What a user does about a refusal: adopts, overwrites, or moves the files away."""
        how = chance.choice(("adopt", "overwrite", "move") if self.knows_adopt else ("move",))
        if how == "adopt":
            told = self._adopt(chance) or "nothing"
        elif how == "move":
            names = [name for made, name in self._outputs() if self.recorded.get(name) != "yes"]
            for name in names:
                self.project.remove(name)
            told = f"delete {names}"
        else:
            told = "overwrite"
        self.happened[-1] = f"{self.happened[-1]} {told}; ..."
        run = Run(self, chance, overwrite=how == "overwrite")
        run.perform()
        return f"{told}; {run.told()}"

    def _killed_run(self, chance: Random) -> str:
        run = Run(self, chance, strike=chance.choice(("run", "run", "run", "launcher", "moment")))
        run.perform()
        told = run.told()
        if chance.random() < 0.7 and not self.command.await_leftovers():
            raise Difference("left running", "processes outlive a killed run")
        return told

    def _interrupted_run(self, chance: Random) -> str:
        run = Run(self, chance, strike="interrupt")
        run.perform()
        return run.told()

    def _build_elsewhere(self) -> None:
        """A real clean build of the same sources must give what the model says."""
        model = self.model()
        if any(made.status != "ok" for made in model.made.values()):
            return
        self.command.await_leftovers()
        owned = list(model.made.values())
        for name in os.listdir(self.command.control):
            if name.startswith(("flaky", "strike")):
                os.unlink(os.path.join(self.command.control, name))
        before, root = self.project, self._new_root()
        tree = self.project.tree()
        self.project = Project(root)
        os.makedirs(root)
        for path, entry in tree.items():
            if any(made.owns(path) for made in owned):
                continue
            if entry.kind == "link":
                self.project.link(path, str(entry.content))
            elif entry.kind == "directory":
                os.makedirs(self.project.path(path), exist_ok=True)
            elif isinstance(entry.content, bytes):
                self.project.write(path, entry.content, entry.time)
        self.adopted = {}
        said = self.shoal("run", self.flow.file, *self.words())
        model = self.model()
        tree = self.project.tree()
        for key in model.wanted([]):
            for path, content in model.made[key].files.items():
                if path not in tree or content_of(tree[path]) != content:
                    raise Difference("model", f"a clean build gives another {path!r}: {said.text}")
        self.project = before

    # ---- comparing -------------------------------------------------------------------------------------------------

    @staticmethod
    def compare_others(before: Tree, after: Tree, concerns: Callable[[str], bool], what: str) -> None:
        """Files that are nobody's output must be as they were."""
        for path, entry in before.items():
            if not concerns(path) or entry.same(after.get(path)) or is_of_dropin(path):
                continue
            now = after.get(path)
            if now is None:
                raise Difference("lost", f"{path!r} is gone after {what}")
            raise Difference("changed", f"{path!r} is not as it was after {what}: {entry} is {now}")
        for path, entry in after.items():
            if concerns(path) and path not in before and entry.kind != "directory" and not is_of_dropin(path):
                raise Difference("stray", f"{path!r} appeared with {what}: {entry}")
