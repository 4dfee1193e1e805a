"""The metadata of crates, built from made-up runs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from shoal.formats.rocrate.facts import FileFacts, Licence, NodeFacts, Person, RunFacts, TaskFacts, WorkflowFile
from shoal.formats.rocrate.metadata import crate_entities
from shoal.ui.report.crate_files import write_metadata
from support.crates import Crate, check_crate

FILES = [FileFacts("#data/in", "in", False, size=3, sha256="ab"), FileFacts("data/out%20put", "out put", True, size=5)]


def task(number: int, step: int = 0, error: str = "", **more: object) -> TaskFacts:
    plain = TaskFacts(number, f"t{number}", step, "cat in", 1000.0 + number, 1001.5 + number, error, 1, 0.25, 4096, 0)
    return msgspec.structs.replace(plain, **more)


def facts(tasks: Sequence[TaskFacts], steps: Sequence[str] = ("cat",), **more: object) -> RunFacts:
    plain = RunFacts(
        name="a run",
        description="of something",
        published=2000.0,
        author=Person("Ada"),
        licence=Licence("MIT", "https://spdx.org/licenses/MIT"),
        workflow=WorkflowFile("flow.py", "flow.py", "rules", "text/x-python", 10, "0123456789abcdef"),
        version="1.0",
        run="abc",
        started=1000.0,
        ended=1010.0,
        error="",
        words=["all", "size=3"],
        nodes=[NodeFacts("here", 2.0, 1 << 30)],
        steps=steps,
        positions=list(range(len(steps))),
        numbers=[one.number for one in tasks],
        step_of=[one.step for one in tasks],
        tasks=tasks,
        files=FILES,
        parts=["data/out%20put"],
        inputs=["#data/in"],
        outputs=["data/out%20put"],
    )
    return msgspec.structs.replace(plain, **more)


Build = Callable[[RunFacts], Crate]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(run: RunFacts) -> Crate:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "out put").touch()
        (tmp_path / run.workflow.place).touch()
        with open(tmp_path / "ro-crate-metadata.json", "wb") as file:
            write_metadata(file, crate_entities(run))
        return Crate(tmp_path)

    return built


def test_a_run_with_tasks_is_a_provenance_run_crate(build: Build) -> None:
    done = task(0, inputs=["#data/in"], outputs=["data/out%20put"])
    crate = build(facts([done, task(1, 1)], ["cat", "sort"]))
    check_crate(crate)
    action = crate.task("t0")
    assert action["startTime"] == "1970-01-01T00:16:40.000+00:00"
    assert action["endTime"] == "1970-01-01T00:16:41.500+00:00"
    assert [one["name"] for one in crate.refer(action, "object") + crate.refer(action, "result")] == ["in", "out put"]
    assert [one["name"] for one in crate.refer(action, "location")] == ["here"]
    assert crate.used(action) == {"processor time": 0.25, "attempts": 1, "peak memory": 4096}
    assert crate.named("HowToStep", "sort")["position"] == "1"


def test_a_run_without_tasks_is_a_workflow_run_crate(build: Build) -> None:
    crate = build(facts([], []))
    check_crate(crate, ("process", "workflow"))
    assert crate.of_type("OrganizeAction") == []


def test_a_failed_task_says_why(build: Build) -> None:
    crate = build(facts([task(0, error="exit status 3", attempts=2)], error="1 task failed and 0 did not run."))
    check_crate(crate)
    assert crate.task("t0")["error"] == "exit status 3"
    assert crate.used(crate.task("t0"))["attempts"] == 2
    assert crate.run["actionStatus"].endswith("FailedActionStatus")


def test_tasks_that_used_the_same_share_the_value(build: Build) -> None:
    crate = build(facts([task(number) for number in range(10)]))
    check_crate(crate)
    values = [entity for entity in crate.of_type("PropertyValue") if entity["name"] == "peak memory"]
    assert [entity["value"] for entity in values] == [4096]


def test_parameters_are_formal_ones_with_a_value(build: Build) -> None:
    crate = build(facts([task(0)], words=["all", "size=3", "who=a=b", "=x"]))
    check_crate(crate)
    (workflow,) = crate.refer(crate.root, "mainEntity")
    assert [one["name"] for one in crate.refer(workflow, "input")] == ["size", "who"]
    given = [one for one in crate.refer(crate.run, "object") if one["@type"] == "PropertyValue"]
    assert [(one["name"], one["value"]) for one in given] == [("size", "3"), ("who", "a=b")]
    assert [crate.refer(one, "exampleOfWork")[0]["name"] for one in given] == ["size", "who"]


def test_hostile_categories_and_variables_have_identifiers_of_their_own(build: Build) -> None:
    names = ["a b", "a%20b", "x#y", "../..", "é\"'<", "tool", "a?b"]
    variables = (("PATH", "/a b#c"), ("PATH%", "%"))
    tasks = [task(number, number, environment=variables) for number in range(len(names))]
    crate = build(facts(tasks, names))
    check_crate(crate)
    assert [tool["name"] for tool in crate.of_type("SoftwareApplication")] == ["Shoal", *names]
    assert [one["value"] for one in crate.refer(crate.task("t3"), "environment")] == ["/a b#c", "%"]


def test_a_variable_without_a_value_is_one_for_all_tasks(build: Build) -> None:
    crate = build(facts([task(number, environment=(("TOKEN", None),)) for number in range(2)]))
    check_crate(crate)
    (first,), (second,) = (crate.refer(crate.task(name), "environment") for name in ("t0", "t1"))
    assert first is second
    assert (first["@id"], first["name"], "value" in first) == ("#environment-TOKEN", "TOKEN", False)


def test_tasks_taken_together_say_how_many_they_are(build: Build) -> None:
    crate = build(facts([task(0, tasks=30_000, failed=2, error="2 tasks of 30,000 failed", node=-1)]))
    check_crate(crate)
    used = crate.used(crate.task("t0"))
    assert (used["tasks"], used["failed tasks"]) == (30_000, 2)
    assert "location" not in crate.task("t0")


def test_a_checker_finds_what_is_wrong(build: Build) -> None:
    crate = build(facts([task(0)]))
    del crate.task("t0")["instrument"]
    with pytest.raises(ValueError, match="unpack"):
        check_crate(crate)


def test_a_document_without_entities_and_one_of_many_are_both_json() -> None:
    for count in (0, 1, 999, 1000, 1001):
        buffer = io.BytesIO()
        write_metadata(buffer, ({"@id": f"#{number}", "@type": "Thing"} for number in range(count)))
        assert len(json.loads(buffer.getvalue())["@graph"]) == count
