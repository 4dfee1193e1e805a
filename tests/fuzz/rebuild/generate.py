"""Random workflows and histories from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .workflow import IN_COMMANDS, WORD_KINDS, Task, Word, Workflow

ODD_NAMES = ("sp ace", "quo'te", "ünï", "a;b", "$HOME", "#hash", "(p)", 'dou"ble', "tab\there", "[b]", "st*r", "&and")
FEATURES = ("directories", "groups", "patterns", "functions", "makeflow", "dropin", "links", "names", "failures",
            "times", "kills", "damage", "content", "copies", "clean", "intruders", "definitions", "members",
            "outputs", "cluster")  # fmt: skip
"""Kinds of things that a workflow or a history may hold; `--only` restricts them."""
_LIKELY = {"cluster": 0.06}
_ALWAYS: frozenset[str] = frozenset()


@dataclass
class Step:
    """One thing that happens; what exactly is drawn from its seed when it does."""

    kind: str
    seed: int


@dataclass
class History:
    """A workflow and what happens to it."""

    seed: int
    flow: Workflow
    steps: list[Step]
    features: frozenset[str]
    check: str = ""
    """The way files are compared, if it is the same all the time."""
    dropin: bool = False
    dropped: list[str] = field(default_factory=list)


STEPS: dict[str, tuple[int, str]] = {
    "edit": (10, ""),
    "touch": (2, ""),
    "add member": (3, "members"),
    "remove member": (2, "members"),
    "swap members": (2, "members"),
    "rename member": (2, "members"),
    "delete source": (1, ""),
    "delete output": (3, "outputs"),
    "edit output": (3, "outputs"),
    "touch output": (1, "outputs"),
    "replace output": (1, "outputs"),
    "add to output directory": (2, "directories"),
    "delete from output directory": (1, "directories"),
    "edit in output directory": (1, "directories"),
    "intrude": (2, "intruders"),
    "edit word": (4, "definitions"),
    "edit command": (3, "definitions"),
    "edit needs": (2, "definitions"),
    "remove task": (1, "definitions"),
    "restore task": (1, "definitions"),
    "fail": (3, "failures"),
    "mend": (3, "failures"),
    "stumble": (2, "failures"),
    "copy project": (1, "copies"),
    "copy project exactly": (1, "copies"),
    "move project": (1, "copies"),
    "damage ledger": (1, "damage"),
    "cut ledger": (1, "damage"),
    "remove ledger": (1, "damage"),
    "remove records": (1, "damage"),
    "clean": (2, "clean"),
    "adopt": (1, "clean"),
    "killed run": (5, "kills"),
    "interrupted run": (2, "kills"),
    "step clock": (1, "times"),
    "rename output": (1, "definitions"),
    "turn link": (3, "links"),
    "detach": (6, "cluster"),
    "attach": (2, "cluster"),
    "run": (4, ""),
}
"""Weights, and the feature that a step belongs to."""


def generate(seed: int, only: frozenset[str] = _ALWAYS) -> History:
    """The history of a seed; `only` names the features it may use (all, if empty)."""
    chance = Random(seed)
    chosen = frozenset(
        name for name in FEATURES if (name in only if only else chance.random() < _LIKELY.get(name, 0.6))
    )
    language = "rules"
    if "makeflow" in chosen and (chance.random() < (0.15 if not only else 0.6)):
        language = "makeflow"
    flow = _Builder(chance, chosen, language).build()
    history = History(seed, flow, [], chosen)
    history.dropin = language == "makeflow" and "dropin" in chosen and chance.random() < 0.5
    if "content" in chosen and chance.random() < 0.4 and not history.dropin:  # which has no such option
        history.check = "content"
    _add_steps(chance, history)
    return history


def _add_steps(chance: Random, history: History) -> None:
    kinds = [kind for kind, (_, feature) in STEPS.items() if not feature or feature in history.features]
    if history.dropin:
        kinds = [kind for kind in kinds if kind in ("edit", "killed run", "fail", "mend", "delete output", "run")]
    weights = [STEPS[kind][0] for kind in kinds]
    if chance.random() < 0.9:
        history.steps.append(Step("run", chance.getrandbits(32)))
    for _ in range(chance.randint(2, 5)):
        for kind in chance.choices(kinds, weights, k=chance.choice((1, 1, 1, 2))):
            if history.dropin and kind == "killed run" and chance.random() < 0.5:  # it makes again only what is gone
                history.steps.append(Step("delete output", chance.getrandbits(32)))
            history.steps.append(Step(kind, chance.getrandbits(32)))
        if history.steps[-1].kind not in ("run", "interrupted run"):
            history.steps.append(Step("run", chance.getrandbits(32)))


class _Builder:
    """Builds one workflow."""

    def __init__(self, chance: Random, features: frozenset[str], language: str) -> None:
        self.chance, self.features, self.language = chance, features, language
        self.flow = Workflow(language, [], {}, {})
        self.rules = language == "rules"

    def build(self) -> Workflow:
        chance, flow = self.chance, self.flow
        for number in range(chance.randint(1, 3)):
            flow.sources[self._name(f"src{number}")] = lines(chance)
        for stem in "abc"[: chance.randint(1, 3)]:
            flow.sources[f"{flow.pool}/{stem}.txt"] = lines(chance)
        if self.has("directories") or self.has("links"):
            for stem in "xy"[: chance.randint(1, 2)]:
                flow.sources[f"srcdir/{stem}"] = lines(chance)
            if chance.random() < 0.4:
                flow.sources["srcdir/below/z"] = lines(chance)
        if self.has("links"):
            flow.sources["store/kept"] = lines(chance)
            flow.sources["store/other"] = lines(chance)
            flow.sources["linked"] = ("link", "store/kept")
            if self.rules:
                flow.sources["linkdir"] = ("link", "srcdir")
                flow.sources["other/x"] = lines(chance)
        for number in range(chance.randint(2, 6)):
            self._add_task(f"t{number}")
        return flow

    def has(self, feature: str) -> bool:
        return feature in self.features

    def draw(self, feature: str, likelihood: float) -> bool:
        return feature in self.features and self.chance.random() < likelihood

    def _name(self, name: str) -> str:
        if self.rules and self.draw("names", 0.3):
            name = f"{name}{self.chance.choice(ODD_NAMES)}"
        return name

    def _add_task(self, key: str) -> None:
        chance = self.chance
        earlier = self.flow.tasks
        if self.rules and self.draw("groups", 0.3):
            task = Task(key, "group", "")
            task.needs = self._needs(chance.randint(1, 3), values=False)
            earlier.append(task)
            return
        if self.rules and self.draw("patterns", 0.2):
            task = Task(key, "family", "command", [f"{key}/{{x}}.out"], guarded=self.draw("failures", 0.3))
            task.words = self._words(IN_COMMANDS)
            earlier.append(task)
            return
        function = self.rules and self.draw("functions", 0.35)
        task = Task(key, "file", "function" if function else "command")
        task.directory = self.rules and self.draw("directories", 0.35)
        folder = chance.choice(("", "", "out/", "deep/er/")) if self.rules else ""
        count = 1 if task.directory else chance.choice((1, 1, 1, 2, 3))
        if self.rules and not task.directory and chance.random() < 0.08:
            count = 0
        task.outputs = [self._name(f"{folder}{key}{'abc'[at]}") for at in range(count)]
        task.form = "file" if count else "task"
        task.nested = task.directory and chance.random() < 0.3
        task.needs = self._needs(chance.choice((0, 1, 1, 2, 2, 3)), values=function)
        task.words = self._words(tuple(WORD_KINDS) if function else IN_COMMANDS)
        task.guarded = bool(count) and self.draw("failures", 0.35)
        task.flaky = self.draw("failures", 0.3) and not task.directory and (function or bool(count))
        task.retries = chance.choice((0, 1)) if task.flaky and self.rules else 0
        task.hooked = self.draw("kills", 0.7)
        task.fixed_time = bool(count) and self.draw("times", 0.15)
        task.gated = self.rules and self.draw("cluster", 0.4)
        self._specialise(task)
        earlier.append(task)
        if self.rules and count == 1 and not function and not task.directory and self.draw("intruders", 0.25):
            self._lay_egg(task)

    def _lay_egg(self, task: Task) -> None:
        """Lets an earlier command write the output of a task that now and then makes nothing."""
        others = [
            other for other in self.flow.tasks[:-1] if other.form == "file" and other.action == "command"
            and not other.cuckoo and not other.plain and not other.link and not other.idle
        ]  # fmt: skip
        if not others or task.plain or task.link or "/" in task.outputs[0]:
            return
        other = self.chance.choice(others)
        task.idle, task.guarded, task.flaky, task.hooked, task.fixed_time, task.retries = (
            True,
            False,
            False,
            False,
            False,
            0,
        )
        task.needs = [need for need in task.needs if need[1] != other.key] + [("order", other.key)]
        other.cuckoo = task.key

    def _specialise(self, task: Task) -> None:
        """Turns some tasks into a plain copy or a link."""
        files = [need for need in task.needs if need[0] == "file"]
        if task.action != "command" or task.directory or len(task.outputs) != 1 or not files:
            return
        if self.chance.random() < 0.15:
            task.plain = True
        elif self.draw("links", 0.25) and self.rules:
            task.link = True
        if task.plain or task.link:
            task.needs, task.words, task.guarded, task.flaky, task.hooked = files[:1], [], False, False, False
            task.fixed_time, task.retries, task.gated = False, 0, False

    def _words(self, kinds: tuple[str, ...]) -> list[str]:
        found = []
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            key = f"w{len(self.flow.words)}"
            kind = self.chance.choice(kinds) if self.rules else "text"
            self.flow.words[key] = Word(key, kind, f"v{self.chance.randrange(100, 1000)}")
            found.append(key)
        return found

    def _needs(self, count: int, values: bool) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for _ in range(count):
            need = self._need(values)
            if need not in found:
                found.append(need)
        return found

    def _need(self, values: bool) -> tuple[str, str]:
        chance, flow = self.chance, self.flow
        made = [task for task in flow.tasks if task.form == "file"]
        groups = [task for task in flow.tasks if task.form == "group"]
        families = [task for task in flow.tasks if task.form == "family"]
        quiet = [task for task in flow.tasks if task.form == "task"]
        if groups and chance.random() < 0.4:
            return "group", chance.choice(groups).key
        if families and chance.random() < 0.4:
            return "family", chance.choice(families).key
        if quiet and chance.random() < 0.2:
            return "after", chance.choice(quiet).key
        if made and chance.random() < 0.6:
            task = chance.choice(made)
            if values and task.action == "function" and chance.random() < 0.4:
                return "value", task.key
            return ("second" if len(task.outputs) > 1 and chance.random() < 0.5 else "out"), task.key
        if self.rules and self.has("directories") and chance.random() < 0.3:
            return "dir", chance.choice(["srcdir", "linkdir"] if self.has("links") else ["srcdir"])
        if self.rules and (self.has("groups") or self.has("members")) and chance.random() < 0.4:
            return "glob", f"{flow.pool}/*.txt"
        plain = [name for name in flow.sources if "/" not in name and name != "linkdir"]
        return "file", chance.choice(plain)


def lines(chance: Random, count: int | None = None) -> bytes:
    """One to four short lines that are unlike any others."""
    return b"".join(b"l%08d\n" % chance.randrange(10**8) for _ in range(count or chance.randint(1, 4)))


def describe(history: History) -> str:
    """The shape of a history, for a failure."""
    return f"{history.flow.language}, {', '.join(sorted(history.features))}"
