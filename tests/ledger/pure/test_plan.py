"""The planner: which tasks run again and for what reason."""

from __future__ import annotations

from array import array
from hashlib import blake2b

import msgspec
import pytest

from shoal.core.graph import Graph, GraphBuilder, ancestors
from shoal.core.task import Call, Profile
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.identity import FOLDER_UNSEEN, Versions, content_of, place_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, UNSAID, TaskEnded
from shoal.ledger.up_to_date import Plan, Reason, decide


class Memory:
    """Earlier results, as the planner sees them."""

    def __init__(self) -> None:
        self.results: dict[bytes, TaskEnded] = {}
        self.sources: dict[str, tuple[int, int]] = {}
        self.collected: list[bytes] = []
        self.check = BY_TIME

    def result(self, place: bytes) -> TaskEnded | None:
        return self.results.get(place)

    def source(self, name: str, check: int) -> tuple[int, int] | None:
        return self.sources.get(name) if check in (self.check, UNSAID) else None

    def is_interrupted(self, place: bytes) -> bool:
        return False

    def is_collected(self, place: bytes) -> bool:
        return place in self.collected

    def empty(self) -> bool:
        return not self.results


def chain(command: str = "make b") -> Graph:
    """a.txt -> b.txt -> c.txt, then a task without files that comes after the second one."""
    builder = GraphBuilder("Makeflow")
    builder.task("", command, inputs=["a.txt"], outputs=["b.txt"], line=1)
    second = builder.task("", "make c", inputs=["b.txt"], outputs=["c.txt"], line=3)
    builder.task("check", "check", after=[second], line=5)
    return builder.build()


def files(graph: Graph, **changed: tuple[int, int]) -> Versions:
    """Every file there with size 10 and time 100 unless said otherwise; (-1, 0) is a missing one."""
    versions = Versions(graph)
    for number, name in enumerate(graph.file_names):
        versions.sizes[number], versions.times[number] = changed.get(name.replace(".", "_"), (10, 100))
    return versions


def after_a_run(graph: Graph, outcome: str = "ok") -> Memory:
    """What the ledger holds after everything was done once with the files as `files` has them."""
    memory = Memory()
    versions = files(graph)
    memory.sources["a.txt"] = (10, 100)
    for task in range(len(graph)):
        versions.done[task] = 50.0 + task
        outputs = [(10, 100) for _ in graph.outputs_of(task)]
        record = TaskEnded(
            task, 1, outcome, True, 0, 1.0, 50.0 + task, 0.0, 0.0, 0, 0, 0, "",
            place_of(graph, task), content_of(graph, task), versions.digest_of_inputs(task), outputs, None,
            check=BY_TIME,
        )  # fmt: skip
        memory.results[record.place] = record
    return memory


def plan(graph: Graph, memory: Memory, versions: Versions | None = None, force: bool = False) -> Plan:
    wanted = ancestors(graph, range(len(graph)))
    return decide(graph, wanted, memory, versions or files(graph), force=force)


def reasons(made: Plan) -> list[Reason]:
    return [Reason(reason) for reason in made.reasons]


def test_first_run_runs_everything() -> None:
    assert reasons(plan(chain(), Memory())) == [Reason.NEW] * 3


def test_second_run_has_nothing_to_do() -> None:
    graph = chain()
    assert reasons(plan(graph, after_a_run(graph))) == [Reason.UP_TO_DATE] * 3


def test_changed_command_runs_it_and_everything_behind() -> None:
    memory = after_a_run(chain())
    made = plan(chain("make b --better"), memory)
    assert reasons(made) == [Reason.CHANGED, Reason.NEEDS_ANOTHER, Reason.NEEDS_ANOTHER]
    assert made.why(1) == "it depends on 'b.txt', which runs"


def test_saying_that_one_core_is_wanted_changes_no_task() -> None:
    contents = []
    for profile in (Profile(), Profile(cores_declared=True)):
        builder = GraphBuilder("Makeflow")
        builder.task("", "make b", outputs=["b.txt"], profile=profile)
        graph = builder.build()
        contents.append((place_of(graph, 0), content_of(graph, 0)))
    assert contents[0] == contents[1]


def test_changed_source_is_named() -> None:
    graph = chain()
    made = plan(graph, after_a_run(graph), files(graph, a_txt=(11, 100)))
    assert reasons(made)[0] is Reason.INPUT_CHANGED
    assert made.why(0) == "its input 'a.txt' changed"


def test_same_size_but_newer_time_counts_as_changed() -> None:
    graph = chain()
    assert reasons(plan(graph, after_a_run(graph), files(graph, a_txt=(10, 101))))[0] is Reason.INPUT_CHANGED


