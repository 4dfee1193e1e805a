"""Which group of nodes counts which tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.nodes.demand import (
    Ability,
    CategoryDemand,
    UncountedTasks,
    ability_of_node,
    expected_ability,
    label_of,
    most_of,
)
from shoal.cluster.nodes.factory import QueueLength
from shoal.core.resources import Resources, requiring
from shoal.errors import InputError

ONE_CORE = Resources.parse({"cores": 1})
WITH_GPU = Resources.parse({"cores": 1, "gpus": 1})


def node(cores: float, gpus: float = 0, **labels: str) -> Ability:
    return ability_of_node(Resources.parse({"cores": cores, "gpus": gpus}), labels)


def slurm(*options: str, labels: tuple[str, ...] = (), agent: tuple[str, ...] = ()) -> Ability:
    return expected_ability("slurm", "g", agent, options, labels, None)


def test_a_node_that_has_less_than_a_task_asks_for_could_not_do_it() -> None:
    assert node(2).fits(ONE_CORE)
    assert not node(2).fits(WITH_GPU)
    assert not node(2).fits(Resources.parse({"cores": 4}))


def test_a_required_label_must_be_carried_with_that_value() -> None:
    task = requiring(ONE_CORE, ["gpu=a100"])
    assert node(1, gpu="a100").fits(task)
    assert not node(1, gpu="h100").fits(task)
    assert not node(1).fits(task)


def test_the_name_of_its_group_is_a_label_of_a_node() -> None:
    assert slurm().fits(requiring(ONE_CORE, ["group=g"]))
    assert not slurm().fits(requiring(ONE_CORE, ["group=other"]))


def test_labels_and_resources_are_known_from_the_words_with_which_nodes_are_started() -> None:
    ability = slurm(agent=("--label", "site=alpha", "--resource=licence=2", "--memory=1000"), labels=("gpu=a100",))
    assert ability.fits(requiring(ONE_CORE, ["site=alpha", "gpu=a100"]))
    assert ability.fits(Resources.parse({"licence": 2}))
    assert not ability.fits(Resources.parse({"licence": 3}))
    assert ability.fits(Resources.parse({"memory": "1000M"}))
    assert not ability.fits(Resources.parse({"memory": "1001M"}))


def test_what_is_not_known_of_a_node_is_no_reason_against_a_task() -> None:
    assert slurm().fits(Resources.parse({"cores": 64, "memory": "1T"}))
    assert slurm().fits(requiring(ONE_CORE, ["host=n17"]))


def test_a_job_of_slurm_that_asks_for_no_gpu_has_none() -> None:
    assert not slurm("--partition=gpu").fits(WITH_GPU)
    assert slurm("--gres=gpu:a100:1").fits(WITH_GPU)
    assert slurm("--gpus-per-node=2").fits(WITH_GPU)
    assert slurm(agent=("--gpus=1",)).fits(WITH_GPU)


def test_a_node_that_was_seen_is_believed_more_than_words() -> None:
    seen = expected_ability("slurm", "g", [], ["--cpus-per-task=8"], [], Resources.parse({"cores": 4}))
    assert not seen.fits(Resources.parse({"cores": 8}))
    assert seen.at_once(ONE_CORE) == 4


@pytest.mark.parametrize(
    ("agent", "options", "cores"),
    [
        ([], [], 1.0),
        (["--memory=4000", "--cores=4"], [], 4.0),
        (["--cores", "4"], [], 4.0),
        ([], ["--time=5", "--cpus-per-task=8"], 8.0),
        ([], ["-c2"], 2.0),
        (["--cores=all"], [], 1.0),
    ],
)
def test_cores_of_a_node_are_known_before_there_is_one(agent: list[str], options: list[str], cores: float) -> None:
    assert expected_ability("slurm", "g", agent, options, [], None).at_once(ONE_CORE) == cores


def test_what_a_task_asks_for_says_how_many_run_together() -> None:
    assert node(8, 2).at_once(WITH_GPU) == 2
    assert node(8, 2).at_once(Resources.parse({"cores": 3})) == 2
    assert node(8, 2).at_once(Resources.parse({"cores": 0.5})) == 16
    assert node(8, 2).at_once(Resources()) == 8


def test_a_group_counts_only_what_its_nodes_could_do() -> None:
    demands = [CategoryDemand(ONE_CORE, 10), CategoryDemand(WITH_GPU, 4)]
    plain, gpu = node(2), node(4, 1)
    pot = UncountedTasks(demands, [], [plain, gpu])
    assert pot.share(plain, 0).queue == QueueLength(10, 0)
    assert pot.share(plain, 0).at_once == 2
    share = pot.share(gpu, 0)
    assert share.queue == QueueLength(14, 0)
    assert share.at_once == 14 / (10 / 4 + 4 / 1)


def test_what_one_group_takes_the_next_does_not_count_and_it_takes_first_what_only_it_can_do() -> None:
    demands = [CategoryDemand(ONE_CORE, 10), CategoryDemand(WITH_GPU, 4)]
    plain, gpu = node(2), node(4, 1)
    pot = UncountedTasks(demands, [], [plain, gpu])
    pot.take(gpu, 6)
    assert pot.share(plain, 0).queue == QueueLength(8, 0)
    assert pot.share(gpu, 0).queue == QueueLength(8, 0)


def test_tasks_that_run_do_not_wait_and_are_of_a_kind_that_their_node_could_run() -> None:
    demands = [CategoryDemand(ONE_CORE, 10), CategoryDemand(WITH_GPU, 4)]
    pot = UncountedTasks(demands, [(node(2), 2)], [])
    assert pot.share(node(2), 2).queue == QueueLength(8, 2)
    assert pot.share(node(1, 1), 0).queue == QueueLength(12, 0)


def test_the_remaining_time_is_known_only_if_every_category_has_a_duration() -> None:
    known, unknown = CategoryDemand(ONE_CORE, 10, 3.0), CategoryDemand(WITH_GPU, 4)
    pot = UncountedTasks([known, unknown], [], [])
    assert pot.share(node(2), 5).queue == QueueLength(10, 5, 45.0)
    assert pot.share(node(2, 1), 5).queue.seconds_left is None


@given(
    st.lists(st.tuples(st.sampled_from([ONE_CORE, WITH_GPU]), st.integers(0, 50)), max_size=6),
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=6),
)
def test_no_task_is_taken_twice(asked: list[tuple[Resources, int]], takers: list[tuple[bool, int]]) -> None:
    demands = [CategoryDemand(resources, ready) for resources, ready in asked]
    abilities = [node(2, 1 if has_gpu else 0) for has_gpu, _ in takers]
    pot = UncountedTasks(demands, [], abilities)
    taken = 0.0
    for ability, (_, count) in zip(abilities, takers, strict=True):
        before = pot.share(node(9, 9), 0).queue.waiting
        fits = pot.share(ability, 0).queue.waiting
        pot.take(ability, count)
        after = pot.share(node(9, 9), 0).queue.waiting
        assert before - after == min(count, fits)
        taken += before - after
    assert taken + pot.share(node(9, 9), 0).queue.waiting == sum(ready for _, ready in asked)


def test_the_best_of_several_nodes_counts() -> None:
    offers = [Resources.parse({"cores": 4}), Resources.parse({"cores": 2, "gpus": 1})]
    assert most_of(offers) == Resources.parse({"cores": 4, "gpus": 1})


def test_a_label_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="'fast' is not a label"):
        label_of("fast")
