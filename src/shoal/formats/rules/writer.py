"""Writes a graph as the text of a rules file that loads to the same graph.

Writes one `file()` per task that makes files and one `task()` per other task. Not preserved: names of tasks that make
files and are not named after their first file; duplicate names of other tasks get numbers. Refused: Python functions,
because a graph does not have their source text, and tasks that list outputs but have neither an action nor needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.core.graph import Graph, ancestors, derive_category
from shoal.core.resources import BYTE_RESOURCES, FRACTION, required_labels, without_labels
from shoal.core.task import STRICT, Profile, needs_shell
from shoal.errors import InputError
from shoal.formats.rules.api import USUAL_TARGETS

_BUILT_IN = ("cores", "memory", "disk", "gpus")
_LONGEST_LINE = 100
_SH = "sh"
_BRACES = re.compile(r"\$\{(?!\{)|\{\{|\}\}|\{[^\W\d]\w*(?:\.[^\W\d]\w*|\[-?\d+\])?\}")
"""Every sequence with braces that templates of rules interpret. `${` of the shell comes first, as in `patterns`."""


def write_rules(graph: Graph) -> str:
    """Returns the text of the rules file; raises `InputError` for a task that a rules file cannot express."""
    names = _names(graph)
    shell = _usual_shell(graph)
    body = [_definition(graph, task, names, shell) for task in range(len(graph))]
    default = _default_target(graph, names)
    if default:
        body.append(default)
    if shell != STRICT:
        body.insert(0, f"shell({shell!r})\n")
    used = [name for name in ("file", "shell", "task") if any(line.startswith(f"{name}(") for line in body)]
    head = ['"""Written by shoal convert."""', "", f"from shoal import {', '.join(used)}" if used else ""]
    return "\n".join([*head, "", *body]) + "\n"


def _names(graph: Graph) -> list[str]:
    """Returns the name under which each task can be needed. File names stay; names of other tasks are made distinct."""
    taken = dict.fromkeys(graph.file_names)
    names: list[str] = []
    for task in range(len(graph)):
        outputs = graph.output_names(task)
        name = outputs[0] if outputs else graph.names[task]
        if not outputs:
            plain, count = name, 1
            while name in taken:
                count += 1
                name = f"{plain} ({count})"
            taken[name] = None
        names.append(name)
    return names


def _usual_shell(graph: Graph) -> str:
    """Returns the shell of commands without `shell=`: that of Makeflows if there is a command from a Makeflow."""
    makeflows = {number for number, profile in enumerate(graph.profiles) if not profile.shell}
    commands = zip(graph.actions, graph.profile, strict=True)
    is_one = any(isinstance(action, str) and number in makeflows and needs_shell(action) for action, number in commands)
    return _SH if is_one else STRICT


def _definition(graph: Graph, task: int, names: Sequence[str], shell: str) -> str:
    action = graph.actions[task]
    outputs = graph.output_names(task)
    needs = [*graph.input_names(task), *(names[other] for other in graph.after_of(task))]
    if action is not None and not isinstance(action, str):
        raise _cannot(graph, task, "calls a Python function, whose source text is not in the graph")
    if action is None and outputs and not needs:
        raise _cannot(graph, task, "makes files without an action and without needs")
    words = [_literal(outputs) if outputs else repr(names[task])]
    if needs:
        words.append(f"needs={_literal(needs)}")
    if action is not None:
        words.append(f"run={verbatim(action)!r}")
    profile = graph.profile_of(task)
    words += [f"{name}={value!r}" for name, value in _options(profile, derive_category(action)).items()]
    own = profile.shell or _SH
    if action is not None and own != shell and (own not in (STRICT, _SH) or needs_shell(action)):
        words.append(f"shell={own!r}")
    kind = "file" if outputs else "task"
    line = f"{kind}({', '.join(words)})"
    return line if len(line) <= _LONGEST_LINE else f"{kind}(\n    " + ",\n    ".join(words) + ",\n)"


def verbatim(command: str) -> str:
    """Escapes the braces of a command, so that a template of it yields the command."""
    if "{" not in command:
        return command
    tokens = list(_BRACES.finditer(command))
    opened: list[int] = []
    doubled: dict[int, str] = {}
    for number, token in enumerate(tokens):
        if token[0] == "{{":
            opened.append(number)
        elif token[0] == "}}" and opened:
            doubled[opened.pop()], doubled[number] = "{{{{", "}}}}"
        elif token[0][0] == "{":
            doubled[number] = f"{{{token[0]}}}"
    parts: list[str] = []
    end = 0
    for number, token in enumerate(tokens):
        parts += (command[end : token.start()], doubled.get(number, token[0]))
        end = token.end()
    return "".join([*parts, command[end:]])


def _literal(names: Sequence[str]) -> str:
    return repr(names[0]) if len(names) == 1 else repr(list(names))


def _options(profile: Profile, derived: str) -> dict[str, object]:
    """Returns the keyword arguments that produce this profile, without default values."""
    found: dict[str, object] = {}
    amounts = {"cores": 0} | dict(without_labels(profile.resources).amounts)
    for name in _BUILT_IN:
        amount = amounts.pop(name, 0)
        if profile.declares(name):
            found[name] = _size(amount) if name in BYTE_RESOURCES else _count(amount)
    if amounts:
        found["resources"] = {name: _count(amount) for name, amount in amounts.items()}
    labels = required_labels(profile.resources)
    if labels:
        found["requires"] = labels[0] if len(labels) == 1 else labels
    if profile.prefers:
        found["prefers"] = profile.prefers[0] if len(profile.prefers) == 1 else list(profile.prefers)
    if profile.retries:
        found["retries"] = profile.retries
    if profile.timeout is not None:
        found["timeout"] = profile.timeout
    if profile.category != derived:
        found["category"] = profile.category
    if profile.environment:
        found["env"] = dict(profile.environment)
    if profile.directory is not None:
        found["cwd"] = profile.directory
    return found


def _size(amount: int) -> int | str:
    for suffix, unit in (("G", 2**30), ("M", 2**20)):
        if amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return amount


def _count(amount: int) -> int | float:
    return amount // FRACTION if amount % FRACTION == 0 else amount / FRACTION


def _default_target(graph: Graph, names: Sequence[str]) -> str | None:
    """Returns the definition of a target for everything.

    None unless a task is named like a default target and does not need all other tasks: a run without targets would
    leave tasks out.
    """
    by_name = {name: task for task in range(len(graph)) for name in (graph.output_names(task) or [names[task]])}
    usual = next((name for name in USUAL_TARGETS if name in by_name), None)
    if usual is None or all(ancestors(graph, [by_name[usual]])):
        return None
    first = USUAL_TARGETS[0]
    if first in by_name or first in graph.file_names:
        raise _cannot(graph, by_name[usual], "would become the default target because of its name")
    sinks = [task for task in range(len(graph)) if not graph.successors_of(task)]
    return f"task({first!r}, needs={[names[task] for task in sinks]!r})"


def _cannot(graph: Graph, task: int, what: str) -> InputError:
    return InputError(
        f"the task {graph.names[task]!r} {what}",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy="change the task, or convert it by hand",
    )