def test_missing_output_is_made_again() -> None:
    graph = chain()
    made = plan(graph, after_a_run(graph), files(graph, c_txt=(-1, 0)))
    assert reasons(made) == [Reason.UP_TO_DATE, Reason.OUTPUT_MISSING, Reason.NEEDS_ANOTHER]


def test_output_changed_by_hand_is_made_again() -> None:
    graph = chain()
    made = plan(graph, after_a_run(graph), files(graph, b_txt=(10, 999)))
    assert reasons(made)[0] is Reason.OUTPUT_CHANGED
    assert "b.txt" in made.why(0)


def test_failed_task_runs_again() -> None:
    graph = chain()
    assert reasons(plan(graph, after_a_run(graph, "failed")))[0] is Reason.FAILED


def test_task_behind_one_that_ran_since_runs_too() -> None:
    """The second task ran again in a run that was killed before the third: no file tells, its version does."""
    graph = chain()
    memory = after_a_run(graph)
    place = place_of(graph, 1)
    old = memory.results[place]
    fields = {name: getattr(old, name) for name in old.__struct_fields__} | {"ended": 77.0}
    memory.results[place] = TaskEnded(**fields)
    assert reasons(plan(graph, memory)) == [Reason.UP_TO_DATE, Reason.UP_TO_DATE, Reason.INPUT_CHANGED]


def test_force_runs_everything() -> None:
    graph = chain()
    assert reasons(plan(graph, after_a_run(graph), force=True)) == [Reason.FORCED] * 3


def test_only_what_the_targets_need_is_considered() -> None:
    graph = chain()
    made = decide(graph, ancestors(graph, [0]), Memory(), files(graph))
    assert reasons(made) == [Reason.NEW, Reason.NOT_NEEDED, Reason.NOT_NEEDED]
    assert made.to_run() == [0]


def test_identity_does_not_depend_on_position_or_resources() -> None:
    first, second = GraphBuilder(), GraphBuilder()
    second.task("other", "true")
    one = first.task("", "cmd", inputs=["i"], outputs=["o"], profile=Profile(retries=1))
    two = second.task("", "cmd", inputs=["i"], outputs=["o"], profile=Profile(retries=2))
    a, b = first.build(), second.build()
    assert (place_of(a, one), content_of(a, one)) == (place_of(b, two), content_of(b, two))


def test_environment_and_directory_are_part_of_the_content() -> None:
    builder = GraphBuilder()
    plain = builder.task("a", "cmd")
    with_variable = builder.task("b", "cmd", profile=Profile(environment=(("X", "1"),)))
    elsewhere = builder.task("c", "cmd", profile=Profile(directory="d"))
    graph = builder.build()
    assert len({content_of(graph, task) for task in (plain, with_variable, elsewhere)}) == 3


def grouped(*members: str, deep: bool = False) -> Graph:
    """A task behind a group of files, or behind a group of such a group, and a member that is a task."""
    builder = GraphBuilder("flow.py")
    other = builder.task("other", "cmd")
    group = builder.task("inputs", None, inputs=members, after=[other])
    if deep:
        group = builder.task("outer", None, after=[group])
    builder.task("", "sum", outputs=["sum"], after=[group])
    return builder.build()


def reader(graph: Graph) -> int:
    return len(graph) - 1


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("members", "changed"),
    [
        ("abc", {"a": (10, 99)}),  # older than the newest, which stays what it was
        ("abc", {"b": (11, 100)}),
        ("abcd", {"d": (10, 1)}),
        ("ab", {}),
        ("bac", {}),
        ("abd", {}),
    ],
)
def test_no_change_of_a_member_of_a_group_hides_behind_the_others(
    members: str, changed: dict[str, tuple[int, int]], deep: bool
) -> None:
    before, after = grouped(*"abc", deep=deep), grouped(*members, deep=deep)
    memory = after_a_run(before)
    assert reasons(plan(before, memory)) == [Reason.UP_TO_DATE] * len(before)
    assert reasons(plan(after, memory, files(after, **changed)))[reader(after)] is Reason.INPUT_CHANGED


def test_changed_member_of_a_group_is_named() -> None:
    graph = grouped("a", "b", deep=True)
    memory = after_a_run(graph)
    memory.sources = {"a": (10, 100), "b": (10, 100)}
    assert plan(graph, memory, files(graph, b=(11, 90))).why(reader(graph)) == "its input 'b' changed"


