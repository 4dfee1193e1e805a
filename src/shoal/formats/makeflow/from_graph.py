"""Any graph of commands and files as a `Makeflow` document, so that it can be printed in Makeflow's languages.

The languages know files, commands and a few resources, nothing else. Left out, for they only advise: retries, names of
tasks that are not the name of a file, and tasks that only group others (whoever comes after a group waits for its files
instead). Refused, by the task's name: Python functions, order without a file in between, working directories, named
resources.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.core.graph import Graph, derive_category, topological_order
from shoal.core.resources import BYTE_RESOURCES, FRACTION, is_label
from shoal.core.task import STRICT, Profile, needs_shell, words_elsewhere
from shoal.errors import InputError
from shoal.formats.makeflow.document import (
    DEFAULT_CATEGORY,
    Makeflow,
    MakeflowCategory,
    MakeflowRule,
    Variables,
    leading_number,
)
from shoal.formats.makeflow.to_graph import resources_of

Settings = Mapping[str, str]


class Shared(NamedTuple):
    """Settings by place; what a rule has is the sum, the narrower place counting first."""

    common: dict[str, str]
    of_category: dict[str, dict[str, str]]
    of_rule: list[dict[str, str]]


def share(rules: Sequence[tuple[str, Settings]], default_category: str, never_common: str = "") -> Shared:
    """Splits the settings of all rules, each given with its category; the default category shares with all others.

    The name `never_common` is said per category at most.
    """
    groups: dict[str, list[Settings]] = {}
    for category, settings in rules:
        groups.setdefault(category, []).append(settings)
    common = _agreed([settings for _, settings in rules])
    common.pop(never_common, None)
    of_category = {}
    for category, members in groups.items():
        if category == default_category:
            of_category[category] = common
        else:
            of_category[category] = common | _agreed(members)
    own = [
        {name: value for name, value in settings.items() if of_category[category].get(name) != value}
        for category, settings in rules
    ]
    narrowed = {
        category: {name: value for name, value in settings.items() if common.get(name) != value}
        for category, settings in of_category.items()
    }
    return Shared(common, {category: settings for category, settings in narrowed.items() if settings}, own)


def _agreed(rules: Sequence[Settings]) -> dict[str, str]:
    """The names that all have, each with its most frequent value (the first of those that are equally frequent)."""
    if not rules:
        return {}
    counts: dict[str, Counter[str]] = {}
    for settings in rules:
        for name, value in settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return {name: found.most_common(1)[0][0] for name, found in counts.items() if found.total() == len(rules)}


_VARIABLES = {"cores": "CORES", "memory": "MEMORY", "disk": "DISK", "gpus": "GPUS"}
_CONTRACT = (*_VARIABLES.values(), "WALL_TIME", "MPI_PROCESSES")
_LONGEST_TIMEOUT = 1e12
_MEGABYTE = 2**20


def document_of(graph: Graph) -> Makeflow:
    """One rule per task that runs a command, in the graph's order; raises `InputError` for what cannot be said."""
    variables = Variables({}, DEFAULT_CATEGORY)
    makeflow = Makeflow(graph.source, variables)
    makeflow.categories[DEFAULT_CATEGORY] = MakeflowCategory(DEFAULT_CATEGORY)
    groups = _group_files(graph)
    tasks = [task for task in range(len(graph)) if task not in groups]
    settings: dict[int, dict[str, str]] = {}
    seen = []
    for task in tasks:
        number = graph.profile[task]
        if number not in settings:
            settings[number] = _settings(graph, task, makeflow)
        seen.append((_category(graph, task), settings[number]))
    common, of_category, of_rule = share(seen, DEFAULT_CATEGORY)
    for category, values in ((DEFAULT_CATEGORY, common), *of_category.items()):
        for name, value in values.items():
            variables.assign(category, name, value)
    for task, (category, _), own in zip(tasks, seen, of_rule, strict=True):
        makeflow.categories.setdefault(category, MakeflowCategory(category))
        command = graph.actions[task]
        if not isinstance(command, str):
            raise _cannot(graph, task, "calls a Python function")
        makeflow.rules.append(
            MakeflowRule(
                tuple(graph.output_names(task)),
                (*graph.input_names(task), *_files_of_order(graph, task, groups)),
                _in_its_shell(command, graph.profile_of(task).shell),
                graph.lines[task],
                category,
                variables.version,
                variables=tuple(own.items()),
            )
        )
    return makeflow


