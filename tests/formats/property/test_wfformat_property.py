"""WfFormat under any input: bytes are read or refused with one error; what is written is valid and reads the same."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.policies.order import ORDERS
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Call
from shoal.errors import InputError
from shoal.execution.replay import Scales, replay_graph, safe_name, scaled_size
from shoal.formats.wfformat import (
    WorkflowTrace,
    describe_graph,
    read_wfformat,
    schema_problems,
    trace_graph,
    write_wfformat,
)
from shoal.formats.wfformat.trace import Author, Execution, TraceFile, TraceMachine, TraceRuntimeSystem, TraceTask
from shoal.sim.predictions import predict
from shoal.sim.synthetic_graphs import SHAPES
from support.wftraces import SHAPES as TRACE_SHAPES
from support.wftraces import VERSIONS, split_search_join

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBER = st.one_of(st.none(), st.integers(0, 1 << 40), st.floats(0, 1e9))
JUNK: list[Any] = [None, True, -1, 0, 1.5, 10**30, 1e300, "", "a b", "1.4", [], {}, ["q"], {"id": "x"}]


def read(text: bytes) -> WorkflowTrace | None:
    """The trace, or None if it was refused in one sentence that names the file."""
    try:
        return read_wfformat(text, "trace.json")
    except InputError as error:
        assert str(error).startswith("trace.json:")
        return None


@settings(max_examples=120)
@given(st.binary(max_size=60), st.integers(0, 4000), st.integers(0, 60), st.sampled_from(VERSIONS))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int, cut: int, version: str) -> None:
    text = split_search_join(2).text(version)
    read(noise)
    read(text[:at] + noise + text[at + cut :])
    read(text[:at])


@settings(max_examples=120)
@given(st.integers(0, 1 << 32), st.sampled_from(VERSIONS))
def test_any_change_of_a_value_is_read_or_refused(seed: int, version: str) -> None:
    random = Random(seed)
    value = split_search_join(2).value(version)
    for _ in range(random.randint(1, 3)):
        change_something(value, random)
    trace = read(json.dumps(value).encode())
    if trace is not None:
        for written_as in VERSIONS:
            assert list(schema_problems(write_wfformat(trace, written_as))) == []


def change_something(value: Any, random: Random) -> None:
    """Walks down to a random place and puts something else there, or takes it away."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = random.choice(keys)
        if isinstance(value[key], (dict, list)) and random.random() < 0.85:
            value = value[key]
            continue
        if random.random() < 0.3:
            del value[key]
        else:
            value[key] = deepcopy(random.choice(JUNK))
        return


@st.composite
def traces(draw: st.DrawFn) -> WorkflowTrace:
    """Any trace that a valid file can hold: ids of every allowed kind, and measures or none."""
    version = draw(st.sampled_from(VERSIONS))
    old = version == "1.4"
    ids = draw(st.lists(st.from_regex(r"[0-9a-zA-Z_.-]{1,6}", fullmatch=True), min_size=1, max_size=6, unique=True))
    names = TEXT if old else st.from_regex(r"[0-9a-zA-Z_./:#-]{1,9}", fullmatch=True)
    files = [TraceFile(name, draw(st.integers(0, 1 << 50))) for name in draw(st.lists(names, max_size=8, unique=True))]
    makers = [draw(st.integers(-1, len(ids) - 1)) for _ in files]
    tasks = []
    for number, task_id in enumerate(ids):
        inputs = [file for file, maker in enumerate(makers) if maker < number and draw(st.booleans())]
        parents = {makers[file] for file in inputs if makers[file] >= 0}
        if number and draw(st.booleans()):
            parents.add(draw(st.integers(0, number - 1)))
        outputs = tuple(file for file, maker in enumerate(makers) if maker == number)
        words = tuple(draw(st.lists(TEXT, max_size=3)))
        tasks.append(
            TraceTask(
                task_id,
                draw(TEXT),
                tuple(sorted(parents)),
                tuple(inputs),
                outputs,
                draw(TEXT),
                words,
                draw(TEXT) if old else "",
                draw(st.sampled_from(("compute", "transfer", "auxiliary"))) if old else "",
                draw(executions(old)),
            )
        )
    if old:
        files = in_order_of_use(tasks, files)
    executed = any(task.execution for task in tasks)
    return WorkflowTrace(
        draw(TEXT),
        tuple(tasks),
        tuple(files),
        draw(TEXT),
        "2024-05-01T12:00:00Z",
        version,
        draw(st.one_of(st.none(), st.builds(TraceRuntimeSystem, TEXT, TEXT, TEXT))),
        draw(st.one_of(st.none(), st.builds(Author, TEXT, TEXT, TEXT, TEXT))),
        draw(st.floats(0, 1e9)) if executed or old else None,
        draw(TEXT) if executed or old else "",
        tuple(draw(st.lists(machines(), max_size=2))) if executed or old else (),
    )


