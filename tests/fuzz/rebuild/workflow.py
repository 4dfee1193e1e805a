"""A random workflow as data: its text as a rules file or a Makeflow, and what each of its outputs must hold.

Every task is a deterministic function of the names and bytes it reads, simple enough to be computed here as well.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

MEMBERS = 4
"""A directory made by a task has one file for each of its first lines, and one with all of them."""
FIXED_TIME = 1_000_000_000
FAILING = b"FAIL"
"""A guarded task fails if this is in what it read."""

WORD_KINDS: dict[str, tuple[str, str]] = {
    "text": ("{k} = {v!r}", "{k}"),
    "bytes": ("{k} = {v!r}.encode()", "{k}.decode()"),
    "tuple": ("{k} = (1, ({v!r},))", "{k}[1][0]"),
    "list": ("{k} = [{v!r}]", "{k}[0]"),
    "dict": ("{k} = {{'a': {v!r}}}", "{k}['a']"),
    "nested": ("{k} = {{'a': [({v!r},)]}}", "{k}['a'][0][0]"),
    "set": ("{k} = {{{v!r}}}", "sorted({k})[0]"),
    "path": ("{k} = Path({v!r})", "str({k})"),
    "regex": ("{k} = re.compile({v!r})", "{k}.pattern"),
    "class": ("class {k}:\n    word = {v!r}", "{k}.word"),
    "method": ("class {k}:\n    def get(self):\n        return {v!r}", "{k}().get()"),
    "static": ("class {k}:\n    @staticmethod\n    def get():\n        return {v!r}", "{k}.get()"),
    "class method": ("class {k}:\n    @classmethod\n    def get(cls):\n        return {v!r}", "{k}.get()"),
    "property": ("class {k}:\n    @property\n    def word(self):\n        return {v!r}", "{k}().word"),
    "base": ("class {k}Base:\n    word = {v!r}\n\n\nclass {k}({k}Base):\n    pass", "{k}.word"),
    "instance": (
        "class {k}Type:\n    def __init__(self, word):\n        self.word = word\n\n\n{k} = {k}Type({v!r})",
        "{k}.word",
    ),
    "data class": ("@dataclasses.dataclass\nclass {k}Type:\n    word: str\n\n\n{k} = {k}Type({v!r})", "{k}.word"),
    "enum": ("class {k}(enum.Enum):\n    ONE = {v!r}", "{k}.ONE.value"),
    "function": ("def {k}():\n    return {v!r}", "{k}()"),
    "chain": ("def {k}_inner():\n    return {v!r}\n\n\ndef {k}():\n    return {k}_inner()", "{k}()"),
    "default": ("def {k}(word={v!r}):\n    return word", "{k}()"),
    "keyword": ("def {k}(*, word={v!r}):\n    return word", "{k}()"),
    "partial": ("{k} = functools.partial(str.strip, {v!r})", "{k}()"),
    "lambda": ("{k} = lambda: {v!r}", "{k}()"),
    "closure": (
        "def {k}_make(word):\n    def inner():\n        return word\n\n    return inner\n\n\n{k} = {k}_make({v!r})",
        "{k}()",
    ),
    "cached": ("@functools.cache\ndef {k}():\n    return {v!r}", "{k}()"),
    "table": ("{k} = open('table_{k}.txt').read().strip()", "{k}"),
    "module": ("import mod_{k}", "mod_{k}.WORD"),
    "module function": ("from mod_{k} import get as {k}", "{k}()"),
    "module class": ("from mod_{k} import Holder as {k}", "{k}().get()"),
    "module inside": ("", "mod_{k}.get()"),
    "module of module": ("import mod_{k}", "mod_{k}.through()"),
    "package": ("import pkg_{k}.inner", "pkg_{k}.inner.get()"),
    "package name": ("from pkg_{k} import inner as {k}", "{k}.WORD"),
    "environment": ("", "os.environ['FUZZ_{k}']"),
    "parameter": ("{k} = param('{k}', 'unset')", "{k}"),
    "surroundings": ("{k} = os.environ.get('FUZZ_{k}', '')", "{k}"),
}
"""How a word comes into a rules file, and how a function gets at it."""
IN_COMMANDS = ("text", "table", "environment", "parameter", "surroundings")
_MODULE = "WORD = {v!r}\n\n\ndef get():\n    return WORD\n\n\nclass Holder:\n    def get(self):\n        return WORD\n"


@dataclass
class Word:
    """Something that a task's definition refers to, and that the user may edit."""

    key: str
    kind: str
    value: str

    def files(self) -> dict[str, bytes]:
        """The files beside the workflow that hold it."""
        text = _MODULE.format(v=self.value)
        if self.kind == "table":
            return {f"table_{self.key}.txt": f"{self.value}\n".encode()}
        if self.kind == "module of module":
            other = f"import deep_{self.key}\n\n\ndef through():\n    return deep_{self.key}.get()\n"
            return {f"mod_{self.key}.py": other.encode(), f"deep_{self.key}.py": text.encode()}
        if self.kind.startswith("module"):
            return {f"mod_{self.key}.py": text.encode()}
        if self.kind.startswith("package"):
            return {f"pkg_{self.key}/__init__.py": b"", f"pkg_{self.key}/inner.py": text.encode()}
        return {}


