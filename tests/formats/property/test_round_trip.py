"""What is printed reads back as the same: Makeflow, JSON and rules files, from graphs and from documents."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.file_names import plain_name
from shoal.core.graph import Graph, GraphBuilder
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile, needs_shell
from shoal.formats.jx import parse_json
from shoal.formats.makeflow import Makeflow, build_graph, parse_makeflow
from shoal.formats.makeflow.graphs import makeflow_from_graph
from shoal.formats.makeflow.json_form import read_json_workflow, write_json
from shoal.formats.makeflow.writer import write_makeflow
from shoal.formats.rules import api
from shoal.formats.rules.api import Rules
from shoal.formats.rules.writer import verbatim, write_rules

TRICKY = "ab Z0_./-,+%@:;=<>\"'$#\\{}()[]*&|!?~^`\n\r\t\x0b\u00e9\u2028"
FRAGMENTS = [
    *TRICKY,
    *("->", "  ", "\\\n", "\r\n", "$(A)", "${A}", "$$", "LOCAL ", "MAKEFLOW ", ".MAKEFLOW", "export ", "{out}", "{{"),
    *("}}", "{needs[0]}", "{a.b}", "${", "\\n", "'a b'", '"a  b"', '"$x"', "'\\'", "# ", "@A=", "\\u0041"),
]
AUTOMATIC = ("CATEGORY", "CORES", "OMP_NUM_THREADS", "MEMORY", "DISK", "GPUS", "WALL_TIME")
"""What Makeflow puts into the environment of jobs by itself."""

texts = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join)
# A command called like a modifier is given a blank in front; nothing else changes.
commands = texts.filter(lambda text: not text.startswith(("LOCAL", "MAKEFLOW")))
sizes = st.one_of(st.integers(1, 2**42), st.integers(1, 2**20).map(lambda megabytes: megabytes * 2**20))
amounts = st.one_of(st.just(FRACTION), st.integers(1, 10**7))


@st.composite
def profiles(draw: st.DrawFn, *, full: bool) -> Profile:
    """A profile that Makeflow's languages can say or, in full, any that a rules file can say."""
    wanted = {
        "cores": draw(st.integers(0, 10**6) if full else amounts),
        "memory": draw(st.sampled_from([0, 1]) | sizes),
        "disk": draw(st.just(0) | sizes),
        "gpus": draw(st.just(0) | amounts),
        "licence": draw(st.just(0) | amounts) if full else 0,
    }
    names = st.sampled_from(["A", "PATH_X", "b1"])
    return Profile(
        category=draw(st.sampled_from(["", "one", "two words", "#$'"])),
        resources=Resources.of(wanted),
        retries=draw(st.integers(0, 3)) if full else 0,
        timeout=draw(st.none() | st.integers(1, 10**6).map(float) | st.integers(1, 10**9).map(lambda n: n / 1000)),
        environment=tuple(sorted(draw(st.dictionaries(names, texts | st.just(""), max_size=2)).items())),
        directory=draw(st.none() | texts) if full else None,
        cores_declared=draw(st.booleans()),
        shell=draw(st.sampled_from(["", "strict", "zsh -e"])) if full else "",
    )


@st.composite
def graphs(draw: st.DrawFn, *, full: bool) -> Graph:
    """A few commands; in full also groups, names of their own and order without files."""
    builder = GraphBuilder("g")
    choices = draw(st.lists(profiles(full=full), min_size=1, max_size=3))
    files: list[str] = draw(st.lists(texts, max_size=3, unique_by=plain_name))

    def is_new(name: str) -> bool:
        return plain_name(name) not in map(plain_name, files)

    for number in range(draw(st.integers(1, 5))):
        inputs = draw(st.lists(st.sampled_from(files), max_size=3, unique=True)) if files else []
        outputs = [name for name in draw(st.lists(texts, max_size=2, unique_by=plain_name)) if is_new(name)]
        files += outputs
        after = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if full and number else []
        action = draw(st.none() | commands) if full and not outputs else draw(commands)
        name = f"task {number} of the graph" if full and not outputs else ""
        # Order can only be said of tasks that have a name of their own.
        after = [other for other in after if not builder.graph.output_names(other)]
        profile = draw(st.sampled_from(choices))
        builder.task(name, action, inputs=inputs, outputs=outputs, after=after, profile=profile)
    return builder.build()


