"""Reading crates in tests, and holding them against what RO-Crate 1.1 and the three run profiles 0.5 require.

The rules here are those that the profiles write with MUST. `tests/support/crate_validator.py` asks the validator of the
RO-Crate community instead, where it is installed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Entity = dict[str, Any]
PROFILES = ("process", "workflow", "provenance")
REFERENCE = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-F]{2})+")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")
SOFTWARE = {"SoftwareApplication", "SoftwareSourceCode", "ComputationalWorkflow"}
STATUSES = ("http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus")


class Crate:
    """A crate that was written: its entities by identifier, and the names of its files."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            text = (path / "ro-crate-metadata.json").read_text()
            self.files = {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()}
        else:
            with zipfile.ZipFile(path) as archive:
                text = archive.read("ro-crate-metadata.json").decode()
                self.files = {name for name in archive.namelist() if not name.endswith("/")}
        self.document: dict[str, Any] = json.loads(text)
        self.entities: dict[str, Entity] = {entity["@id"]: entity for entity in self.document["@graph"]}
        assert len(self.entities) == len(self.document["@graph"]), "two entities have the same identifier"

    def of_type(self, kind: str) -> list[Entity]:
        return [entity for entity in self.entities.values() if kind in types(entity)]

    def named(self, kind: str, name: str) -> Entity:
        found = [entity for entity in self.of_type(kind) if entity.get("name") == name]
        assert len(found) == 1, (kind, name, [entity.get("name") for entity in self.of_type(kind)])
        return found[0]

    def refer(self, entity: Entity, key: str) -> list[Entity]:
        """The entities that a property refers to."""
        return [self.entities[value["@id"]] for value in several(entity.get(key))]

    def used(self, action: Entity) -> dict[str, float]:
        """What an action used, by the names of the quantities."""
        return {value["name"]: value["value"] for value in self.refer(action, "resourceUsage")}

    def task(self, name: str) -> Entity:
        return self.named("CreateAction", name)

    @property
    def root(self) -> Entity:
        return self.entities["./"]

    @property
    def run(self) -> Entity:
        return self.entities["#run"]


