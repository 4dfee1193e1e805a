"""Dependencies of a growing graph against an exhaustive reference model: same results, and no state left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.dependencies import DynamicFlow


class Model:
    """Every task ever added, its needs and its end; O(n) per question."""

    def __init__(self) -> None:
        self.needs: dict[int, list[int]] = {}
        self.end: dict[int, str] = {}

    def open_tasks(self) -> list[int]:
        return [task for task in self.needs if task not in self.end]

    def lacking(self, task: int) -> list[int]:
        return [need for need in self.needs[task] if self.end.get(need) != "done"]

    def ready(self) -> set[int]:
        return {task for task in self.open_tasks() if not self.lacking(task)}

    def doom(self, task: int) -> set[int]:
        """Everything open that needs the task, directly or not."""
        doomed = {task}
        for other in self.needs:  # needs come before those who need them
            if other not in self.end and doomed.intersection(self.needs[other]):
                doomed.add(other)
        return doomed - {task}


def add_one(data: st.DataObject, flow: DynamicFlow, model: Model) -> None:
    task = len(model.needs)
    needs = data.draw(st.lists(st.sampled_from(model.open_tasks()), max_size=4)) if model.open_tasks() else []
    model.needs[task] = needs
    assert flow.add(task, needs) == (not needs)
    assert flow.waits(task) == bool(needs)


def complete_some(data: st.DataObject, flow: DynamicFlow, model: Model) -> None:
    before = model.ready()
    if not before:
        return
    done = data.draw(st.lists(st.sampled_from(sorted(before)), unique=True, min_size=1))
    model.end.update(dict.fromkeys(done, "done"))
    became = flow.complete(done)
    assert len(became) == len(set(became))
    assert set(became) == model.ready() - before


def fail_one(data: st.DataObject, flow: DynamicFlow, model: Model) -> None:
    if not model.open_tasks():
        return
    task = data.draw(st.sampled_from(model.open_tasks()))
    expected = model.doom(task)
    doomed = flow.fail(task)
    assert len(doomed) == len(set(doomed))
    assert set(doomed) == expected
    model.end.update(dict.fromkeys([task, *doomed], "failed"))


@given(st.data())
def test_answers_as_the_model_does_and_forgets_what_is_over(data: st.DataObject) -> None:
    flow, model = DynamicFlow(), Model()
    for step in data.draw(st.lists(st.sampled_from([add_one, add_one, complete_some, fail_one]), max_size=40)):
        step(data, flow, model)
    while ready := model.ready():
        flow.complete(sorted(ready))
        model.end.update(dict.fromkeys(ready, "done"))
    assert not model.open_tasks()
    assert not flow
    assert not any(flow.waits(task) for task in model.needs)


def test_a_long_chain_is_doomed_without_recursion() -> None:
    flow = DynamicFlow()
    flow.add(0, [])
    for task in range(1, 100_000):
        flow.add(task, [task - 1])
    assert flow.fail(0) == list(range(1, 100_000))
    assert not flow


def test_a_need_that_is_named_twice_counts_once() -> None:
    flow = DynamicFlow()
    flow.add(0, [])
    flow.add(1, [0, 0])
    assert flow.complete([0]) == [1]


def test_newly_ready_tasks_come_in_the_order_in_which_they_were_added() -> None:
    flow = DynamicFlow()
    flow.add(0, [])
    for task in (7, 3, 5):
        flow.add(task, [0])
    assert flow.complete([0]) == [7, 3, 5]