def summary(graph: Graph, *, leave_out: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """Everything a graph says of its tasks, in their order; variables named in `leave_out` do not count."""
    found = []
    for task in range(len(graph)):
        profile = graph.profile_of(task)
        environment = [pair for pair in profile.environment if pair[0] not in leave_out]
        found.append(
            (
                graph.names[task],
                graph.actions[task],
                graph.input_names(task),
                graph.output_names(task),
                [graph.names[other] for other in graph.after_of(task)],
                (profile.category, profile.resources, profile.retries, profile.timeout, profile.directory),
                profile.declares("cores"),
                environment,
            )
        )
    return found


def shell_of(task: int, graph: Graph) -> str:
    """What runs the command of a task; the usual ones do not differ for a command that needs none."""
    action, shell = graph.actions[task], graph.profile_of(task).shell or "sh"
    if not isinstance(action, str) or (shell in ("sh", "strict") and not needs_shell(action)):
        return ""
    return shell


def from_makeflow(text: str) -> Makeflow:
    return parse_makeflow(text.encode("utf-8", "surrogateescape"), source="w.mf", environment={})


def from_json(text: str) -> Makeflow:
    return read_json_workflow(parse_json(text.encode("utf-8", "surrogateescape"), "w.json"), "w.json", {})


def rules_graph(text: str) -> Graph:
    rules = Rules("flow.py")
    names: dict[str, object] = {"file": api.file, "shell": api.shell, "task": api.task, "__name__": "shoal_rules"}
    with api.collecting(rules):
        exec(compile(text.replace("from shoal import", "#"), "flow.py", "exec", dont_inherit=True), names)
    return rules.graph([], lambda name: False)[0]


@given(graphs(full=False))
@settings(max_examples=60, deadline=None)
def test_a_graph_printed_as_makeflow_reads_back_as_the_same(graph: Graph) -> None:
    again = build_graph(from_makeflow(write_makeflow(makeflow_from_graph(graph))))
    assert summary(again, leave_out=AUTOMATIC) == summary(graph)


@given(graphs(full=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_graph_printed_as_json_reads_back_as_the_same(graph: Graph, pretty: bool) -> None:
    again = build_graph(from_json(write_json(makeflow_from_graph(graph), pretty)))
    assert summary(again, leave_out=AUTOMATIC) == summary(graph)


@given(graphs(full=True))
@settings(max_examples=60, deadline=None)
def test_a_graph_printed_as_rules_loads_to_the_same(graph: Graph) -> None:
    def by_name(found: Graph) -> list[tuple[Any, ...]]:
        told = zip(summary(found), map(shell_of, range(len(found)), [found] * len(found)), strict=True)
        return sorted(((*task, shell) for task, shell in told), key=lambda task: str(task[0]))

    assert by_name(rules_graph(write_rules(graph))) == by_name(graph)


@given(texts)
@settings(max_examples=300, deadline=None)
def test_braces_of_a_command_survive_the_template_they_are_read_as(command: str) -> None:
    graph = rules_graph(f"task('t', run={verbatim(command)!r})")
    assert graph.actions == [command]


LINES = st.sampled_from(
    [
        *(
            "A=1",
            "A=two words",
            'A="q" \\#',
            "export A",
            "export B=b c",
            "CORES=2",
            "CORES=0.5",
            "MEMORY=100",
            "A+=more",
        ),
        *("MEMORY=1500K", "GPUS=1", "OMP_NUM_THREADS=3", ".MAKEFLOW CATEGORY x", ".MAKEFLOW CATEGORY y", "CATEGORY=z"),
        *(".MAKEFLOW CATEGORY default", ".MAKEFLOW MODE MIN_WASTE", ".MAKEFLOW WALL_TIME 60", "MAKEFLOW_OUTPUTS=a b"),
        *(
            ".SIZE f\\ 1 3G",
            "BATCH_LOCAL=yes",
            "RULE",
            "RULE",
            "RULE",
            "RULE A=own",
            "RULE MEMORY=7",
            "RULE CATEGORY=y",
        ),
        *("LOCAL RULE", "MAKEFLOW RULE", "RENAME"),
    ]
)


def makeflow_text(lines: list[str]) -> str:
    """The lines, with rules of their own names in place of `RULE`."""
    found = []
    for number, line in enumerate(lines):
        word, _, variable = line.partition(" ")
        if word == "RULE":
            found += [f"o{number}: in", *([variable] if variable else []), f'\tmake "$(B)" \\$A o{number}']
        elif word == "LOCAL":
            found += [f"o{number} p{number}:", "\tLOCAL do it"]
        elif line == "MAKEFLOW RULE":
            found += [f"o{number}: in", '\tMAKEFLOW "sub flow"']
        elif word == "RENAME":
            found += [f"o{number}->there: in->x also", "\tdo it"]
        else:
            found.append(line)
    return "B=start\n" + "\n".join(found) + "\n"


def described(makeflow: Makeflow) -> list[tuple[Any, ...]]:
    """What the graph does not say of a document's rules."""
    return [(rule.local, rule.workflow, rule.renames, rule.category) for rule in makeflow.rules]


def without_renames(makeflow: Makeflow) -> Graph:
    """The graph as if files kept their names."""
    for rule in makeflow.rules:
        rule.renames = ()
    return build_graph(makeflow)


@given(st.lists(LINES, max_size=14))
@settings(max_examples=150, deadline=None)
def test_a_written_makeflow_document_reads_back_unchanged(lines: list[str]) -> None:
    first = from_makeflow(makeflow_text(lines))
    again = from_makeflow(write_makeflow(first))
    assert described(again) == described(first)
    assert again.exports == first.exports
    assert (again.inputs, again.outputs, again.sizes) == (first.inputs, first.outputs, first.sizes)
    for rule in first.rules:
        assert again.categories[rule.category].mode == first.categories[rule.category].mode
    assert summary(without_renames(again)) == summary(without_renames(first))


@given(st.lists(LINES, max_size=14))
@settings(max_examples=150, deadline=None)
def test_a_makeflow_document_is_the_same_in_json(lines: list[str]) -> None:
    first = from_makeflow(makeflow_text(lines))
    again = from_json(write_json(first))
    assert described(again) == described(first)
    assert (again.inputs, again.outputs) == (first.inputs, first.outputs)
    # Of a resource JSON keeps the value that counts in the end; names that JSON must export to say them are new.
    beside = ("CORES", "MEMORY", "GPUS", "WALL_TIME", "OMP_NUM_THREADS", "MAKEFLOW_OUTPUTS")
    expected = summary(without_renames(first), leave_out=beside)
    assert summary(without_renames(again), leave_out=beside) == expected
    third = from_json(write_json(again))
    assert summary(without_renames(third)) == summary(without_renames(again))