def several(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def types(entity: Entity) -> set[str]:
    return set(several(entity["@type"]))


def known_terms() -> set[str]:
    """What the published context of RO-Crate has words for."""
    context: dict[str, Any] = json.loads((files("rocrate") / "data" / "ro-crate.jsonld").read_text())["@context"]
    return set(context)


def check_crate(crate: Crate, profiles: tuple[str, ...] = PROFILES) -> None:
    """Everything that these profiles require, and what makes a crate a crate."""
    _check_document(crate)
    _check_root(crate, profiles)
    _check_files(crate)
    _check_actions(crate)
    if "provenance" in profiles:
        _check_provenance(crate)


def _check_document(crate: Crate) -> None:
    context = crate.document["@context"]
    assert context[0] == "https://w3id.org/ro/crate/1.1/context"
    assert [part for part in context if isinstance(part, str)] == context[:1], "one context is enough"
    terms = known_terms() | set(context[1])
    for identifier, entity in crate.entities.items():
        assert REFERENCE.fullmatch(identifier), f"no URI: {identifier}"
        assert ".." not in unquote(identifier.partition("#")[0]).split("/"), f"leaves the crate: {identifier}"
        assert types(entity) <= terms, entity
        assert {key for key in entity if not key.startswith("@")} <= terms, entity
        for reference in _references(entity):
            external = reference.startswith("https://")
            assert external or reference in crate.entities, f"{identifier} refers to {reference}, which is not there"


def _references(entity: Entity) -> Iterator[str]:
    for key, value in entity.items():
        for one in several(value):
            if isinstance(one, dict):
                assert list(one) == ["@id"], f"not flat: {entity['@id']} {key}"
                yield one["@id"]
            else:
                assert isinstance(one, (str, int, float)), (key, one)


def _check_root(crate: Crate, profiles: tuple[str, ...]) -> None:
    descriptor, root = crate.entities["ro-crate-metadata.json"], crate.root
    assert descriptor["about"] == {"@id": "./"}
    assert {"@id": "https://w3id.org/ro/crate/1.1"} in several(descriptor["conformsTo"])
    assert types(root) == {"Dataset"}
    for key in ("name", "description", "license", "author"):
        assert root[key], key
    assert MOMENT.fullmatch(root["datePublished"])
    stated = {entity["@id"] for entity in crate.refer(root, "conformsTo") if types(entity) == {"CreativeWork"}}
    runs = {f"https://w3id.org/ro/wfrun/{profile}/0.5" for profile in profiles}
    assert stated == runs | {"https://w3id.org/workflowhub/workflow-ro-crate/1.0"}
    (main,) = crate.refer(root, "mainEntity")
    assert {"File", "SoftwareSourceCode", "ComputationalWorkflow"} <= types(main)
    assert [types(language) for language in crate.refer(main, "programmingLanguage")] == [{"ComputerLanguage"}]
    assert unquote(main["@id"]) in crate.files
    for parameter in crate.refer(main, "input"):
        assert types(parameter) == {"FormalParameter"} and parameter["additionalType"]


def _check_files(crate: Crate) -> None:
    """What is named by a path is in the crate and listed, and the other way round; the rest is only told of."""
    parts = {entity["@id"] for entity in crate.refer(crate.root, "hasPart")}
    listed = [entity for entity in crate.of_type("File") + crate.of_type("Dataset") if entity["@id"] != "./"]
    assert parts == {entity["@id"] for entity in listed if not entity["@id"].startswith("#")}
    folders = {unquote(part) for part in parts if part.endswith("/")}
    for entity in listed:
        identifier = entity["@id"]
        if "Dataset" in types(entity):
            assert identifier.endswith("/")
        elif identifier.startswith("#"):
            assert entity["localPath"]
        else:
            assert unquote(identifier) in crate.files, identifier
    for name in crate.files - {"ro-crate-metadata.json"}:
        assert name in map(unquote, parts) or any(name.startswith(folder) for folder in folders), name


def _check_actions(crate: Crate) -> None:
    actions = crate.of_type("CreateAction")
    (main,) = crate.refer(crate.root, "mainEntity")
    assert [main] in [crate.refer(action, "instrument") for action in actions]
    mentioned = {entity["@id"] for entity in crate.refer(crate.root, "mentions")}
    for action in actions:
        assert action["@id"] in mentioned
        assert action["name"] and action["description"]
        (tool,) = crate.refer(action, "instrument")
        assert types(tool) & SOFTWARE
        assert [types(agent) for agent in crate.refer(action, "agent")] == [{"Person"}]
        for value in crate.refer(action, "resourceUsage"):
            assert types(value) == {"PropertyValue"} and crate.refer(value, "propertyID") and value["unitCode"]
        for entity in crate.refer(action, "object") + crate.refer(action, "result"):
            assert types(entity) & {"File", "Dataset", "PropertyValue"}
    for action in actions + crate.of_type("OrganizeAction"):
        assert MOMENT.fullmatch(action["startTime"])
        assert "endTime" not in action or MOMENT.fullmatch(action["endTime"])
        assert action["actionStatus"] in STATUSES
        assert bool(action.get("error")) == (action["actionStatus"] == STATUSES[1])


def _check_provenance(crate: Crate) -> None:
    (main,) = crate.refer(crate.root, "mainEntity")
    assert "HowTo" in types(main)
    tools, steps = crate.refer(main, "hasPart"), crate.refer(main, "step")
    instruments = [
        tool["@id"] for action in crate.of_type("CreateAction") for tool in crate.refer(action, "instrument")
    ]
    assert tools and all(types(tool) & SOFTWARE and tool["@id"] in instruments for tool in tools)
    assert [step["@id"] for step in crate.of_type("HowToStep")] == [step["@id"] for step in steps]
    for step in steps:
        (tool,) = crate.refer(step, "workExample")
        assert tool in tools
        assert "position" not in step or step["position"].isdigit()
    controls = crate.of_type("ControlAction")
    for control in controls:
        assert [types(step) for step in crate.refer(control, "instrument")] == [{"HowToStep"}]
        assert control["object"] and all(types(one) == {"CreateAction"} for one in crate.refer(control, "object"))
    (engine,) = crate.of_type("OrganizeAction")
    assert [types(tool) for tool in crate.refer(engine, "instrument")] == [{"SoftwareApplication"}]
    assert crate.refer(engine, "result") == [crate.run]
    assert crate.refer(engine, "object") == controls