def _in_its_shell(command: str, shell: str) -> str:
    """The command as /bin/sh, which runs those of Makeflows, must have it."""
    if not shell or (shell == STRICT and not needs_shell(command)):
        return command
    return shlex.join([*words_elsewhere(shell), "-c", command])


def _group_files(graph: Graph) -> dict[int, list[str] | int]:
    """For each task without an action the files that stand for it, or the task it contains that makes none."""
    groups: dict[int, list[str] | int] = {}
    for task in topological_order(graph):
        if graph.actions[task] is not None:
            continue
        if graph.outputs_of(task):
            raise _cannot(graph, task, "makes files without running anything")
        files: list[str] | int = graph.input_names(task)
        for other in graph.after_of(task):
            more = groups.get(other, graph.output_names(other) or other)
            files = more if isinstance(more, int) else [*files, *more] if isinstance(files, list) else files
        groups[task] = files
    return groups


def _files_of_order(graph: Graph, task: int, groups: dict[int, list[str] | int]) -> list[str]:
    """The files to wait for in place of the tasks this one comes after."""
    known = dict.fromkeys(graph.input_names(task))
    added: dict[str, None] = {}
    for other in graph.after_of(task):
        files = groups.get(other, graph.output_names(other) or other)
        if isinstance(files, int):
            raise _cannot(graph, task, f"comes after {graph.names[files]!r} without a file in between")
        added.update(dict.fromkeys(name for name in files if name not in known))
    return list(added)


def _category(graph: Graph, task: int) -> str:
    """The declared category; one that is derived from the command will be derived again."""
    category = graph.profile_of(task).category
    return DEFAULT_CATEGORY if category == derive_category(graph.actions[task]) else category or DEFAULT_CATEGORY


def _settings(graph: Graph, task: int, makeflow: Makeflow) -> dict[str, str]:
    """Resources, time limit and environment of a task as variables."""
    profile = graph.profile_of(task)
    if profile.directory is not None:
        raise _cannot(graph, task, f"runs in the directory {profile.directory!r}")
    found: dict[str, str] = {}
    for name, amount in profile.resources.amounts:
        if name not in _VARIABLES:
            raise _cannot(graph, task, f"requires the label {name}" if is_label(name) else f"asks for {name!r}")
        if profile.declares(name):
            found[_VARIABLES[name]] = _amount(name, amount)
    if profile.timeout is not None and profile.timeout < _LONGEST_TIMEOUT:
        found["WALL_TIME"] = _decimal(profile.timeout)
    _add_environment(found, profile, makeflow)
    return found


def _add_environment(found: dict[str, str], profile: Profile, makeflow: Makeflow) -> None:
    """Adds variables; those that say what the resources say anyway need not be said again."""
    for name, value in profile.environment:
        if name == "CATEGORY" or (name == "OMP_NUM_THREADS" and value == found.get("CORES", "1")):
            continue
        if name in _CONTRACT:
            changed = found | {name: value}
            if resources_of(changed) != resources_of(found) or _seconds(changed) != _seconds(found):
                continue
            if name != "CORES" or value != "1":
                found[name] = value
            continue
        found[name] = value
        makeflow.exports[name] = None


def _seconds(settings: dict[str, str]) -> tuple[float, int] | None:
    return leading_number(settings.get("WALL_TIME", ""))


def _amount(name: str, amount: int) -> str:
    return _decimal(amount / (_MEGABYTE if name in BYTE_RESOURCES else FRACTION))


def _decimal(number: float) -> str:
    """Digits only, as many as a Makeflow's numbers may have."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def _cannot(graph: Graph, task: int, what: str) -> InputError:
    return InputError(
        f"the task {graph.names[task]!r} {what}, which Makeflow's languages cannot say",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy="convert it to rules, or change the task",
    )
