"""Workflows written as JSON and JX, the file of options, and the printers: what each says, and what each refuses."""

from __future__ import annotations

import json

import pytest

from shoal.compat.makeflow.run import argv_words
from shoal.core.graph import GraphBuilder
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Call, Profile
from shoal.errors import InputError
from shoal.formats.jx import parse_json
from shoal.formats.makeflow import Makeflow, build_graph, parse_makeflow, subworkflow_command
from shoal.formats.makeflow.graphs import makeflow_from_graph
from shoal.formats.makeflow.json_form import read_json_workflow, read_jx_workflow, write_json
from shoal.formats.makeflow.writer import write_makeflow
from shoal.formats.rules.writer import write_rules
from shoal.formats.source_text import SourceText

ONE_RULE = {"command": "x"}


def read(document: object, environment: dict[str, str] | None = None) -> Makeflow:
    text = document if isinstance(document, str) else json.dumps(document)
    return read_json_workflow(parse_json(text, "w.json"), SourceText("w.json", text), environment or {})


def environment_of(makeflow: Makeflow, rule: int = 0) -> dict[str, str]:
    return dict(build_graph(makeflow).profile_of(rule).environment)


def complaint(document: object) -> InputError:
    with pytest.raises(InputError) as caught:
        read(document)
    return caught.value


def test_a_rule_has_files_command_and_flags() -> None:
    rule = {"command": "make $A '#'  x", "inputs": ["i"], "outputs": ["o", "p"], "local_job": True, "category": "c"}
    [found] = read({"rules": [rule]}).rules
    assert (found.inputs, found.outputs, found.command) == (("i",), ("o", "p"), "make $A '#'  x")
    assert (found.local, found.category, found.line) == (True, "c", 1)


def test_nothing_is_a_modifier_in_a_json_command() -> None:
    [found] = read({"rules": [{"command": "LOCAL MAKEFLOW x"}]}).rules
    assert (found.local, found.workflow, found.command) == (False, "", "LOCAL MAKEFLOW x")


def test_environments_of_rule_category_and_workflow_count_in_this_order() -> None:
    makeflow = read(
        {
            "environment": {"A": "workflow", "B": "workflow", "C": "workflow"},
            "categories": {"c": {"environment": {"B": "category", "C": "category"}}},
            "rules": [{"command": "x", "category": "c", "environment": {"C": "rule"}}, ONE_RULE],
        }
    )
    first, second = environment_of(makeflow), environment_of(makeflow, 1)
    assert [first[name] for name in "ABC"] == ["workflow", "category", "rule"]
    assert [second[name] for name in "ABC"] == ["workflow", "workflow", "workflow"]


def test_a_value_in_the_environment_that_is_no_text_gives_nothing() -> None:
    makeflow = read({"environment": {"A": 5}, "rules": [ONE_RULE]})
    assert "A" in makeflow.exports
    assert "A" not in environment_of(makeflow)


def test_resources_of_a_rule_count_before_those_of_its_category() -> None:
    makeflow = read(
        {
            "categories": {"c": {"resources": {"cores": 2, "memory": 100, "wall-time": 60}}},
            "rules": [{"command": "x", "category": "c", "resources": {"memory": 5, "gpus": 1}}],
        }
    )
    profile = build_graph(makeflow).profile_of(0)
    assert profile.resources == Resources.of({"cores": 2 * FRACTION, "memory": 5 << 20, "gpus": FRACTION})
    assert profile.timeout == 60


def test_one_declared_core_is_distinguished_from_none() -> None:
    document = {
        "categories": {"c": {"resources": {"cores": 1}}},
        "rules": [{"command": "x"}, {"command": "x", "resources": {"cores": 1}}, {"command": "x", "category": "c"}],
    }
    graph = build_graph(read(document))
    assert [graph.profile_of(task).declares("cores") for task in range(3)] == [False, True, True]


def test_environment_counts_before_resources_as_in_the_original() -> None:
    rule = {"command": "x", "resources": {"cores": 2}, "environment": {"CORES": "3"}}
    assert build_graph(read({"rules": [rule]})).profile_of(0).resources.get("cores") == 3 * FRACTION


