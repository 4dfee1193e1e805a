"""The entities of a crate: each function returns the dictionary of one object in the JSON-LD graph.

The entities conform to Workflow Run RO-Crate 0.5 over RO-Crate 1.1, see `docs/provenance.md`. `metadata` selects the
entities of a crate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from shoal.formats.rocrate.facts import (
    FileFacts,
    Licence,
    NodeFacts,
    Person,
    RunFacts,
    TaskFacts,
    WorkflowFile,
    encoded,
    fragment,
)

Entity = dict[str, object]
WORKFLOW_RUN = "https://w3id.org/ro/terms/workflow-run#"
CONTEXT: list[object] = [
    "https://w3id.org/ro/crate/1.1/context",
    {
        "resourceUsage": f"{WORKFLOW_RUN}resourceUsage",
        "environment": f"{WORKFLOW_RUN}environment",
        "sha256": "http://schema.org/sha256",
        "localPath": "https://w3id.org/ro/terms#localPath",
    },
]
"""The JSON-LD context. Defines the terms that RO-Crate 1.1 lacks, so that readers need no further context."""
CRATE = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0")
PROCESS_RUN = ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5")
WORKFLOW_RUN_CRATE = ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5")
PROVENANCE_RUN = ("https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5")
DONE, FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
ENGINE, ENGINE_RUN, RUN = "#shoal", "#engine-run", "#run"
LANGUAGES = {
    "rules": ("#language-shoal-rules", "Shoal rules (Python)"),
    "net": ("#language-shoal-net", "Shoal net (Python)"),
    "makeflow": ("https://ccl.cse.nd.edu/software/makeflow/", "Makeflow"),
    "jx": ("https://cctools.readthedocs.io/en/latest/jx-workflow/language/", "Makeflow as JSON or JX"),
    "wfformat": ("https://wfcommons.org/format", "WfFormat"),
}


def moment(seconds: float) -> str:
    """Formats seconds since 1970 as `2024-05-01T12:00:00.250+00:00`."""
    return f"{np.datetime64(round(seconds * 1000), 'ms')}+00:00"


class Ref(msgspec.Struct, frozen=True, gc=False):
    """A reference to another entity. Takes a tenth of the memory of a dictionary, because there are very many."""

    id: str = msgspec.field(name="@id")


class Quantity(msgspec.Struct, frozen=True):
    """A measured quantity."""

    key: str
    name: str
    unit: str
    description: str


BYTE, SECOND, NUMBER = (f"https://qudt.org/vocab/unit/{unit}" for unit in ("BYTE", "SEC", "UNITLESS"))
CPU = Quantity("cpu", "processor time", SECOND, "Time on processors in user and system mode, of all processes together")
MEMORY = Quantity("memory", "peak memory", BYTE, "Largest resident memory")
ATTEMPTS = Quantity("attempts", "attempts", NUMBER, "Number of attempts; the last one is described")
TASKS = Quantity("tasks", "tasks", NUMBER, "Number of tasks that are described together")
FAILURES = Quantity("failures", "failed tasks", NUMBER, "Number of these tasks that have failed")
CORES = Quantity("cores", "cores", NUMBER, "Processor cores that tasks could use")
MEMORY_SIZE = Quantity("memory-size", "memory", BYTE, "Memory that tasks could use")


def references(identifiers: Iterable[str]) -> Ref | list[Ref]:
    return some([Ref(identifier) for identifier in identifiers])


def some(values: list[Ref]) -> Ref | list[Ref]:
    """Returns a list with one item as the item, as RO-Crate requires."""
    return values[0] if len(values) == 1 else values


def descriptor() -> Entity:
    """Returns the entity of the metadata file itself."""
    return {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "about": Ref("./"),
        "conformsTo": references([CRATE, WORKFLOW_CRATE[0]]),
    }


def profile(identifier: str, name: str, version: str) -> Entity:
    return {"@id": identifier, "@type": "CreativeWork", "name": name, "version": version}


def person_id(person: Person) -> str:
    return person.url or fragment("person", person.name)


def person(one: Person) -> Entity:
    return {"@id": person_id(one), "@type": "Person", "name": one.name}


def licence_id(licence: Licence) -> str:
    return licence.url or "#licence"


def licence_entity(licence: Licence) -> Entity:
    entity: Entity = {"@id": licence_id(licence), "@type": "CreativeWork", "name": licence.name}
    if licence.description:
        entity["description"] = licence.description
    return entity


def language(key: str) -> Entity:
    identifier, name = LANGUAGES[key]
    entity: Entity = {"@id": identifier, "@type": "ComputerLanguage", "name": name}
    if not identifier.startswith("#"):
        entity["url"] = identifier
    return entity


def engine(version: str) -> Entity:
    return {"@id": ENGINE, "@type": "SoftwareApplication", "name": "Shoal", "softwareVersion": version}


def workflow(file: WorkflowFile, tools: Sequence[str], steps: Sequence[str], parameters: Sequence[str]) -> Entity:
    """Returns the main entity. The version is a digest of the content, because the file has no other version."""
    kinds = ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    entity: Entity = {
        "@id": encoded(file.place),
        "@type": [*kinds, "HowTo"] if steps else kinds,
        "name": file.name,
        "programmingLanguage": Ref(LANGUAGES[file.language][0]),
        "encodingFormat": file.encoding,
        "contentSize": str(file.size),
        "sha256": file.sha256,
        "version": file.sha256[:12],
    }
    if steps:
        entity["hasPart"] = references(tools)
        entity["step"] = references(steps)
    if parameters:
        entity["input"] = references(parameters)
    return entity


def tool(name: str) -> Entity:
    return {"@id": fragment("tool", name), "@type": "SoftwareApplication", "name": name}


def step(name: str, position: int | None) -> Entity:
    entity: Entity = {"@id": fragment("step", name), "@type": "HowToStep", "name": name}
    entity["workExample"] = Ref(fragment("tool", name))
    if position is not None:
        entity["position"] = str(position)
    return entity


def parameter(name: str, value: str) -> tuple[Entity, Entity]:
    """Returns a parameter of the workflow and its value in this run."""
    formal, actual = fragment("parameter", name), fragment("value", name)
    return (
        {"@id": formal, "@type": "FormalParameter", "additionalType": "Text", "name": name, "workExample": Ref(actual)},
        {"@id": actual, "@type": "PropertyValue", "name": name, "value": value, "exampleOfWork": Ref(formal)},
    )


def variable_id(name: str, value: str | None) -> str:
    return fragment("environment", name if value is None else f"{name}={value}")


def variable(name: str, value: str | None) -> Entity:
    """Returns a variable of the environment. Without value (None), the value is withheld: it may be a secret."""
    entity: Entity = {"@id": variable_id(name, value), "@type": "PropertyValue", "name": name}
    if value is None:
        entity["description"] = "It was set for the task; its value is withheld."
    else:
        entity["value"] = value
    return entity


def file(facts: FileFacts) -> Entity:
    """Returns a file or directory; one that is not in the crate has a local identifier."""
    entity: Entity = {"@id": facts.id, "@type": "Dataset" if facts.is_directory else "File", "name": facts.name}
    if facts.size >= 0:
        entity["contentSize"] = str(facts.size)
    if facts.sha256:
        entity["sha256"] = facts.sha256
    if facts.encoding:
        entity["encodingFormat"] = facts.encoding
    if not facts.is_inside:
        entity["localPath"] = facts.name
    if facts.note:
        entity["description"] = facts.note
    return entity


def action(kind: str, identifier: str, name: str, started: float, ended: float, error: str) -> Entity:
    """Returns the properties that all actions have."""
    entity: Entity = {"@id": identifier, "@type": kind, "name": name}
    entity["startTime"] = moment(started)
    if ended:
        entity["endTime"] = moment(ended)
    entity["actionStatus"] = FAILED if error else DONE
    if error:
        entity["error"] = error
    return entity


def task_id(number: int) -> str:
    return f"#task-{number}"


def task_action(task: TaskFacts, instrument: Ref, agent: Ref) -> Entity:
    """Returns the action of a task, without its resource usage."""
    entity = action("CreateAction", task_id(task.number), task.name, task.started, task.ended, task.error)
    entity["description"] = task.command
    entity["instrument"] = instrument
    entity["agent"] = agent
    if task.inputs:
        entity["object"] = references(task.inputs)
    if task.outputs:
        entity["result"] = references(task.outputs)
    if task.node >= 0:
        entity["location"] = Ref(node_id(task.node))
    return entity


def node_id(position: int) -> str:
    return f"#node-{position}"


def node(position: int, facts: NodeFacts, uses: Sequence[str]) -> Entity:
    return {
        "@id": node_id(position),
        "@type": "Place",
        "name": facts.name,
        "description": "A machine that ran tasks",
        "additionalProperty": references(uses),
    }


def quantity_id(quantity: Quantity) -> str:
    return f"#quantity-{quantity.key}"


def quantity_entity(quantity: Quantity) -> Entity:
    """Returns the definition of a quantity, so that the crate is self-contained."""
    return {
        "@id": quantity_id(quantity),
        "@type": "DefinedTerm",
        "name": quantity.name,
        "description": quantity.description,
    }


def shown(value: float) -> str:
    """Formats a number with at most three decimals, without trailing zeros."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def value_id(quantity: Quantity, value: float) -> str:
    return f"#{quantity.key}-{shown(value)}"


def value_entity(quantity: Quantity, value: float) -> Entity:
    """Returns an amount of a quantity; entities with the same amount share it."""
    text = shown(value)
    return {
        "@id": value_id(quantity, value),
        "@type": "PropertyValue",
        "name": quantity.name,
        "propertyID": Ref(quantity_id(quantity)),
        "unitCode": quantity.unit,
        "value": float(text) if "." in text else int(text),
    }


def root(facts: RunFacts, profiles: Sequence[str], mentions: list[Ref]) -> Entity:
    """Returns the entity of the crate as a whole."""
    workflow_id = encoded(facts.workflow.place)
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": facts.name,
        "description": facts.description,
        "datePublished": moment(facts.published),
        "license": Ref(licence_id(facts.licence)),
        "author": Ref(person_id(facts.author)),
        "conformsTo": references(profiles),
        "mainEntity": Ref(workflow_id),
        "hasPart": references(dict.fromkeys([workflow_id, *facts.parts])),
        "mentions": some(mentions),
    }