def test_a_group_is_looked_at_again_when_a_collected_member_is_made_anew() -> None:
    builder = GraphBuilder("flow.py")
    builder.task("", "make a", outputs=["a"])
    group = builder.task("all", None, inputs=["a"])
    builder.task("", "sum", outputs=["sum"], after=[group])
    builder.task("", "use", inputs=["a"], outputs=["used"])
    graph = builder.build()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0)]
    versions = files(graph, a=(-1, 0), used=(-1, 0))
    assert plan(graph, memory, versions).to_run() == [0, 2, 3]
    versions.sizes[0], versions.times[0] = 12, 200
    assert versions.digest_of_inputs(2) != memory.results[place_of(graph, 2)].inputs


def test_a_value_that_came_with_a_file_of_the_same_content_counts() -> None:
    builder = GraphBuilder("flow.py")
    builder.task("", Call(len, "f"), outputs=["a"])
    builder.task("", "use", inputs=["a"], outputs=["b"])
    versions = files(builder.build())
    digests = []
    for moment in (1.0, 2.0):
        versions.done[0] = moment
        digests.append(versions.digest_of_inputs(1))
    assert digests[0] != digests[1]


NUMBER = 1 << 61
"""A number made from content; it is the same for all files here."""


def by_content(graph: Graph, **times: int) -> Versions:
    """Files looked at by content, which a look by time finds with time 100, or that given."""
    versions = Versions(graph, BY_CONTENT)
    for number in range(len(graph.file_names)):
        versions.sizes[number], versions.times[number] = 10, NUMBER
    versions.look = lambda file, check: (10, times.get(graph.file_names[file].replace(".", "_"), 100))
    return versions


def test_results_are_compared_in_the_way_in_which_they_were_recorded() -> None:
    for graph in (chain(), grouped(*"abc", deep=True)):
        memory = after_a_run(graph)
        assert plan(graph, memory, by_content(graph)).to_run() == []
    graph = chain()
    touched = plan(graph, after_a_run(graph), by_content(graph, b_txt=101))
    assert reasons(touched)[0] is Reason.OUTPUT_CHANGED
    graph = grouped(*"abc")
    assert plan(graph, after_a_run(graph), by_content(graph, b=99)).to_run() == [reader(graph)]


def test_file_of_the_same_size_and_another_time_is_not_called_changed() -> None:
    graph = chain()
    made = plan(graph, after_a_run(graph), files(graph, b_txt=(10, 999)))
    assert made.why(0).startswith("its output 'b.txt' has a different modification time than when it was made (")
    made = plan(graph, after_a_run(graph), files(graph, a_txt=(10, 999)))
    assert made.why(0) == "its input 'a.txt' has a different modification time than when it was read"
    made = plan(graph, after_a_run(graph), files(graph, b_txt=(11, 999)))
    assert made.why(0) == "its output 'b.txt' changed after it was made"


def old_records(graph: Graph, versions: Versions, **newest: float) -> Memory:
    """What a ledger holds that does not say how files were looked at; `newest` is the version of groups then."""
    memory = after_a_run(graph)
    memory.check = UNSAID
    for place, record in list(memory.results.items()):
        state = blake2b(digest_size=8)
        inputs = graph.inputs_of(record.task)
        state.update(array("q", [versions.sizes[file] for file in inputs]).tobytes())
        state.update(array("q", [versions.times[file] for file in inputs]).tobytes())
        moments = [newest.get(graph.names[other], 50.0 + other) for other in graph.after_of(record.task)]
        state.update(array("d", moments).tobytes())
        digest = state.digest() if inputs or moments else b""
        outputs = [(versions.sizes[file], versions.times[file]) for file in graph.outputs_of(record.task)]
        memory.results[place] = msgspec.structs.replace(record, inputs=digest, outputs=outputs, check=UNSAID)
    return memory


def test_older_ledgers_are_compared_as_they_were_made_whatever_the_check() -> None:
    for graph, newest in ((chain(), {}), (grouped(*"abc", deep=True), {"inputs": 50.0, "outer": 50.0})):
        by_time = old_records(graph, files(graph), **newest)
        assert plan(graph, by_time).to_run() == []
        assert plan(graph, by_time, by_content(graph)).to_run() == []
    graph = chain()
    contents = old_records(graph, by_content(graph))
    assert plan(graph, contents, by_content(graph)).to_run() == []
    seen_by_time = files(graph)
    seen_by_time.look = lambda file, check: (10, NUMBER)
    assert plan(graph, contents, seen_by_time).to_run() == []


def test_directories_of_older_ledgers_count_by_being_there() -> None:
    graph = chain()
    versions = files(graph, a_txt=FOLDER_UNSEEN, b_txt=FOLDER_UNSEEN)
    memory = old_records(graph, versions)
    now = files(graph, a_txt=(77, 777), b_txt=(88, 888))
    now.folders = {0, 1}
    assert plan(graph, memory, now).to_run() == []
    renewed = after_a_run(graph)
    assert plan(graph, renewed, now).to_run() == [0, 1, 2]