@pytest.mark.parametrize("value", ["5", 1.5, None, True])
def test_a_resource_that_is_not_a_whole_number_is_ignored_only_by_the_stand_in_for_makeflow(value: object) -> None:
    makeflow = read({"rules": [{"command": "x", "resources": {"memory": value}}]})
    assert dict(build_graph(makeflow, by_jobs=True).profile_of(0).resources.amounts) == {"jobs": FRACTION}
    if value is None:
        assert build_graph(makeflow).profile_of(0).resources.get("memory") == 0
    else:
        with pytest.raises(InputError, match="memory must be a non-negative whole number"):
            build_graph(makeflow)


def test_rules_without_a_category_see_the_variables_of_the_default_category() -> None:
    makeflow = read(
        {
            "default_category": "d",
            "categories": {"d": {"resources": {"cores": 3}, "environment": {"A": "of d"}}},
            "rules": [ONE_RULE],
        }
    )
    assert makeflow.rules[0].category == "default"
    assert environment_of(makeflow)["A"] == "of d"
    assert build_graph(makeflow).profile_of(0).resources.get("cores") == 3 * FRACTION


def test_the_files_to_keep_come_from_the_environment() -> None:
    makeflow = read({"environment": {"MAKEFLOW_OUTPUTS": "a b", "MAKEFLOW_INPUTS": "c"}, "rules": []})
    assert (makeflow.outputs, makeflow.inputs) == (("a", "b"), ("c",))


def test_files_may_have_another_name_where_the_task_runs() -> None:
    files = [{"dag_name": "here", "task_name": "there"}, {"dag_name": "same", "task_name": "same"}, {"dag_name": "a"}]
    [rule] = read({"rules": [{"command": "x", "outputs": files}]}).rules
    assert (rule.outputs, rule.renames) == (("here", "same", "a"), (("here", "there"),))


def test_arguments_reach_the_sub_workflow() -> None:
    rule = {"workflow": "child.jx", "args": {"N": 3, "NAMES": ["a b"], "S": "it's"}}
    [found] = read({"rules": [rule]}).rules
    expected = """shoal run child.jx N=3 'NAMES=["a b"]' 'S="it'"'"'s"'"""
    assert subworkflow_command(found) == expected
    graph = build_graph(read({"rules": [rule]}))
    assert graph.input_names(0) == ["child.jx"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"rules": 5},
        {"rules": [], "categories": 5, "default_category": 5, "define": {"A": 1}, "other": 1},
        {"rules": [{"command": "x", "workflow": None, "resources": 5, "environment": 5, "allocation": 5}]},
        {
            "rules": [
                {"command": "x", "category": 7, "local_job": "yes", "outputs": [{"dag_name": "a", "task_name": 5}]}
            ]
        },
        {"categories": {"a": 5, "b": {"resources": 5}}},
        '# comment\n{"rules":[],}',
    ],
)
def test_what_the_original_ignores_is_ignored(document: object) -> None:
    assert len(read(document).rules) <= 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "a workflow must be an object, not []"),
        ({"rules": [5]}, "rules[0] must be an object, not 5"),
        ({"rules": [{}]}, "rules[0] has neither a command nor a workflow"),
        ({"rules": [ONE_RULE, {"command": 5}]}, "rules[1] has neither a command nor a workflow"),
        ({"rules": [{"command": "x", "workflow": "y"}]}, "rules[0] has both a command and a workflow"),
        ({"rules": [{"command": "x", "inputs": "a"}]}, 'rules[0].inputs must be a list of files, not "a"'),
        ({"rules": [{"command": "x", "outputs": None}]}, "rules[0].outputs must be a list of files, not null"),
        (
            {"rules": [{"command": "x", "outputs": ["a", 5]}]},
            "rules[0].outputs[1] must be a file name or an object, not 5",
        ),
        ({"rules": [{"command": "x", "outputs": [{"name": "a"}]}]}, "rules[0].outputs[0] has no 'dag_name'"),
        ({"rules": [{"command": "x", "resources": {"core": 1}}]}, "rules[0].resources: unknown resource 'core'"),
        ({"rules": [{"command": "x", "allocation": "big"}]}, "rules[0]: unknown allocation 'big'"),
        ({"rules": [{"workflow": "w", "args": [1]}]}, "rules[0].args must be an object, not a list"),
        ({"environment": 5}, "environment must be an object of strings, not 5"),
        ({"environment": {"A=B": "c"}}, "environment contains 'A=B', which is not a valid variable name"),
        (
            {"categories": {"a": {"environment": []}}},
            "categories.a.environment must be an object of strings, not []",
        ),
        ({"categories": {"a": {"resources": {"x": 1}}}}, "categories.a.resources: unknown resource 'x'"),
    ],
)
def test_a_mistake_is_named_with_its_path(document: object, message: str) -> None:
    error = complaint(document)
    assert error.message == message
    assert error.file == "w.json"