@dataclass
class Task:
    """One task; `needs` are pairs of a kind and a name or the key of an earlier task."""

    key: str
    form: str
    """file, task, group or family (a pattern with one instance for each file of a glob)."""
    action: str
    """command, function, or nothing for groups."""
    outputs: list[str] = field(default_factory=list)
    needs: list[tuple[str, str]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    directory: bool = False
    nested: bool = False
    guarded: bool = False
    flaky: bool = False
    retries: int = 0
    hooked: bool = False
    """Looks at a few points whether it is to end the run."""
    fixed_time: bool = False
    link: bool = False
    """Makes a symbolic link to the first file it needs."""
    plain: bool = False
    """Only copies what it needs, without a shell."""
    idle: bool = False
    """Makes nothing, and says nothing about it, if what it reads holds the word."""
    cuckoo: str = ""
    """The key of another task whose output it writes as well."""
    salt: int = 0
    gated: bool = False
    """Waits until it may go on (on a cluster)."""

    def is_quiet(self) -> bool:
        """Makes no file."""
        return not self.outputs


@dataclass
class Workflow:
    """Tasks in an order in which they can be done."""

    language: str
    tasks: list[Task]
    words: dict[str, Word]
    sources: dict[str, bytes | tuple[str, str]]
    """Content, or ("link", target)."""
    pool: str = "raw"
    """The directory whose files are matched by globs."""

    def find(self, key: str) -> Task:
        return next(task for task in self.tasks if task.key == key)

    @property
    def file(self) -> str:
        return "flow.py" if self.language == "rules" else "Makeflow"


class Files(Protocol):
    """The disk as a model sees it; names are relative to the project."""

    def read(self, name: str) -> bytes | None: ...
    def glob(self, pattern: str) -> list[str]: ...
    def below(self, name: str) -> list[str]:
        """Files in a directory and one level below, in the order in which a shell lists them."""

    def is_directory(self, name: str) -> bool: ...
    def entry(self, name: str) -> bytes | tuple[str, str] | None:
        """Content, or ("link", target)."""


# ---- text ------------------------------------------------------------------------------------------------------------

_HEAD = """import dataclasses, enum, functools, glob, hashlib, os, re, time
from pathlib import Path

from shoal import file, files, param, rule, task

"""
HELPERS = '''
def read(kind, name):
    """What a task reads of one of its needs."""
    names = sorted(glob.glob(name)) if kind == "glob" else [name]
    if kind == "dir":
        names = [*sorted(glob.glob(glob.escape(name) + "/*")), *sorted(glob.glob(glob.escape(name) + "/*/*"))]
    text = ""
    for each in names:
        if kind == "file" or os.path.isfile(each):
            text += os.fsencode(each).decode("latin-1") + "\\n" if kind == "dir" else ""
            with open(each, encoding="latin-1", newline="") as stream:
                text += stream.read()
    return text


def write(name, text):
    with open(name, "w", encoding="latin-1", newline="") as stream:
        stream.write(text)


def strike(key, point):
    name = f"{CONTROL}/strike.{key}.{point}"
    if os.path.exists(name):
        patience = 9 if "sleep" in open(name).read() else 0
        os.remove(name)
        os.kill(int(open(f"{CONTROL}/pid").read()), 9)
        time.sleep(patience)


def await_gate():
    deadline = time.monotonic() + 60
    while os.path.exists(f"{CONTROL}/gate") and time.monotonic() < deadline:
        time.sleep(0.01)


def stumble(key):
    name = f"{CONTROL}/flaky.{key}"
    if os.path.exists(name):
        os.remove(name)
        raise OSError("flaky")

'''


def text_of(flow: Workflow, control: str) -> str:
    """The workflow's file."""
    return _rules_text(flow, control) if flow.language == "rules" else _makeflow_text(flow, control)


def _rules_text(flow: Workflow, control: str) -> str:
    lines = [_HEAD]
    functions = any(task.action == "function" for task in flow.tasks)
    if functions:
        lines += [f"CONTROL = {control!r}\n", HELPERS]
    used = {word for task in flow.tasks for word in task.words}
    for word in flow.words.values():
        if word.key in used:
            lines.append(WORD_KINDS[word.kind][0].format(k=word.key, v=word.value))
    for task in flow.tasks:
        lines.append(_definition(flow, task, control))
    return "\n".join(lines) + "\n"


def _needs_text(flow: Workflow, task: Task) -> str:
    parts = []
    for kind, name in task.needs:
        match kind:
            case "file" | "dir":
                parts.append(repr(name))
            case "glob":
                parts.append(f"files({name!r})")
            case "out" | "value" | "second" | "order":
                made = flow.find(name)
                parts.append(repr(made.outputs[-1 if kind == "second" else 0] if made.outputs else name))
            case "family":
                pattern = flow.find(name).outputs[0]
                parts.append(f"files('{flow.pool}/*.txt').map({pattern!r}, from_='{flow.pool}/{{x}}.txt')")
            case _:
                parts.append(repr(name))
    return f"[{', '.join(parts)}]"


def _definition(flow: Workflow, task: Task, control: str) -> str:
    needs = _needs_text(flow, task)
    options = f", retries={task.retries}" if task.retries else ""
    set_words = [flow.words[key] for key in task.words if flow.words[key].kind == "environment"]
    if set_words:
        options += f", env={ {f'FUZZ_{word.key}': word.value for word in set_words}!r}"
    if task.form == "group":
        return f"task({task.key!r}, needs={needs})"
    if task.form == "family":
        text = _template(_family_command(flow, task))
        return f"rule({task.outputs[0]!r}, needs='{flow.pool}/{{x}}.txt', run={text!r}{options})"
    outputs = repr(task.outputs if len(task.outputs) > 1 else task.outputs[0]) if task.outputs else repr(task.key)
    form = "file" if task.outputs else "task"
    if task.action == "function":
        return f"\n@{form}({outputs}, needs={needs}{options})\n{_function(flow, task)}\n"
    text = _template(_command(flow, task, control))
    return f"{form}({outputs}, needs={needs}, run={text!r}{options})"


def _template(command: str) -> str:
    """A command as it stands in a rules file; \\1 and \\2 enclose what is to be put in."""
    return command.replace("{", "{{").replace("}", "}}").replace("\1", "{").replace("\2", "}")


def _header(flow: Workflow, task: Task) -> str:
    return " ".join([task.key, str(task.salt), *(flow.words[key].value for key in task.words)])


def _echo(flow: Workflow, task: Task) -> str:
    words = []
    for key in task.words:
        word = flow.words[key]
        if flow.language != "rules":
            words.append(f"${key}")
        elif word.kind == "environment":
            words.append(f'"$FUZZ_{key}"')
        else:
            words.append(f"\1{key}\2")
    return " ".join(["echo", task.key, str(task.salt), *words])


def _family_command(flow: Workflow, task: Task) -> str:
    guard = f"; if grep -q {FAILING.decode()} \1out\2; then exit 3; fi" if task.guarded else ""
    return f"{{ {_echo(flow, task)}; cat \1needs\2; }} > \1out\2{guard}"


def leaves(flow: Workflow, task: Task) -> list[tuple[str, str]]:
    """What a task reads, with groups replaced by their members: kinds file, dir, glob, value and family."""
    found: list[tuple[str, str]] = []
    for kind, name in task.needs:
        match kind:
            case "file" | "dir" | "glob" | "value" | "family":
                found.append((kind, name))
            case "out" | "second":
                made = flow.find(name)
                found.append(("dir" if made.directory else "file", made.outputs[-1 if kind == "second" else 0]))
            case "group":
                found += leaves(flow, flow.find(name))
            case "after" | "order":
                pass
    return found


def _reading(flow: Workflow, task: Task) -> str:
    """The commands that print everything a task reads."""
    parts = []
    for kind, name in leaves(flow, task):
        match kind:
            case "file":
                parts.append(f"cat {shlex.quote(name)}")
            case "dir":
                at = shlex.quote(name)
                parts.append(
                    f'for f in {at}/* {at}/*/*; do if [ -f "$f" ]; then printf "%s\\n" "$f"; cat "$f"; fi; done'
                )
            case "glob":
                parts.append(f'for f in {name}; do if [ -f "$f" ]; then cat "$f"; fi; done')
            case "family":
                before, after = flow.find(name).outputs[0].split("{x}")
                parts.append(
                    f'for f in {flow.pool}/*.txt; do if [ -f "$f" ]; then f=${{f#{flow.pool}/}}; '
                    f'cat "{before}${{f%.txt}}{after}"; fi; done'
                )
    return "; ".join(parts)


def _hook(task: Task, point: str, control: str) -> str:
    at = f"{control}/strike.{task.key}.{point}"
    return f"if test -e {at}; then . {at}; fi; " if task.hooked else ""


def _command(flow: Workflow, task: Task, control: str) -> str:
    first = shlex.quote(task.outputs[0]) if task.outputs else "/dev/null"
    reading = _reading(flow, task)
    if task.plain:
        return f"cp {shlex.quote(leaves(flow, task)[0][1])} {first}"
    if task.link:
        target = leaves(flow, task)[0][1]
        return f"ln -s {shlex.quote('../' * task.outputs[0].count('/') + target)} {first}"
    text = _hook(task, "before", control)
    if task.gated:
        text += f"n=0; while test -e {control}/gate && test $n -lt 1200; do n=$((n+1)); sleep 0.05; done; "
    if task.flaky:
        mark = f"{control}/flaky.{task.key}"
        text += f"if test -e {mark}; then rm {mark}; echo half > {first}; exit 4; fi; " if not task.directory else ""
    body = f"{{ {_echo(flow, task)}; {_hook(task, 'half', control)}{reading or ':'}; }}"
    if task.directory:
        text += f"mkdir -p {first}; {body} > {first}/all; i=0; while read -r l; do i=$((i+1)); "
        text += f'if [ $i -gt {MEMBERS} ]; then break; fi; printf "%s\\n" "$l" > {first}/part$i; done < {first}/all'
        if task.nested:
            text += f"; mkdir -p {first}/sub; cp {first}/all {first}/sub/deep"
        result = f"{first}/all"
    elif task.idle:
        held = f"{control}/idle.{task.key}"
        return f"{text}{body} > {held}; if grep -q {FAILING.decode()} {held}; then :; else cat {held} > {first}; fi"
    else:
        text += f"{body} > {first}"
        result = first
        for number, name in enumerate(task.outputs[1:], 1):
            text += f"; {{ echo copy {number}; cat {first}; }} > {shlex.quote(name)}"
    if task.fixed_time and task.outputs:
        text += "; touch -d @" + str(FIXED_TIME) + " " + " ".join(map(shlex.quote, task.outputs))
    if task.guarded and task.outputs:
        text += f"; if grep -q {FAILING.decode()} {result}; then exit 3; fi"
    if task.cuckoo:
        text += f"; echo cuckoo > {shlex.quote(flow.find(task.cuckoo).outputs[0])}"
    return text + ("; " + _hook(task, "after", control).rstrip("; ") if task.hooked else "")


def _function(flow: Workflow, task: Task) -> str:
    words = [WORD_KINDS[flow.words[key].kind][1].format(k=key) for key in task.words]
    lines = [f"def {task.key}(t):"]
    lines += [f"    import mod_{key}" for key in task.words if flow.words[key].kind == "module inside"]
    lines.append(f"    text = ' '.join([{', '.join([repr(f'{task.key} {task.salt}'), *words])}]) + '\\n'")
    if task.hooked:
        lines.append(f"    strike({task.key!r}, 'before')")
    if task.gated:
        lines.append("    await_gate()")
    if task.flaky:
        lines.append(f"    stumble({task.key!r})")
    if task.outputs and not task.directory:
        lines.append("    write(t.outs[0], text)")
    if task.hooked:
        lines.append(f"    strike({task.key!r}, 'half')")
    for kind, name in leaves(flow, task):
        if kind == "value":
            made = flow.find(name).outputs[0]
            lines.append(f"    text += 'value ' + next(need for need in t.needs if need == {made!r}).value + '\\n'")
        elif kind == "family":
            pattern = flow.find(name).outputs[0]
            lines.append(f"    for each in sorted(glob.glob('{flow.pool}/*.txt')):")
            lines.append(f"        text += read('file', {pattern!r}.replace('{{x}}', each[{len(flow.pool) + 1}:-4]))")
        else:
            lines.append(f"    text += read({kind!r}, {name!r})")
    if task.directory:
        lines.append("    os.makedirs(t.out, exist_ok=True)")
        lines.append("    write(t.out + '/all', text)")
        lines.append(f"    for at, line in enumerate(text.split('\\n')[:-1][:{MEMBERS}], 1):")
        lines.append("        write(f'{t.out}/part{at}', line + '\\n')")
        if task.nested:
            lines += ["    os.makedirs(t.out + '/sub', exist_ok=True)", "    write(t.out + '/sub/deep', text)"]
    elif task.outputs:
        lines.append("    write(t.outs[0], text)")
        for number in range(1, len(task.outputs)):
            lines.append(f"    write(t.outs[{number}], 'copy {number}\\n' + text)")
    if task.fixed_time:
        lines.append(f"    for name in t.outs:\n        os.utime(name, ({FIXED_TIME}, {FIXED_TIME}))")
    if task.guarded:
        lines.append(f"    if {FAILING.decode()!r} in text:\n        raise ValueError('guarded')")
    if task.hooked:
        lines.append(f"    strike({task.key!r}, 'after')")
    lines.append("    return hashlib.md5(text.encode('latin-1')).hexdigest()[:8]")
    return "\n".join(lines)


def _makeflow_text(flow: Workflow, control: str) -> str:
    lines = [f"{word.key}={word.value}" for word in flow.words.values()]
    for task in flow.tasks:
        needs = [name for _, name in leaves(flow, task)]
        lines.append(f"{' '.join(task.outputs)}: {' '.join(needs)}\n\t{_command(flow, task, control)}")
    return "\n".join(lines) + "\n"


# ---- model -----------------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """What one task, or one instance of a pattern, must leave behind."""

    key: str
    task: Task
    name: str
    """As Shoal names it."""
    status: str = "ok"
    """ok, fails, doomed (something it needs fails) or missing (a source is not there)."""
    files: dict[str, bytes | tuple[str, str]] = field(default_factory=dict)
    """Content, or ("link", target)."""
    value: str = ""
    stamp: str = ""
    """Changes with the definition and with everything that is read."""
    needs: list[str] = field(default_factory=list)
    """Keys of what it directly needs, groups included."""
    sources: list[str] = field(default_factory=list)
    """Source files it reads, or that its groups hold."""

    def owns(self, path: str) -> bool:
        """Whether a path is one of its outputs or below one."""
        return any(path == name or (self.task.directory and path.startswith(f"{name}/")) for name in self.names())

    def is_beside(self, path: str) -> bool:
        """Whether a path lies in its output directory and the task never makes it: somebody put it there."""
        return self.task.directory and not os.path.basename(path).startswith(("all", "part", "deep"))

    def names(self) -> list[str]:
        """The outputs as they are declared."""
        return [self.name] if self.task.form == "family" else self.task.outputs


class Adopted(NamedTuple):
    """A result that the user took as made."""

    stamp: str
    """What it was taken under."""
    files: Mapping[str, bytes | tuple[str, str]]
    read: Mapping[str, bytes]
    """What whoever opens one of them reads, also through a link."""


class Model:
    """Evaluates a workflow over the files that are there."""

    def __init__(
        self, flow: Workflow, disk: Files, adopted: Mapping[str, Adopted], failing: frozenset[str] = frozenset()
    ) -> None:
        """`failing` are the keys of tasks that fail, whatever they read."""
        self.flow, self.disk, self.adopted, self.failing = flow, disk, adopted, failing
        self.made: dict[str, Made] = {}
        self.content: dict[str, bytes] = {}
        """Files made, by name."""
        for task in flow.tasks:
            if task.form == "family":
                for name in disk.glob(f"{flow.pool}/*.txt"):
                    stem = name[len(flow.pool) + 1 : -4]
                    self._instance(task, task.outputs[0].replace("{x}", stem), name)
            else:
                self._one(task)

    def _instance(self, task: Task, output: str, source: str) -> None:
        made = Made(f"{task.key}:{output}", task, output, sources=[source])
        body = self.disk.read(source)
        self._finish(made, body if body is not None else b"", body is None)

    def _one(self, task: Task) -> None:
        made = Made(task.key, task, task.outputs[0] if task.outputs else task.key)
        body, absent = self._gather(made, task)
        self._finish(made, body, absent)

    def _gather(self, made: Made, task: Task) -> tuple[bytes, bool]:
        body, absent = b"", False
        for kind, name in task.needs:
            match kind:
                case "file":
                    content = self.disk.read(name)
                    made.sources.append(name)
                    absent |= content is None
                    body += content or b""
                case "dir":
                    absent |= not self.disk.is_directory(name)
                    names = self.disk.below(name)
                    made.sources += names
                    body += b"".join(each.encode() + b"\n" + (self.disk.read(each) or b"") for each in names)
                case "glob":
                    names = self.disk.glob(name)
                    made.sources += names
                    body += b"".join(self.disk.read(each) or b"" for each in names)
                case "family":
                    made.needs += [key for key in self.made if key.startswith(f"{name}:")]
                    body += self._of_family(name)
                case "group":
                    made.needs.append(name)
                    # A group is no function of its own: its reader reads what its members hold.
                    inner = Made(name, self.flow.find(name), name)
                    content, gone = self._gather(inner, inner.task)
                    body, absent = body + content, absent | gone
                case "value":
                    made.needs.append(name)
                    body += f"value {self.made[name].value}\n".encode()
                case "out" | "second":
                    made.needs.append(name)
                    body += self._of_output(self.flow.find(name), kind)
                case _:
                    made.needs.append(name)
        return body, absent

    def _of_family(self, name: str) -> bytes:
        names = [made.name for key, made in self.made.items() if key.startswith(f"{name}:")]
        return b"".join(self.content.get(each, b"") for each in names)

    def _of_output(self, task: Task, kind: str) -> bytes:
        name = task.outputs[-1 if kind == "second" else 0]
        if not task.directory:
            return self.content.get(name, b"")
        made = self.made[task.key]
        names = {each for each in self.disk.below(name) if each not in made.files and not self.is_old(made, each)}
        flat = sorted({*names, *made.files}, key=lambda each: (each.count("/"), each))
        return b"".join(
            each.encode() + b"\n" + (self.content[each] if each in made.files else self.disk.read(each) or b"")
            for each in flat
        )

    def is_old(self, made: Made, path: str) -> bool:
        """Whether a file in a directory that a task makes is left from an earlier time at which it did."""
        rest = path[len(made.task.outputs[0]) + 1 :]
        return rest == "all" or rest == "sub/deep" or (rest.startswith("part") and rest[4:].isdigit())

    def _finish(self, made: Made, body: bytes, absent: bool) -> None:
        task = made.task
        self.made[made.key] = made
        others = [self.made[key].status for key in made.needs]
        egg = self.flow.find(task.cuckoo).outputs if task.cuckoo else []  # the command names it
        shape = (task.needs, task.outputs, task.plain, task.link, task.fixed_time, egg)
        definition = repr((*shape, _header(self.flow, task)))
        names = "\0".join([*made.needs, *made.sources])
        made.stamp = hashlib.md5(f"{definition}\0{names}\0".encode() + body).hexdigest()
        if absent:
            made.status = "missing"
        elif any(status != "ok" for status in others):
            made.status = "doomed"
        if made.status != "ok" or task.form == "group":
            return
        text = body if task.plain else _header(self.flow, task).encode() + b"\n" + body
        adopted = self._adopted(made)
        fails = (task.guarded or task.idle) and FAILING in text and adopted is None
        if fails or made.key in self.failing:
            made.status = "fails"
            return
        made.value = hashlib.md5(text).hexdigest()[:8]
        if adopted is not None:
            made.files = dict(adopted.files)
            self.content.update(adopted.read)
            return
        if task.link:
            target = leaves(self.flow, task)[0][1]
            made.files[task.outputs[0]] = ("link", "../" * task.outputs[0].count("/") + target)
            text = body
        elif task.directory:
            at = task.outputs[0]
            made.files[f"{at}/all"] = text
            for number, line in enumerate(text.split(b"\n")[:-1][:MEMBERS], 1):
                made.files[f"{at}/part{number}"] = line + b"\n"
            if task.nested:
                made.files[f"{at}/sub/deep"] = text
        else:
            for number, name in enumerate(made.names()):
                made.files[name] = text if number == 0 else b"copy %d\n" % number + text
        for name, content in made.files.items():
            self.content[name] = content if isinstance(content, bytes) else text

    def _adopted(self, made: Made) -> Adopted | None:
        """What holds in place of what the task would make: what was adopted of it and has not changed since."""
        found = self.adopted.get(made.key)
        if found is None or found.stamp != made.stamp:
            return None
        is_as_it_was = all(self.disk.entry(name) == content for name, content in found.files.items())
        return found if is_as_it_was and all(self.disk.read(n) == read for n, read in found.read.items()) else None

    def wanted(self, targets: list[str]) -> set[str]:
        """Keys of what a run makes: everything, or what the targets need. Instances only where something needs them."""
        if not targets:
            found = [key for key, made in self.made.items() if made.task.form != "family"]
        else:
            found = [key for key, made in self.made.items() if made.name in targets]
        for key in found:  # grows while we walk it
            found += [other for other in self.made[key].needs if other not in found]
        return set(found)