def in_order_of_use(tasks: list[TraceTask], files: list[TraceFile]) -> list[TraceFile]:
    """In 1.4 there are no files but those of tasks, so they come in that order; the tasks are changed to fit."""
    used = list(dict.fromkeys(file for task in tasks for file in (*task.inputs, *task.outputs)))
    place = {file: number for number, file in enumerate(used)}
    for number, task in enumerate(tasks):
        inputs, outputs = (tuple(place[file] for file in row) for row in (task.inputs, task.outputs))
        words = (task.program, task.arguments, task.declared_category, task.kind, task.execution)
        tasks[number] = TraceTask(task.id, task.name, task.parents, inputs, outputs, *words)
    return [files[file] for file in used]


def executions(old: bool) -> st.SearchStrategy[Execution | None]:
    cores = st.one_of(st.none(), st.floats(1, 64))
    names = st.lists(TEXT, max_size=1 if old else 2).map(tuple)
    started = st.just("") if old else st.one_of(st.just(""), TEXT)
    measures = [NUMBER] * 7
    run = st.builds(Execution, st.floats(0, 1e6), started, cores, *measures, names, st.integers(-15, 255))
    return st.one_of(st.none(), run)


def machines() -> st.SearchStrategy[TraceMachine]:
    count = st.one_of(st.none(), st.integers(1, 1 << 40))
    return st.builds(
        TraceMachine,
        TEXT,
        st.sampled_from(("", "linux", "macos", "windows")),
        TEXT,
        TEXT,
        count,
        count,
        count,
        TEXT,
        st.just(True),
    )


@settings(max_examples=200)
@given(traces())
def test_a_written_trace_is_valid_and_reads_as_it_was(trace: WorkflowTrace) -> None:
    written = write_wfformat(trace, trace.version)
    assert list(schema_problems(written)) == []
    assert read_wfformat(json.dumps(written).encode(), "trace.json") == trace


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from(sorted(SHAPES)), st.sampled_from(VERSIONS))
def test_any_graph_can_be_described_and_comes_back_with_its_edges_and_commands(
    seed: int, shape: str, version: str
) -> None:
    random = Random(seed)
    graph = SHAPES[shape](random, 20, None)
    executions = [Execution(random.random()) if action and random.random() < 0.7 else None for action in graph.actions]
    trace = describe_graph(graph, "flow", executions, [random.randrange(1000) for _ in graph.file_names])
    written = write_wfformat(trace, version)
    assert list(schema_problems(written)) == []
    again = trace_graph(read_wfformat(json.dumps(written).encode(), "flow"), "flow")
    for task, action in enumerate(graph.actions):
        assert set(again.predecessors_of(task)) == set(graph.predecessors_of(task))
        assert again.actions[task] == (action or ":")


@settings(max_examples=40)
@given(st.integers(0, 1 << 32), st.sampled_from(sorted(SHAPES)), st.integers(1, 5), st.sampled_from(sorted(ORDERS)))
def test_a_forecast_lies_between_its_bounds_and_the_whole_work(seed: int, shape: str, cores: int, order: str) -> None:
    random = Random(seed)
    graph = SHAPES[shape](random, 30, None)
    seconds = [random.choice((0.0, 1.0, random.random())) for _ in range(len(graph))]
    forecast = predict(graph, seconds, Resources.of({"cores": cores * FRACTION}), order)
    assert forecast.lower_bound * (1 - 1e-9) <= forecast.makespan
    # An order that leaves no core idle while a task waits is within twice the bound (Graham).
    assert forecast.makespan <= (forecast.area + forecast.critical_path) * (1 + 1e-9) + 1e-12


@given(st.lists(st.text(max_size=300), max_size=6, unique=True))
def test_names_in_a_replay_are_single_safe_entries_that_differ(ids: list[str]) -> None:
    names = [safe_name(file_id) for file_id in ids if file_id]
    assert len(set(names)) == len(names)
    for name in names:
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert "\0" not in name
        assert len(name.encode()) <= 255


@given(st.sampled_from(sorted(TRACE_SHAPES)), st.floats(0, 1), st.floats(0, 1))
def test_a_replay_writes_what_is_recorded_times_its_scale(shape: str, time: float, data: float) -> None:
    trace = read_wfformat(TRACE_SHAPES[shape]().text(), "trace.json")
    graph = replay_graph(trace, "trace.json", Scales(time, data))
    calls = [action for action in graph.actions if isinstance(action, Call)]
    assert len(calls) == len(graph)
    written = [size for call in calls for _, size in call.arguments[1]]
    assert sorted(written) == sorted(scaled_size(file.size, data) for file in trace.files)
    assert all(maker >= 0 for maker in graph.producer)
    lengths = [call.arguments[2] for call in calls[: len(trace.tasks)]]
    assert lengths == [(task.execution.seconds if task.execution else 0.0) * time for task in trace.tasks]


def test_another_scale_is_another_task() -> None:
    trace = read_wfformat(split_search_join(3).text(), "trace.json")
    fingerprints = []
    for scales in (Scales(), Scales(time=0.5), Scales(data=0.5), Scales(memory=0.5), Scales()):
        actions = replay_graph(trace, "trace.json", scales).actions
        fingerprints.append([action.fingerprint for action in actions if isinstance(action, Call)])
    assert fingerprints[0] == fingerprints[4]
    assert len({tuple(row) for row in fingerprints}) == 4