def test_a_mistake_is_shown_at_the_object_it_stands_in() -> None:
    text = '{ "rules": [\n  { "command": "x" },\n  { "command": 5 }\n] }'
    error = complaint(text)
    assert (error.line, error.column) == (3, 3)
    assert str(error).splitlines()[1:] == ['      { "command": 5 }', "      ^"]


def test_definitions_of_a_jx_document_give_way_to_those_of_the_command_line() -> None:
    text = '{"define": {"N": 2, "OUT": "o."+N}, "rules": [{"command": "x > "+OUT, "outputs": [OUT]} for i in range(1)]}'
    [own] = read_jx_workflow(text, "w.jx", environment={}, context={}).rules
    [given] = read_jx_workflow(text, "w.jx", environment={}, context={"N": 7}).rules
    assert (own.outputs, given.outputs) == (("o.2",), ("o.7",))
    assert given.command == "x > o.7"


def test_a_file_of_options_becomes_words() -> None:
    text = '{"MAKEFLOW": "W.mf", "max-local": 1, "skip-file-check": null, "local-cores": 1.5, "wrapper": "a b"}'
    assert argv_words(text, "a.json") == [
        "--max-local=1",
        "--skip-file-check",
        "--local-cores=1.5",
        "--wrapper=a b",
        "W.mf",
    ]


@pytest.mark.parametrize("text", ["[]", "5", "{", '{"MAKEFLOW": 5}', '{"wrapper": ["a"]}', '{"-j": 1}', '{"a=b": 1}'])
def test_a_bad_file_of_options_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError) as caught:
        argv_words(text, "a.json")
    assert caught.value.file == "a.json"


def test_a_printed_makeflow_is_the_one_that_people_would_write() -> None:
    makeflow = read(
        {
            "environment": {"LANG": "C"},
            "categories": {"c": {"resources": {"memory": 100}}},
            "rules": [
                {"command": "make a", "outputs": ["a"]},
                {"command": "use a > b", "inputs": ["a"], "outputs": ["b"], "category": "c"},
            ],
        }
    )
    assert write_makeflow(makeflow).splitlines() == [
        "# Written by shoal convert.",
        "export LANG",
        "LANG=C",
        "",
        "a:",
        "\tmake a",
        "",
        ".MAKEFLOW CATEGORY c",
        "MEMORY=100",
        "",
        "b: a",
        "\tuse a > b",
    ]


def test_written_json_has_common_settings_once() -> None:
    text = "export A\nA=1\nMEMORY=5\no:\n\tx\np:\nA=2\n\ty\n"
    printed = json.loads(write_json(parse_makeflow(text, source="w.mf", environment={})))
    assert printed == {
        "environment": {"A": "1"},
        "categories": {"default": {"resources": {"memory": 5}}},
        "rules": [
            {"command": "x", "outputs": ["o"]},
            {"command": "y", "outputs": ["p"], "environment": {"A": "2"}},
        ],
    }


