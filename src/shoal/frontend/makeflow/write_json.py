"""A `Makeflow` document as JSON, which reads back as the same rules, here and in the original.

Every rule is given the settings it saw; what rules have in common is said for all of them or for their category.
JSON has no place for three things, which only advise and are left out: modes of categories, sizes of files
(`.SIZE`), and a resource's value at a rule's place in the file where another one counts in the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from shoal.frontend.makeflow.directives import RESOURCES
from shoal.frontend.makeflow.document import DEFAULT_CATEGORY, Makeflow, MakeflowRule
from shoal.frontend.makeflow.json_reader import RESOURCES as RESOURCE_KEYS
from shoal.frontend.makeflow.write_settings import share

_KEY_OF = {variable: key for key, variable in RESOURCE_KEYS.items()}
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def write_json(makeflow: Makeflow, pretty: bool = True) -> str:
    """The whole document, one key of a rule per line, or without any blanks."""
    settings = _Seen(makeflow)
    seen = [(rule.category, settings.of(rule)) for rule in makeflow.rules]
    common, of_category, of_rule = share(seen, DEFAULT_CATEGORY, never_common="CATEGORY")
    for name, files in (("MAKEFLOW_INPUTS", makeflow.inputs), ("MAKEFLOW_OUTPUTS", makeflow.outputs)):
        if files:
            common[name] = " ".join(files)
    document: dict[str, object] = {}
    resources, environment = _split(common)
    if environment:
        document["environment"] = environment
    categories = {name: _section(of_category.get(name, {})) for name in dict.fromkeys(name for name, _ in seen)}
    if resources:
        # Resources of the default category are those of all.
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
    """The variables of a document that its rules' jobs see."""

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
                # Rules are given the last value of a resource, wherever it stands.
                if (value := self._variables.assigned(rule.category, name, None if name in RESOURCES else rule.version))
                is not None
            }
        own = {name: value for name, value in rule.variables if name in self._names}
        return self._of_place | own if own else self._of_place


def _split(settings: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
    """Resources that are whole numbers, and everything else as environment, which may set resources, too."""
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
    there = dict(rule.renames)
    for key, names in (("inputs", rule.inputs), ("outputs", rule.outputs)):
        if names:
            found[key] = [{"dag_name": name, "task_name": there[name]} if name in there else name for name in names]
    if rule.local:
        found["local_job"] = True
    if rule.category != DEFAULT_CATEGORY:
        found["category"] = rule.category
    if rule.allocation:
        found["allocation"] = rule.allocation
    return found | _section(own)


def _pretty(document: Mapping[str, object]) -> str:
    """Two levels of indentation: sections and their entries."""

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
