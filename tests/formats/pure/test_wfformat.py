"""Reading WfFormat, the graph of a trace, writing it again, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.graph import GraphBuilder
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile
from shoal.errors import InputError
from shoal.formats.wfformat import (
    WorkflowTrace,
    describe_graph,
    is_wfformat,
    read_wfformat,
    schema_problems,
    trace_graph,
    write_wfformat,
)
from shoal.formats.wfformat.trace import Execution, TraceTask
from shoal.sim.predictions import predict
from support.wftraces import SHAPES, VERSIONS, Value, split_search_join

NODE = Resources.of({"cores": 2 * FRACTION, "memory": 64 << 30})


def read(value: Value) -> WorkflowTrace:
    return read_wfformat(json.dumps(value).encode(), "trace.json")


def refused(value: Value) -> str:
    with pytest.raises(InputError) as caught:
        read(value)
    return str(caught.value)


def tiny() -> Value:
    """Two tasks and the file between them."""
    return {
        "name": "tiny",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    {"name": "first", "id": "a", "parents": [], "children": ["b"], "outputFiles": ["f"]},
                    {"name": "second", "id": "b", "parents": ["a"], "children": [], "inputFiles": ["f"]},
                ],
                "files": [{"id": "f", "sizeInBytes": 10}],
            },
            "execution": {
                "makespanInSeconds": 3,
                "executedAt": "yesterday",
                "tasks": [{"id": "b", "runtimeInSeconds": 2}, {"id": "a", "runtimeInSeconds": 1.5}],
            },
        },
    }


def tasks(value: Value) -> list[Value]:
    found: list[Value] = value["workflow"]["specification"]["tasks"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read_in_every_version(shape: str, version: str) -> None:
    maker = SHAPES[shape]()
    assert list(schema_problems(maker.value(version))) == []
    trace = read_wfformat(maker.text(version), "trace.json")
    assert [task.execution.seconds for task in trace.tasks if task.execution] == [
        task["seconds"] for task in maker.tasks
    ]
    assert {file.id: file.size for file in trace.files} == maker.sizes
    ids = [task.id for task in trace.tasks]
    names = [task.name for task in trace.tasks]
    for task, made in zip(trace.tasks, maker.tasks, strict=True):
        assert [names[parent] for parent in task.parents] == maker.parents(made)
        assert [trace.files[file].id for file in task.outputs] == made["outputs"]
        assert task.category == made["program"]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_trace_that_is_written_and_read_again_is_the_same(shape: str, version: str) -> None:
    trace = read_wfformat(SHAPES[shape]().text(version), "trace.json")
    written = write_wfformat(trace, version)
    assert list(schema_problems(written)) == []
    assert read(written) == trace


@pytest.mark.parametrize("shape", SHAPES)
def test_every_version_can_be_written_from_every_other(shape: str) -> None:
    for version in VERSIONS:
        trace = read_wfformat(SHAPES[shape]().text(version), "trace.json")
        for other in VERSIONS:
            written = write_wfformat(trace, other)
            assert list(schema_problems(written)) == []
            again = read(written)
            assert [task.parents for task in again.tasks] == [task.parents for task in trace.tasks]
            assert [task.execution and task.execution.seconds for task in again.tasks] == [
                task.execution and task.execution.seconds for task in trace.tasks
            ]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_predicted_run_is_never_shorter_than_its_lower_bounds(shape: str) -> None:
    trace = read_wfformat(SHAPES[shape]().text(), "trace.json")
    graph = trace_graph(trace, "trace.json")
    seconds = [task.execution.seconds if task.execution else 0.0 for task in trace.tasks]
    forecast = predict(graph, seconds, NODE)
    assert forecast.tasks == len(trace.tasks)
    assert forecast.makespan >= forecast.lower_bound * (1 - 1e-9)
    assert forecast.makespan <= sum(seconds) * (1 + 1e-9)
    assert forecast.utilisation == pytest.approx(sum(seconds) / 2 / forecast.makespan)
    alone = predict(graph, seconds, Resources.of({"cores": FRACTION, "memory": 64 << 30}))
    assert alone.makespan == pytest.approx(sum(seconds))


def test_a_chain_takes_as_long_as_its_tasks_and_a_bag_as_long_as_its_work() -> None:
    builder = GraphBuilder()
    for number in range(4):
        builder.task("", f"step {number}", outputs=[f"c{number}"], inputs=[f"c{number - 1}"] if number else [])
    chain = predict(builder.build(), [1.0, 2.0, 3.0, 4.0], NODE)
    assert (chain.makespan, chain.critical_path, chain.area) == (10.0, 10.0, 5.0)
    builder = GraphBuilder()
    for number in range(6):
        builder.task("", f"work {number}", outputs=[f"b{number}"])
    bag = predict(builder.build(), [1.0] * 6, NODE)
    assert (bag.makespan, bag.utilisation, bag.critical_path) == (3.0, 1.0, 1.0)


def test_tasks_that_are_not_wanted_or_run_nothing_take_no_time() -> None:
    builder = GraphBuilder()
    builder.task("", "a", outputs=["a"])
    builder.task("", "b", outputs=["b"])
    builder.task("both", None, inputs=["a", "b"])
    forecast = predict(builder.build(), [5.0, 7.0, 100.0], NODE, wanted=bytearray([1, 0, 1]))
    assert (forecast.tasks, forecast.makespan, forecast.critical_path) == (1, 5.0, 5.0)


def test_the_graph_of_a_trace_has_its_tasks_commands_files_and_resources() -> None:
    trace = read_wfformat(split_search_join(3).text(), "trace.json")
    graph = trace_graph(trace, "trace.json")
    assert graph.names[1] == "index_ID000002"
    assert graph.actions[1] == "index reference -o reference.idx"
    assert graph.input_names(2) == ["reference.idx", "reference.tbl", "query.0"]
    assert graph.profile_of(1).resources == Resources.of({"cores": FRACTION, "memory": 40_000_000})
    assert graph.profile_of(2).category == "search"


def test_one_core_that_was_recorded_counts_as_asked_for() -> None:
    value = split_search_join(3).value()
    assert value["workflow"]["execution"]["tasks"][1]["coreCount"] == 1
    del value["workflow"]["execution"]["tasks"][2]["coreCount"]
    graph = trace_graph(read(value), "trace.json")
    assert [graph.profile_of(task).declares("cores") for task in (1, 2)] == [True, False]


def test_a_parent_without_a_file_in_between_comes_first_all_the_same() -> None:
    value = tiny()
    tasks(value)[1]["inputFiles"] = []
    graph = trace_graph(read(value), "trace.json")
    assert list(graph.predecessors_of(1)) == [0]


@pytest.mark.parametrize(
    ("program", "arguments", "line"),
    [
        ("cp", ("a b", "c"), "cp 'a b' c"),
        ("bwa", ("mem", "ref", ">", "out.sam"), "bwa mem ref > out.sam"),
        ("/bin/sh", ("-c", "a | b"), "a | b"),
        ("set -e\ncat x", (), "set -e\ncat x"),
        ("", (), ""),
    ],
)
def test_a_recorded_command_becomes_a_shells_line(program: str, arguments: tuple[str, ...], line: str) -> None:
    assert TraceTask("a", "a", program=program, arguments=arguments).command_line == line


def test_the_whole_line_in_the_arguments_of_a_traced_makeflow_is_the_command() -> None:
    value = tiny()
    value["runtimeSystem"] = {"name": "Makeflow", "version": "7"}
    runs = value["workflow"]["execution"]["tasks"]
    runs[0]["command"] = {"program": "tool_index", "arguments": ["./tool", "index", "*.fa", ">", "f"]}
    runs[1]["command"] = {"program": "cat", "arguments": ["cat", "f"]}
    assert trace_graph(read(value), "trace.json").actions == ["cat f", "./tool index *.fa > f"]
    value["runtimeSystem"]["name"] = "Pegasus"
    assert trace_graph(read(value), "trace.json").actions[0] == "cat cat f"


def test_dependencies_that_are_nowhere_recorded_are_those_of_the_files() -> None:
    value = tiny()
    tasks(value)[0]["children"] = tasks(value)[1]["parents"] = []
    assert [task.parents for task in read(value).tasks] == [(), (0,)]


def test_children_that_are_nowhere_recorded_are_not_missed() -> None:
    value = tiny()
    tasks(value)[0]["children"] = []
    assert read(value) == read(tiny())


def test_a_trace_without_a_list_of_files_has_files_of_unknown_size() -> None:
    value = tiny()
    del value["workflow"]["specification"]["files"]
    assert [(file.id, file.size) for file in read(value).files] == [("f", 0)]


def test_a_trace_that_was_never_executed_keeps_its_commands_when_it_is_written() -> None:
    value = tiny()
    del value["workflow"]["execution"]
    tasks(value)[0]["command"] = {"program": "make", "arguments": ["f"]}
    trace = read(value)
    assert trace.tasks[0].command_line == "make f"
    assert trace.tasks[0].execution is None
    written = write_wfformat(trace)
    assert "execution" not in written["workflow"]
    assert read(written) == trace


def test_a_list_of_relatives_in_14_may_hold_names_or_ids() -> None:
    for reference in ("first_ID1", "ID1"):
        task = {"name": "second_ID2", "id": "ID2", "type": "compute", "parents": [reference]}
        first = {"name": "first_ID1", "id": "ID1", "type": "compute"}
        workflow = {"makespanInSeconds": 1, "executedAt": "now", "tasks": [task, first]}
        trace = read({"name": "x", "schemaVersion": "1.4", "workflow": workflow})
        assert [task.parents for task in trace.tasks] == [(1,), ()]
        assert [task.category for task in trace.tasks] == ["second", "first"]


def _set(path: str, new: Any) -> Callable[[Value], None]:
    """A change of one place; the path is as in error messages."""

    def change(value: Value) -> None:
        steps: list[str | int] = []
        for word in path.replace("]", "").replace("[", ".").split("."):
            steps.append(int(word) if word.isdecimal() else word)
        place: Any = value
        for step in steps[:-1]:
            place = place[step]
        place[steps[-1]] = new

    return change


SPECIFICATION = "workflow.specification"
WRONG = [
    (_set("name", 3), "'name' must be a string, not 3 (at name)"),
    (_set("workflow", []), "'workflow' must be an object, not a list"),
    (_set(f"{SPECIFICATION}.tasks", []), f"must have at least one item (at {SPECIFICATION}.tasks)"),
    (_set(f"{SPECIFICATION}.tasks[1]", {"id": "b"}), f"must have a field 'name' (at {SPECIFICATION}.tasks[1])"),
    (_set(f"{SPECIFICATION}.files[0].sizeInBytes", -1), "must be at least 0, not -1"),
    (_set(f"{SPECIFICATION}.files[0].sizeInBytes", 1.5), "must be a whole number, not 1.5"),
    (_set(f"{SPECIFICATION}.files[0].sizeInBytes", 1e30), "must be between 0 and"),
    (_set(f"{SPECIFICATION}.files[0].id", "g"), f"the file 'f' is not in the list of files (at {SPECIFICATION}.tasks["),
    (_set(f"{SPECIFICATION}.tasks[1].id", "a"), "there are two tasks 'a'"),
    (_set(f"{SPECIFICATION}.tasks[1].id", ""), "a task must have an id"),
    (
        _set(f"{SPECIFICATION}.tasks[1].parents", ["c"]),
        f"unknown task 'c' (at {SPECIFICATION}.tasks[1].parents[0])",
    ),
    (_set(f"{SPECIFICATION}.tasks[1].parents", []), "'a' has 'b' as a child, but 'b' does not have it as a parent"),
    (_set(f"{SPECIFICATION}.tasks[0].children", ["b", "a"]), "does not have it as a parent"),
    (_set(f"{SPECIFICATION}.tasks[1].outputFiles", ["f"]), "two tasks make the file 'f': 'a' and 'b'"),
    (_set(f"{SPECIFICATION}.tasks[0].inputFiles", ["f"]), "task 'a' reads a file that it makes itself"),
    (_set("workflow.execution.tasks[0].id", "c"), "the task 'c' is not in the specification"),
    (_set("workflow.execution.tasks[0].id", "a"), "task 'a' is listed twice"),
    (_set("workflow.execution.tasks[0].runtimeInSeconds", -2), "'runtimeInSeconds' must be between 0 and"),
    (_set("workflow.execution.tasks[0].runtimeInSeconds", "2"), 'must be a number, not "2"'),
    (_set("workflow.execution.tasks[0].coreCount", 0), "must be at least 1, not 0"),
    (_set("schemaVersion", "1.3"), "this is WfFormat 1.3, and only 1.4 to 1.6 can be read"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_an_error_names_the_path_of_the_value(change: Callable[[Value], None], message: str) -> None:
    value = tiny()
    change(value)
    said = refused(value)
    assert message in said
    assert said.startswith("trace.json: ")


def test_a_cycle_is_named_task_by_task() -> None:
    value = tiny()
    first, second = tasks(value)
    first["parents"], second["children"] = ["b"], ["a"]
    assert "the tasks form a cycle: 'a' -> 'b' -> 'a'" in refused(value).replace(
        "'b' -> 'a' -> 'b'", "'a' -> 'b' -> 'a'"
    )


def test_a_file_without_its_maker_among_the_parents_is_a_contradiction() -> None:
    value = tiny()
    tasks(value).append({"name": "third", "id": "c", "parents": ["b"], "children": [], "inputFiles": ["f"]})
    tasks(value)[1]["children"] = ["c"]
    assert "task 'c' reads a file that 'a' makes, but does not have it as a parent" in refused(value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'{"name": "x",\n "schemaVersion" "1.5"}', "trace.json:2:18: "),
        (b'{"name": "x",\r\n "schemaVersion" "1.5"}', "trace.json:2:18: "),
        (b'{"name": ', "trace.json:1:9: the JSON ends too early"),
        (b"", "trace.json:1:1: the JSON ends too early"),
        (b'{"name": "\xff"}', "trace.json:1:11: the file is not UTF-8"),
        (b"[" * 100_000, "trace.json:1: the JSON is nested too deeply"),
        (b"[1]", "trace.json: the file must be an object, not a list"),
    ],
)
def test_text_that_is_no_json_is_refused_with_its_position(text: bytes, place: str) -> None:
    with pytest.raises(InputError) as caught:
        read_wfformat(text, "trace.json")
    assert str(caught.value).startswith(place)


def test_a_trace_is_known_by_its_content() -> None:
    text = split_search_join(3).text()
    assert is_wfformat(text)
    assert is_wfformat(text[:300])
    assert is_wfformat(b"\xef\xbb\xbf\n" + text)
    assert is_wfformat(json.loads(text))
    assert is_wfformat(b'{"workflow": {"specification": {"tasks": []}}}')
    for other in (b"a: b\n\tcp b a\n", b'{"rules": [{"command": "true"}]}', b'["schemaVersion"]', b"", b"{}"):
        assert not is_wfformat(other)
    assert not is_wfformat({"rules": []})
    assert not is_wfformat(3)


def test_a_graph_is_described_with_ids_the_schema_allows() -> None:
    builder = GraphBuilder("flow.py")
    builder.task("out dir/a b", "cp 'x y' 'out dir/a b'", inputs=["x y"], outputs=["out dir/a b"])
    builder.task("out_dir_a_b", "touch z", outputs=["z"], inputs=["out dir/a b"], profile=Profile("kind_2"))
    builder.task("all", None, inputs=["z"])
    builder.task("all", None, after=[2])
    graph = builder.build()
    executions = [Execution(1.0, cores=1.0), None, None, None]
    trace = describe_graph(graph, "flow.py", executions, [5, 6, 7])
    for version in VERSIONS:
        written = write_wfformat(trace, version)
        assert list(schema_problems(written)) == []
        again = read(written)
        assert [task.parents for task in again.tasks] == [(), (0,), (1,), (2,)]
        assert [task.command_line for task in again.tasks] == ["cp 'x y' 'out dir/a b'", "touch z", "", ""]
        assert [task.execution is not None for task in again.tasks] == [True, False, True, True]
        assert again.tasks[1].category == "kind_2"
    assert len({task.id for task in trace.tasks}) == 4


def test_the_schema_s_rules_are_kept_apart_by_version() -> None:
    value = split_search_join(3).value("1.6")
    value["workflow"]["specification"]["metrics"] = {"numberOfTasks": -1}
    assert [problem.path for problem in schema_problems(value)] == ["workflow.specification.metrics.numberOfTasks"]
    value["schemaVersion"] = "1.5"
    assert list(schema_problems(value)) == []
    tasks(value)[0]["id"] = "a b"
    assert list(schema_problems(value)) == []
    value["schemaVersion"] = "1.6"
    del value["workflow"]["specification"]["metrics"]
    assert [problem.kind for problem in schema_problems(value)] == ["pattern"]