def test_a_collected_output_is_no_reason_to_run() -> None:
    graph = chain()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0)]
    made = plan(graph, memory, files(graph, b_txt=(-1, 0)))
    assert made.to_run() == []


def test_a_file_that_the_workflow_is_run_for_is_never_taken_for_collected() -> None:
    graph = chain()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 1)]
    missing = files(graph, c_txt=(-1, 0))
    made = decide(graph, ancestors(graph, [2]), memory, missing, kept=("c.txt",))
    assert reasons(made) == [Reason.UP_TO_DATE, Reason.OUTPUT_MISSING, Reason.NEEDS_ANOTHER]


def test_the_maker_of_a_collected_file_runs_when_the_file_is_needed_again() -> None:
    graph = chain()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0)]
    made = plan(graph, memory, files(graph, b_txt=(-1, 0), c_txt=(-1, 0)))
    assert reasons(made) == [Reason.OUTPUT_MISSING, Reason.OUTPUT_MISSING, Reason.NEEDS_ANOTHER]


def test_a_maker_called_back_takes_its_other_readers_along() -> None:
    builder = GraphBuilder("Makeflow")
    builder.task("", "make b", outputs=["b.txt"])
    builder.task("", "make c", inputs=["b.txt"], outputs=["c.txt"])
    builder.task("", "make d", inputs=["b.txt"], outputs=["d.txt"])
    graph = builder.build()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0)]
    made = plan(graph, memory, files(graph, b_txt=(-1, 0), d_txt=(-1, 0)))
    assert made.to_run() == [0, 1, 2]


def test_a_changed_output_can_be_taken_as_found_and_then_only_its_readers_run() -> None:
    graph = chain()
    changed = files(graph, b_txt=(11, 200))
    made = decide(graph, ancestors(graph, [2]), after_a_run(graph), changed, as_found=True)
    assert reasons(made)[:2] == [Reason.UP_TO_DATE, Reason.INPUT_CHANGED]


def test_a_changed_file_with_a_number_above_all_tasks_can_be_named() -> None:
    builder = GraphBuilder("Makeflow")
    builder.task("", "make o", inputs=["i1", "i2", "i3"], outputs=["o"])
    graph = builder.build()
    memory = after_a_run(graph)
    memory.sources = {"i1": (10, 100), "i2": (10, 100), "i3": (10, 100)}
    assert plan(graph, memory, files(graph, i3=(11, 100))).why(0) == "its input 'i3' changed"


def gathered(deep: bool = False) -> Graph:
    """A group of b.txt and c.txt, each made from nothing, in another group if `deep`, and sum.txt behind it."""
    builder = GraphBuilder("flow.py")
    builder.task("", "make b", outputs=["b.txt"])
    builder.task("", "make c", outputs=["c.txt"])
    group = builder.task("parts", None, inputs=["b.txt", "c.txt"])
    if deep:
        group = builder.task("all", None, after=[group])
    builder.task("", "make sum", outputs=["sum.txt"], after=[group])
    return builder.build()


@pytest.mark.parametrize("deep", [False, True])
def test_collected_files_of_a_group_are_made_again_for_a_task_that_needs_the_group(deep: bool) -> None:
    graph = gathered(deep)
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0), place_of(graph, 1)]
    assert plan(graph, memory, files(graph, b_txt=(-1, 0), c_txt=(-1, 0))).to_run() == []
    missing = files(graph, b_txt=(-1, 0), c_txt=(-1, 0), sum_txt=(-1, 0))
    made = plan(graph, memory, missing)
    assert made.to_run() == [0, 1, len(graph) - 1]
    assert made.why(1) == "its output 'c.txt' is missing"
    assert made.absent == frozenset()


def test_collected_files_of_a_group_that_nothing_needs_stay_away() -> None:
    graph = gathered()
    memory = after_a_run(graph)
    memory.collected = [place_of(graph, 0)]
    made = plan(graph, memory, files(graph, b_txt=(-1, 0)))
    assert made.to_run() == []
    assert made.absent == {graph.file_names.index("b.txt")}


@pytest.mark.parametrize("deep", [False, True])
def test_a_group_is_run_for_what_it_collects(deep: bool) -> None:
    graph = gathered(deep)
    group = len(graph) - 2
    assert Workflow("flow.py", graph, [group], []).wanted_files() == {"b.txt", "c.txt"}
    assert Workflow("flow.py", graph, [0], []).wanted_files() == {"b.txt"}
    assert Workflow("flow.py", graph, [0], [], kept=frozenset({"c.txt"})).wanted_files() == {"c.txt"}
