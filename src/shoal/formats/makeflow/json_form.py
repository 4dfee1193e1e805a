"""The JSON and JX form of a Makeflow: reads it to the `Makeflow` document of the parser, and writes it as JSON.

Values of a wrong type in optional fields are ignored like in the original, so that existing files load; all other
errors are reported with the position of the object they are in. Commands are passed to the shell unchanged: variables
are not substituted, and `LOCAL` is not a modifier. `shoal.formats.jx` parses and evaluates the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from shoal.errors import InputError
from shoal.formats.jx import ExternalAccess, Value, evaluate, parse_jx
from shoal.formats.makeflow.document import (
    DEFAULT_CATEGORY,
    RESOURCES,
    Makeflow,
    MakeflowCategory,
    MakeflowRule,
    Variables,
)
from shoal.formats.makeflow.graphs import share_settings
from shoal.formats.source_text import LONGEST_SHOWN_LINE, SourceText, show

JSON_RESOURCES = {
    "cores": "CORES",
    "memory": "MEMORY",
    "disk": "DISK",
    "gpus": "GPUS",
    "mpi-processes": "MPI_PROCESSES",
    "wall-time": "WALL_TIME",
}
"""By key of "resources": the variable that it sets."""
ALLOCATIONS = ("auto", "first", "max", "error")

Renames = dict[str, str]


def read_jx_workflow(
    text: bytes | str,
    source: str,
    *,
    environment: Mapping[str, str],
    context: Mapping[str, Value],
    outside: ExternalAccess | None = None,
) -> Makeflow:
    """Parses and evaluates a JX document; `context` has precedence over its `define`."""
    value = evaluate(parse_jx(text, source), context, outside)
    return read_json_workflow(value, SourceText(source, text), environment)


def read_json_workflow(value: Value, source: SourceText | str, environment: Mapping[str, str]) -> Makeflow:
    """Returns the document that a JSON value describes; raises `InputError` at the first error."""
    return _Reader(value, source, environment).read()


class _Reader:
    """Reads one document."""

    def __init__(self, value: Value, source: SourceText | str, environment: Mapping[str, str]) -> None:
        self._source = source
        self._name = source if isinstance(source, str) else source.name
        if not isinstance(value, dict):
            raise self._error(value, f"a workflow must be an object, not {_shown(value)}", 'write { "rules": [ ... ] }')
        self._value = value
        default = value.get("default_category")
        self._default = default if isinstance(default, str) else DEFAULT_CATEGORY
        self._variables = Variables(environment, self._default)
        self._makeflow = Makeflow(self._name, self._variables, default_category=self._default)

    def read(self) -> Makeflow:
        makeflow, value = self._makeflow, self._value
        categories = value.get("categories")
        if isinstance(categories, dict):
            for name, category in categories.items():
                self._category(name, category)
        for name in (self._default, DEFAULT_CATEGORY):
            self._open(name)
        if "environment" in value:
            for name, text in self._environment(value["environment"], value, "environment").items():
                self._variables.assign(self._default, name, text)
        rules = value.get("rules")
        if isinstance(rules, list):
            for number, rule in enumerate(rules):
                makeflow.rules.append(self._rule(rule, f"rules[{number}]"))
        makeflow.inputs = self._file_names("MAKEFLOW_INPUTS")
        makeflow.outputs = self._file_names("MAKEFLOW_OUTPUTS")
        return makeflow

    def _file_names(self, variable: str) -> tuple[str, ...]:
        return tuple((self._variables.latest(self._default, variable) or "").split())

    def _open(self, category: str) -> str:
        self._makeflow.categories.setdefault(category, MakeflowCategory(category))
        return category

    def _category(self, name: str, value: Value) -> None:
        self._open(name)
        if not isinstance(value, dict):
            return
        path = f"categories.{name}"
        settings = self._resources(value.get("resources"), value, path)
        if "environment" in value:
            settings.update(self._environment(value["environment"], value, f"{path}.environment"))
        for key, text in settings.items():
            self._variables.assign(name, key, text)

    def _environment(self, value: Value, near: Value, path: str) -> dict[str, str]:
        """Returns the variables that an environment sets. A name whose value is not a string is still exported."""
        if not isinstance(value, dict):
            raise self._error(near, f"{path} must be an object of strings, not {_shown(value)}")
        found: dict[str, str] = {}
        for name, text in value.items():
            if not name or "=" in name:
                raise self._error(value, f"{path} contains {name!r}, which is not a valid variable name")
            self._makeflow.exports[self._text(name, value, path)] = None
            if isinstance(text, str):
                found[name] = self._text(text, value, f"{path}.{name}")
        return found

    def _resources(self, value: Value, near: Value, path: str) -> dict[str, str]:
        """Returns the variables that resources set. Values other than whole numbers are recorded as invalid."""
        if not isinstance(value, dict):
            return {}
        found: dict[str, str] = {}
        for key, amount in value.items():
            if key not in JSON_RESOURCES:
                known = ", ".join(JSON_RESOURCES)
                raise self._error(value, f"{path}.resources: unknown resource {key!r}", f"use one of {known}")
            whole = amount if isinstance(amount, int) and not isinstance(amount, bool) else None
            if whole is not None:
                found[JSON_RESOURCES[key]] = str(whole)
            if amount is not None and (whole is None or whole < 0):
                what = f"{path}.resources: {key} must be a non-negative whole number, not {_shown(amount)}"
                self._makeflow.invalid_values.append(self._error(value, what, "leave it out if it is unknown"))
        return found

    def _rule(self, value: Value, path: str) -> MakeflowRule:
        if not isinstance(value, dict):
            raise self._error(value, f"{path} must be an object, not {_shown(value)}")
        renames: Renames = {}
        outputs = self._files(value, "outputs", path, renames)
        inputs = self._files(value, "inputs", path, renames)
        command, workflow = self._action(value, path)
        category = value.get("category")
        allocation = value.get("allocation")
        if isinstance(allocation, str) and allocation not in ALLOCATIONS:
            known = ", ".join(ALLOCATIONS)
            raise self._error(value, f"{path}: unknown allocation {allocation!r}", f"use one of {known}")
        variables = self._resources(value.get("resources"), value, path)
        if isinstance(value.get("environment"), dict):
            variables.update(self._environment(value["environment"], value, f"{path}.environment"))
        return MakeflowRule(
            outputs,
            inputs,
            command,
            getattr(value, "line", 0),
            self._open(category) if isinstance(category, str) else DEFAULT_CATEGORY,
            self._variables.version,
            value.get("local_job") is True,
            workflow,
            tuple(variables.items()),
            tuple(renames.items()),
            self._arguments(value, path) if workflow else "",
            allocation if isinstance(allocation, str) else "",
        )

    def _action(self, rule: dict[str, Value], path: str) -> tuple[str, str]:
        """Returns the command and the sub-workflow, exactly one of which is not empty."""
        command, workflow = rule.get("command"), rule.get("workflow")
        if isinstance(command, str):
            if isinstance(workflow, str):
                raise self._error(rule, f"{path} has both a command and a workflow", "remove one of them")
            return self._text(command, rule, f"{path}.command"), ""
        if not isinstance(workflow, str) or not workflow:
            raise self._error(rule, f"{path} has neither a command nor a workflow", 'write "command": "..."')
        return "", self._text(workflow, rule, f"{path}.workflow")

    def _arguments(self, rule: dict[str, Value], path: str) -> str:
        arguments = rule.get("args")
        if arguments is None:
            return ""
        if not isinstance(arguments, dict):
            raise self._error(rule, f"{path}.args must be an object, not {_shown(arguments)}")
        return json.dumps(arguments, ensure_ascii=False)

    def _files(self, rule: dict[str, Value], key: str, path: str, renames: Renames) -> tuple[str, ...]:
        if key not in rule:
            return ()
        files = rule[key]
        if not isinstance(files, list):
            raise self._error(rule, f"{path}.{key} must be a list of files, not {_shown(files)}")
        names: list[str] = []
        for number, file in enumerate(files):
            name = file
            if isinstance(file, dict):
                name, remote = file.get("dag_name"), file.get("task_name")
                if not isinstance(name, str):
                    raise self._error(file, f"{path}.{key}[{number}] has no 'dag_name'")
                if isinstance(remote, str) and remote != name:
                    renames[name] = self._text(remote, file, f"{path}.{key}[{number}]")
            if not isinstance(name, str) or not name:
                raise self._error(rule, f"{path}.{key}[{number}] must be a file name or an object, not {_shown(name)}")
            names.append(self._text(name, rule, f"{path}.{key}[{number}]"))
        return tuple(names)

    def _text(self, text: str, near: Value, path: str) -> str:
        """Returns the text; raises if it cannot be passed to another program."""
        if text.isascii() and "\0" not in text:
            return text
        if "\0" in text:
            raise self._error(near, f"{path} contains a zero byte")
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise self._error(near, f"{path} contains half a surrogate pair", "write the character itself") from None
        return text

    def _error(self, near: Value, message: str, remedy: str | None = None) -> InputError:
        """Returns the error with the position of the object `near`, if it is known."""
        line, column = getattr(near, "line", 0) or 1, getattr(near, "column", 0) or 1
        text = None
        if isinstance(self._source, SourceText):
            found = self._source.text.split("\n", line)[line - 1]
            text = show(found) if max(column, len(found)) <= LONGEST_SHOWN_LINE else None
        return InputError(message, file=self._name, line=line, column=column, remedy=remedy, text=text)


def _shown(value: Value) -> str:
    """Returns a short description of the value for errors."""
    if isinstance(value, (dict, list)) and value:
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


_KEY_OF = {variable: key for key, variable in JSON_RESOURCES.items()}
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def write_json(makeflow: Makeflow, pretty: bool = True) -> str:
    """Returns the document as JSON, with one key of a rule per line, or without any blanks."""
    settings = _Seen(makeflow)
    seen = [(rule.category, settings.of(rule)) for rule in makeflow.rules]
    common, of_category, of_rule = share_settings(seen, DEFAULT_CATEGORY, never_common="CATEGORY")
    for name, files in (("MAKEFLOW_INPUTS", makeflow.inputs), ("MAKEFLOW_OUTPUTS", makeflow.outputs)):
        if files:
            common[name] = " ".join(files)
    document: dict[str, object] = {}
    resources, environment = _split(common)
    if environment:
        document["environment"] = environment
    categories = {name: _section(of_category.get(name, {})) for name in dict.fromkeys(name for name, _ in seen)}
    if resources:
        # All categories inherit the resources of the default category.
        categories[DEFAULT_CATEGORY] = {"resources": resources}
    if categories.get(DEFAULT_CATEGORY) == {}:
        del categories[DEFAULT_CATEGORY]
    if categories:
        document["categories"] = categories
    document["rules"] = [_rule(rule, own) for rule, own in zip(makeflow.rules, of_rule, strict=True)]
    if not pretty:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return _pretty(document)


class _Seen:
    """The variables of a document that are visible to the jobs of its rules."""

    def __init__(self, makeflow: Makeflow) -> None:
        self._variables = makeflow.variables
        self._names = tuple(dict.fromkeys((*makeflow.exports, *RESOURCES, "CATEGORY", "OMP_NUM_THREADS")))
        self._place: tuple[str, int] | None = None
        self._of_place: dict[str, str] = {}

    def of(self, rule: MakeflowRule) -> Mapping[str, str]:
        place = (rule.category, rule.version)
        if place != self._place:
            self._place = place
            self._of_place = {
                name: value
                for name in self._names
                # For resources the last value in the file counts, wherever it is assigned.
                if (value := self._variables.assigned(rule.category, name, None if name in RESOURCES else rule.version))
                is not None
            }
        own = {name: value for name, value in rule.variables if name in self._names}
        return self._of_place | own if own else self._of_place


def _split(settings: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
    """Splits settings into resources that are whole numbers, and the environment, which can set resources, too."""
    resources: dict[str, int] = {}
    environment: dict[str, str] = {}
    for name, value in settings.items():
        if name in _KEY_OF and _WHOLE_NUMBER.fullmatch(value):
            resources[_KEY_OF[name]] = int(value)
        else:
            environment[name] = value
    return resources, environment


def _section(settings: Mapping[str, str]) -> dict[str, object]:
    resources, environment = _split(settings)
    section: dict[str, object] = {}
    if resources:
        section["resources"] = resources
    if environment:
        section["environment"] = environment
    return section


def _rule(rule: MakeflowRule, own: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    if rule.workflow:
        found["workflow"] = rule.workflow
        if rule.arguments:
            found["args"] = json.loads(rule.arguments)
    else:
        found["command"] = rule.command
    remote = dict(rule.renames)
    for key, names in (("inputs", rule.inputs), ("outputs", rule.outputs)):
        if names:
            found[key] = [{"dag_name": name, "task_name": remote[name]} if name in remote else name for name in names]
    if rule.local:
        found["local_job"] = True
    if rule.category != DEFAULT_CATEGORY:
        found["category"] = rule.category
    if rule.allocation:
        found["allocation"] = rule.allocation
    return found | _section(own)


def _pretty(document: Mapping[str, object]) -> str:
    """Returns the document with two levels of indentation: sections and their entries."""

    def line(key: str, value: object) -> str:
        return f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"

    sections: list[str] = []
    for key, value in document.items():
        if isinstance(value, list):
            entries = [
                "    {\n" + ",\n".join(f"      {line(*pair)}" for pair in entry.items()) + "\n    }" for entry in value
            ]
            sections.append(f'  "{key}": [\n' + ",\n".join(entries) + "\n  ]" if entries else f'  "{key}": []')
        elif isinstance(value, dict):
            pairs = ",\n".join(f"    {line(*pair)}" for pair in value.items())
            sections.append(f'  "{key}": {{\n{pairs}\n  }}')
    return "{\n" + ",\n".join(sections) + "\n}\n"
