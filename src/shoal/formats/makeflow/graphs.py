"""Converts a Makeflow document to a graph of tasks (`build_graph`), and a graph to a document (`makeflow_from_graph`).

Resources are variables. A rule's own value has precedence; then the last value of its category anywhere in the file
(the original reads them after parsing), then that of the default category, then the environment. The environment of a
job, in contrast, has the values at the position of the rule.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.core.file_names import Relative
from shoal.core.graph import Graph, GraphBuilder, derive_category, topological_order
from shoal.core.resources import BYTE_RESOURCES, FRACTION, Resources, is_label
from shoal.core.task import STRICT, Profile, needs_shell, words_elsewhere
from shoal.errors import InputError
from shoal.formats.makeflow.document import (
    DEFAULT_CATEGORY,
    LARGEST_SIZE,
    SIZE_RESOURCES,
    Makeflow,
    MakeflowCategory,
    MakeflowRule,
    Variables,
    leading_number,
    read_number,
)

_CONTRACT = {"CORES": "cores", "MEMORY": "memory", "DISK": "disk", "GPUS": "gpus"}
_ALWAYS_EXPORTED = ("CATEGORY", "CORES", "MEMORY", "DISK", "GPUS", "MPI_PROCESSES", "WALL_TIME")
_SAFE_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def build_graph(
    makeflow: Makeflow,
    *,
    nest: Callable[[int, MakeflowRule], str] | None = None,
    retries: int = 0,
    by_jobs: bool = False,
    relative: Relative | None = None,
) -> Graph:
    """Returns the graph with one task per rule, in file order. A task is named after its first output or its command.

    `nest` returns the command for a rule that runs a sub-workflow. With `by_jobs`, as in the original, each rule takes
    one unit of the resource `jobs` and only those other resources that it declares; invalid values are ignored, and
    time limits are enforced by the resource monitor. Without it, invalid values are refused. `relative` shortens
    absolute names of files.
    """
    if makeflow.invalid_values and not by_jobs:
        raise makeflow.invalid_values[0]
    builder = GraphBuilder(makeflow.source, relative)
    profiles = MakeflowProfiles(makeflow, retries, by_jobs)
    try:
        for number, rule in enumerate(makeflow.rules):
            inputs, command = rule.inputs, rule.command
            if rule.renames:
                raise _renamed(makeflow, rule, number)
            if rule.workflow:
                command = subworkflow_command(rule) if nest is None else nest(number, rule)
                if rule.workflow not in inputs:
                    inputs = (*inputs, rule.workflow)
            # `LOCAL` without a command is a rule that does nothing, as in the original.
            command, profile = command or ":", profiles.of(rule)
            builder.task("", command, inputs=inputs, outputs=rule.outputs, profile=profile, line=rule.line)
        return builder.build()
    except InputError as error:
        if error.line is not None and error.column is None:
            error.column = 1  # where every rule starts
        raise


def subworkflow_command(rule: MakeflowRule) -> str:
    """Returns the command line that runs the sub-workflow of a `MAKEFLOW` rule."""
    return " ".join(["shoal run", quote(rule.workflow), *map(quote, subworkflow_definitions(rule))])


def subworkflow_definitions(rule: MakeflowRule) -> list[str]:
    """Returns the definitions that the rule passes to its sub-workflow, as `NAME=EXPRESSION` for JX."""
    if not rule.arguments:
        return []
    arguments = json.loads(rule.arguments)
    return [
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items() if name.isidentifier()
    ]


def quote(word: str) -> str:
    """Quotes a word for the shell."""
    if _SAFE_WORD.fullmatch(word) and not word.startswith("-"):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _renamed(makeflow: Makeflow, rule: MakeflowRule, number: int) -> InputError:
    here, there = rule.renames[0]
    return InputError(
        f"remote renaming ({here!r} to {there!r}) is not supported by local execution: rule {number}",
        file=makeflow.source,
        line=rule.line,
        remedy="use one name here and in the command",
    )


class MakeflowProfiles:
    """Creates the profiles of rules, and shares equal ones: consecutive rules mostly have the same profile."""

    def __init__(self, makeflow: Makeflow, retries: int = 0, by_jobs: bool = False) -> None:
        self._source = makeflow.source
        self._variables = makeflow.variables
        self._retries = retries
        self._by_jobs = by_jobs
        self._exported = tuple(dict.fromkeys((*makeflow.exports, *_ALWAYS_EXPORTED)))
        self._shared: dict[Profile, Profile] = {}
        self._of_place: dict[tuple[tuple[str, str], ...], Profile] = {}
        """Profiles by the variables of rules, for the current category and version."""
        self._place: tuple[str, int] = ("", -1)

    def of(self, rule: MakeflowRule) -> Profile:
        place = (rule.category, rule.version)
        if place != self._place:
            self._place = place
            self._of_place.clear()
        profile = self._of_place.get(rule.variables)
        if profile is None:
            profile = self._of_place[rule.variables] = self._make(rule, dict(rule.variables))
        return profile

    def _make(self, rule: MakeflowRule, own: dict[str, str]) -> Profile:
        contract: dict[str, str] = {}
        for name in (*_CONTRACT, "WALL_TIME"):
            value = own.get(name) or self._variables.latest(rule.category, name)
            if value is not None:
                contract[name] = value
        if not self._by_jobs:
            self._refuse_invalid(rule, own)
        wall_time = leading_number(contract.get("WALL_TIME", ""))
        profile = Profile(
            category="" if rule.category == DEFAULT_CATEGORY else rule.category,
            resources=resources_of(contract, "jobs" if self._by_jobs else "cores"),
            retries=self._retries,
            timeout=wall_time[0] if wall_time is not None and wall_time[0] > 0 and not self._by_jobs else None,
            environment=self._environment(rule, own),
            cores_declared=self._asks_for_cores(rule, own),
        )
        return self._shared.setdefault(profile, profile)

    def _asks_for_cores(self, rule: MakeflowRule, own: dict[str, str]) -> bool:
        """Whether the file declares cores. CORES of the environment does not count: a workflow that runs inside a task
        finds there the cores of that task."""
        number = leading_number(own.get("CORES") or self._variables.assigned(rule.category, "CORES") or "")
        return number is not None and number[0] > 0

    def _refuse_invalid(self, rule: MakeflowRule, own: dict[str, str]) -> None:
        """Refuses a resource value of the file that is not a number. A path is taken for a user's own variable."""
        for name in (*_CONTRACT, "WALL_TIME"):
            value = own.get(name) or self._variables.assigned(rule.category, name) or ""
            plain = value.strip("\"' \t")
            if plain and "/" not in plain and read_number(plain) is None:
                raise InputError(
                    f"{name} must be a non-negative number, not {value!r}",
                    file=self._source,
                    line=rule.line,
                    remedy=f"correct it where {name} is set for this rule, or leave it out",
                )

    def _environment(self, rule: MakeflowRule, own: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Returns the exported variables that the file assigns, and the two variables for a task's number of threads.

        Variables that only the environment sets are inherited anyway. They are left out, so that the identity of a task
        does not depend on them.
        """

        def seen(name: str) -> str | None:
            return own[name] if name in own else self._variables.assigned(rule.category, name, rule.version)

        found = {name: value for name in self._exported if (value := seen(name)) is not None}
        inherited = self._variables.environment
        threads = seen("OMP_NUM_THREADS") or inherited.get("OMP_NUM_THREADS")
        if threads:
            found["CORES"] = threads
        else:
            found["CORES"] = found["OMP_NUM_THREADS"] = found.get("CORES") or inherited.get("CORES") or "1"
        return tuple(sorted(found.items()))


def resources_of(values: Mapping[str, str], least: str = "cores") -> Resources:
    """Returns the declared resources. Values other than positive numbers are ignored; every task needs one `least`."""
    amounts = {least: FRACTION}
    for variable, resource in _CONTRACT.items():
        number = leading_number(values.get(variable, ""))
        if number is None or number[0] <= 0:
            continue
        if variable in SIZE_RESOURCES:
            # A number without suffix is in megabytes.
            amounts[resource] = min(round(number[0] * 1024 ** (number[1] or 2)), LARGEST_SIZE)
        else:
            amounts[resource] = round(number[0] * FRACTION)
    return Resources.of(amounts)


Settings = Mapping[str, str]


class Shared(NamedTuple):
    """Settings of all rules, of each category and of each rule; the narrower scope has precedence."""

    common: dict[str, str]
    of_category: dict[str, dict[str, str]]
    of_rule: list[dict[str, str]]


def share_settings(rules: Sequence[tuple[str, Settings]], default_category: str, never_common: str = "") -> Shared:
    """Splits the settings of all rules, each given with its category, into common ones and those of narrower scopes.

    The settings of the default category are the common ones. `never_common` is set per category at most.
    """
    groups: dict[str, list[Settings]] = {}
    for category, settings in rules:
        groups.setdefault(category, []).append(settings)
    common = _most_common([settings for _, settings in rules])
    common.pop(never_common, None)
    of_category = {}
    for category, members in groups.items():
        if category == default_category:
            of_category[category] = common
        else:
            of_category[category] = common | _most_common(members)
    own = [
        {name: value for name, value in settings.items() if of_category[category].get(name) != value}
        for category, settings in rules
    ]
    narrowed = {
        category: {name: value for name, value in settings.items() if common.get(name) != value}
        for category, settings in of_category.items()
    }
    return Shared(common, {category: settings for category, settings in narrowed.items() if settings}, own)


def _most_common(rules: Sequence[Settings]) -> dict[str, str]:
    """Returns the names that all rules set, with the most frequent value (the first one if several are)."""
    if not rules:
        return {}
    counts: dict[str, Counter[str]] = {}
    for settings in rules:
        for name, value in settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return {name: found.most_common(1)[0][0] for name, found in counts.items() if found.total() == len(rules)}


_VARIABLES = {"cores": "CORES", "memory": "MEMORY", "disk": "DISK", "gpus": "GPUS"}
_WRITTEN_CONTRACT = (*_VARIABLES.values(), "WALL_TIME", "MPI_PROCESSES")
_LONGEST_TIMEOUT = 1e12
_MEGABYTE = 2**20


def makeflow_from_graph(graph: Graph) -> Makeflow:
    """Returns a document with one rule per task that runs a command, in the order of the graph.

    Raises `InputError` for a task that a Makeflow cannot express.
    """
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
    common, of_category, of_rule = share_settings(seen, DEFAULT_CATEGORY)
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
                _for_posix_shell(command, graph.profile_of(task).shell),
                graph.lines[task],
                category,
                variables.version,
                variables=tuple(own.items()),
            )
        )
    return makeflow


def _for_posix_shell(command: str, shell: str) -> str:
    """Returns the command for /bin/sh, which runs the commands of Makeflows: calls another shell if necessary."""
    if not shell or (shell == STRICT and not needs_shell(command)):
        return command
    return shlex.join([*words_elsewhere(shell), "-c", command])


def _group_files(graph: Graph) -> dict[int, list[str] | int]:
    """Returns, for each task without an action, the files that replace it, or a task in it that makes no files."""
    groups: dict[int, list[str] | int] = {}
    for task in topological_order(graph):
        if graph.actions[task] is not None:
            continue
        if graph.outputs_of(task):
            raise _cannot(graph, task, "makes files without an action")
        files: list[str] | int = graph.input_names(task)
        for other in graph.after_of(task):
            more = groups.get(other, graph.output_names(other) or other)
            files = more if isinstance(more, int) else [*files, *more] if isinstance(files, list) else files
        groups[task] = files
    return groups


def _files_of_order(graph: Graph, task: int, groups: dict[int, list[str] | int]) -> list[str]:
    """Returns the files that replace the ordering edges of a task."""
    known = dict.fromkeys(graph.input_names(task))
    added: dict[str, None] = {}
    for other in graph.after_of(task):
        files = groups.get(other, graph.output_names(other) or other)
        if isinstance(files, int):
            raise _cannot(graph, task, f"depends on {graph.names[files]!r} without a file")
        added.update(dict.fromkeys(name for name in files if name not in known))
    return list(added)


def _category(graph: Graph, task: int) -> str:
    """Returns the declared category; a category derived from the command is left out, because readers derive it,
    too."""
    category = graph.profile_of(task).category
    return DEFAULT_CATEGORY if category == derive_category(graph.actions[task]) else category or DEFAULT_CATEGORY


def _settings(graph: Graph, task: int, makeflow: Makeflow) -> dict[str, str]:
    """Returns resources, time limit and environment of a task as variables."""
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
    """Adds the environment's variables, except those that follow from the resources."""
    for name, value in profile.environment:
        if name == "CATEGORY" or (name == "OMP_NUM_THREADS" and value == found.get("CORES", "1")):
            continue
        if name in _WRITTEN_CONTRACT:
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
    """Returns a number without exponent, with at most the 9 decimals that a Makeflow allows."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def _cannot(graph: Graph, task: int, what: str) -> InputError:
    return InputError(
        f"the task {graph.names[task]!r} {what}, which Makeflow's languages cannot express",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy="convert it to rules, or change the task",
    )