def test_the_own_variables_of_a_default_category_that_is_another_one_stay_with_its_rules() -> None:
    first = read(
        {
            "default_category": "d",
            "categories": {"d": {"environment": {"A": "d"}}, "default": {"environment": {"A": "default"}}},
            "rules": [ONE_RULE, {"command": "y", "category": "d"}, {"command": "z", "category": "e"}],
        }
    )
    again = parse_makeflow(write_makeflow(first), source="w.mf", environment={})
    assert [environment_of(again, rule)["A"] for rule in range(3)] == ["default", "d", "d"]
    in_json = read(write_json(first))
    assert [environment_of(in_json, rule)["A"] for rule in range(3)] == ["default", "d", "d"]


def test_a_command_called_like_a_modifier_is_still_a_command() -> None:
    makeflow = read({"rules": [{"command": "LOCAL x"}]})
    [again] = parse_makeflow(write_makeflow(makeflow), source="w.mf", environment={}).rules
    assert (again.local, again.command) == (False, " LOCAL x")


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"rules": [{"workflow": "w", "args": {"A": 1}}]}, "gives arguments to 'w'"),
        ({"rules": [{"workflow": "a'b\"c"}]}, "both kinds of quotes"),
        ({"environment": {"a.b": "c"}, "rules": []}, "'a.b' is not a valid variable name"),
    ],
)
def test_what_a_makeflow_cannot_say_is_refused(document: object, what: str) -> None:
    with pytest.raises(InputError, match=what):
        write_makeflow(read(document))


def test_arguments_and_allocation_survive_json() -> None:
    document = {"rules": [{"workflow": "w", "args": {"A": [1, {"b": None}]}, "allocation": "max"}]}
    assert json.loads(write_json(read(document), pretty=False)) == document


def function() -> None:
    """Something to call."""


@pytest.mark.parametrize(
    ("action", "profile", "what"),
    [
        (Call(function), Profile(), "calls a Python function"),
        ("x", Profile(directory="d"), "runs in the directory 'd'"),
        ("x", Profile(resources=Resources.of({"licence": 1})), "asks for 'licence'"),
        (None, Profile(), "makes files without an action"),
    ],
)
def test_a_task_that_makeflow_cannot_say_is_named(action: str | Call | None, profile: Profile, what: str) -> None:
    builder = GraphBuilder("g")
    builder.task("", action, outputs=["o"], profile=profile)
    with pytest.raises(InputError, match=f"the task 'o' {what}"):
        makeflow_from_graph(builder.build())


def test_order_through_a_group_becomes_its_files() -> None:
    builder = GraphBuilder("g")
    first = builder.task("", "make a", outputs=["a"])
    group = builder.task("both", None, inputs=["b"], after=[first])
    builder.task("", "use", outputs=["c"], after=[group])
    rules = makeflow_from_graph(builder.build()).rules
    assert [rule.outputs for rule in rules] == [("a",), ("c",)]
    assert rules[1].inputs == ("b", "a")


def test_order_after_a_task_without_files_is_refused_by_name() -> None:
    builder = GraphBuilder("g")
    first = builder.task("first", "true")
    builder.task("second", "true", after=[builder.task("group", None, after=[first])])
    with pytest.raises(InputError, match="'second' depends on 'first' without a file"):
        makeflow_from_graph(builder.build())


def test_a_group_without_successors_is_left_out() -> None:
    builder = GraphBuilder("g")
    builder.task("all", None, after=[builder.task("first", "true")])
    assert [rule.command for rule in makeflow_from_graph(builder.build()).rules] == ["true"]


def test_a_rules_file_has_a_target_for_everything_where_a_usual_one_would_leave_something_out() -> None:
    builder = GraphBuilder("g")
    builder.task("", "x", outputs=["all"])
    builder.task("", "y", outputs=["b"])
    assert "task('default', needs=['all', 'b'])" in write_rules(builder.build())


def test_a_rules_file_cannot_hold_a_function() -> None:
    builder = GraphBuilder("g")
    builder.task("f", Call(function))
    with pytest.raises(InputError, match="the task 'f' calls a Python function"):
        write_rules(builder.build())


def test_two_nameless_tasks_with_one_command_get_names_of_their_own() -> None:
    builder = GraphBuilder("g")
    builder.task("", "true")
    builder.task("", "true")
    text = write_rules(builder.build())
    assert "task('true', run='true')" in text
    assert "task('true (2)', run='true')" in text
