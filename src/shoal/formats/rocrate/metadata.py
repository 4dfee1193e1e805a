"""Builds the metadata of a crate, entity by entity, from the facts of a run.

A run with descriptions of its tasks is a Provenance Run Crate: each task is a `CreateAction` whose instrument is the
tool of its category; each category is a `HowToStep` with a `ControlAction`; the run of the engine is an
`OrganizeAction`. A run without descriptions of tasks is a Workflow Run Crate. Only the number of each task is kept in
memory, so the metadata can be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.formats.rocrate import entities as e
from shoal.formats.rocrate.entities import Entity, Quantity, Ref
from shoal.formats.rocrate.facts import RunFacts, TaskFacts, encoded, fragment

_PROFILES = (e.PROCESS_RUN, e.WORKFLOW_RUN_CRATE, e.PROVENANCE_RUN, e.WORKFLOW_CRATE)


def crate_entities(facts: RunFacts) -> Iterator[Entity]:
    """Yields every entity of the crate, the metadata file and the crate itself first."""
    return _Builder(facts).entities()


class _Builder:
    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.agent = Ref(e.person_id(facts.author))
        self.actions = [Ref(e.task_id(number)) for number in facts.numbers]
        self.profiles = [one for one in _PROFILES if self.actions or one is not e.PROVENANCE_RUN]
        self.parameters = {
            name: value for name, equals, value in (word.partition("=") for word in facts.words) if equals and name
        }
        self._values: dict[str, None] = {}
        """Identifiers of the values that are already written."""
        self._quantities: dict[Quantity, None] = {}
        self._environments: dict[tuple[tuple[str, str | None], ...], Ref | list[Ref]] = {}
        self._tools = [Ref(fragment("tool", name)) for name in facts.steps]

    def entities(self) -> Iterator[Entity]:
        facts = self.facts
        yield e.descriptor()
        yield e.root(facts, [identifier for identifier, _, _ in self.profiles], [Ref(e.RUN), *self.actions])
        for one in self.profiles:
            yield e.profile(*one)
        yield e.person(facts.author)
        yield e.licence_entity(facts.licence)
        yield e.language(facts.workflow.language)
        yield e.engine(facts.version)
        yield from self._workflow()
        yield from self._nodes()
        yield self._run()
        if self.actions:
            yield from self._organization()
        for task in facts.tasks:
            yield from self._task(task)
        for file in facts.files:
            yield e.file(file)
        for quantity in self._quantities:
            yield e.quantity_entity(quantity)

    def _workflow(self) -> Iterator[Entity]:
        facts = self.facts
        names = facts.steps if self.actions else []
        yield e.workflow(
            facts.workflow,
            [fragment("tool", name) for name in names],
            [fragment("step", name) for name in names],
            [fragment("parameter", name) for name in self.parameters],
        )
        for number, name in enumerate(names):
            yield e.tool(name)
            yield e.step(name, facts.positions[number] if facts.positions is not None else None)
        for name, value in self.parameters.items():
            yield from e.parameter(name, value)

    def _nodes(self) -> Iterator[Entity]:
        for position, node in enumerate(self.facts.nodes):
            amounts = [(e.CORES, node.cores), (e.MEMORY_SIZE, float(node.memory))]
            uses = []
            for quantity, amount in amounts:
                if amount:
                    uses.append(e.value_id(quantity, amount))
                    yield from self._value(quantity, amount)
            yield e.node(position, node, uses)

    def _run(self) -> Entity:
        """Returns the entity of the run as a whole."""
        facts = self.facts
        name = f"Run {facts.run} of {facts.workflow.name}"
        entity = e.action("CreateAction", e.RUN, name, facts.started, facts.ended, facts.error)
        words = " ".join([facts.workflow.name, *facts.words])
        entity["description"] = f"shoal run {words}"
        entity["instrument"] = Ref(encoded(facts.workflow.place))
        entity["agent"] = self.agent
        objects = [*facts.inputs, *(fragment("value", name) for name in self.parameters)]
        if objects:
            entity["object"] = e.references(objects)
        if facts.outputs:
            entity["result"] = e.references(facts.outputs)
        return entity

    def _organization(self) -> Iterator[Entity]:
        """Yields the action of the engine, and one control action per step with all its tasks."""
        facts = self.facts
        controlled: list[list[Ref]] = [[] for _ in facts.steps]
        for step, reference in zip(facts.step_of, self.actions, strict=True):
            controlled[step].append(reference)
        identifiers = [fragment("control", name) for name in facts.steps]
        name = f"Run of Shoal {facts.version}"
        entity = e.action("OrganizeAction", e.ENGINE_RUN, name, facts.started, facts.ended, facts.error)
        entity["instrument"] = Ref(e.ENGINE)
        entity["agent"] = self.agent
        entity["object"] = e.references(identifiers)
        entity["result"] = Ref(e.RUN)
        if facts.nodes:
            entity["location"] = e.references(map(e.node_id, range(len(facts.nodes))))
        yield entity
        for identifier, category, tasks in zip(identifiers, facts.steps, controlled, strict=True):
            yield {
                "@id": identifier,
                "@type": "ControlAction",
                "name": f"Tasks of {category}",
                "instrument": Ref(fragment("step", category)),
                "object": e.some(tasks),
            }

    def _task(self, task: TaskFacts) -> Iterator[Entity]:
        entity = e.task_action(task, self._tools[task.step], self.agent)
        used = [(e.CPU, task.cpu), (e.ATTEMPTS, float(task.attempts))]
        if task.memory:
            used.append((e.MEMORY, float(task.memory)))
        if task.tasks > 1:
            used += [(e.TASKS, float(task.tasks)), (e.FAILURES, float(task.failed))]
        entity["resourceUsage"] = [Ref(e.value_id(quantity, amount)) for quantity, amount in used]
        if task.environment:
            if task.environment not in self._environments:
                yield from self._variables(task.environment)
            entity["environment"] = self._environments[task.environment]
        yield entity
        for quantity, amount in used:
            yield from self._value(quantity, amount)

    def _variables(self, environment: tuple[tuple[str, str | None], ...]) -> Iterator[Entity]:
        """Yields the variables of an environment that are not written yet: most tasks share them."""
        identifiers = [e.variable_id(name, value) for name, value in environment]
        self._environments[environment] = e.references(identifiers)
        for identifier, (name, value) in zip(identifiers, environment, strict=True):
            if identifier not in self._values:
                self._values[identifier] = None
                yield e.variable(name, value)

    def _value(self, quantity: Quantity, amount: float) -> Iterator[Entity]:
        identifier = e.value_id(quantity, amount)
        if identifier not in self._values:
            self._values[identifier] = None
            self._quantities[quantity] = None
            yield e.value_entity(quantity, amount)
