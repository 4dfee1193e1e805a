"""The planner: which tasks run again and for what reason."""

from __future__ import annotations

from shoal.ledger.records import TaskEnded
from shoal.model.graph import Graph, GraphBuilder, ancestors
from shoal.model.task import Profile
from shoal.plan.decide import Plan, Reason, decide
from shoal.plan.identity import Versions, content_of, place_of


class Memory:
    """Earlier results, as the planner sees them."""

    def __init__(self) -> None:
        self.results: dict[bytes, TaskEnded] = {}
        self.sources: dict[str, tuple[int, int]] = {}
        self.collected: list[bytes] = []

    def result(self, place: bytes) -> TaskEnded | None:
        return self.results.get(place)

    def source(self, name: str) -> tuple[int, int] | None:
        return self.sources.get(name)

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
    assert made.why(1) == "'b.txt', which it needs, runs"


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


def test_group_is_as_new_as_its_newest_member() -> None:
    builder = GraphBuilder()
    members = [builder.task(name, "cmd") for name in "ab"]
    group = builder.task("all", None, after=members)
    outer = builder.task("outer", None, after=[group])
    graph = builder.build()
    versions = Versions(graph)
    versions.done[0], versions.done[1] = 3.0, 9.0
    assert versions.of_task(outer) == 9.0


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


def test_a_changed_output_can_be_adopted_and_then_only_its_readers_run() -> None:
    graph = chain()
    changed = files(graph, b_txt=(11, 200))
    made = decide(graph, ancestors(graph, [2]), after_a_run(graph), changed, adopt=True)
    assert reasons(made)[:2] == [Reason.UP_TO_DATE, Reason.INPUT_CHANGED]


def test_a_changed_file_with_a_number_above_all_tasks_can_be_named() -> None:
    builder = GraphBuilder("Makeflow")
    builder.task("", "make o", inputs=["i1", "i2", "i3"], outputs=["o"])
    graph = builder.build()
    memory = after_a_run(graph)
    memory.sources = {"i1": (10, 100), "i2": (10, 100), "i3": (10, 100)}
    assert plan(graph, memory, files(graph, i3=(11, 100))).why(0) == "its input 'i3' changed"
