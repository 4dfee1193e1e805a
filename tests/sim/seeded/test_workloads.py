"""The workloads of the papers: counts, edges, levels, sizes, ranks, and that a seed is all there is to chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from shoal.core.work import EVERYWHERE, Work, bytes_read, ranks_of
from shoal.errors import InputError
from shoal.sim.workloads import matrix
from shoal.sim.workloads.matrix import LENGTHS, SIZES, uniform
from shoal.sim.workloads.published import FILES_AND_TASKS, STAGES, all_pairs, copyfile, fmri, moldyn, montage, stacking

Trees = Callable[[int, int, int], Work]
MATRIX_SHAPES: list[Trees] = [matrix.fan_out, matrix.fan_in, matrix.pipeline]
ODD_SIZES = [1, 2, 9, 10, 11, 12, 100, 110, 111, 112, 1000, 1111, 1112]


def edges(work: Work) -> list[tuple[int, int]]:
    return [(task, child) for task in range(len(work)) for child in work.children_of(task)]


def by_stage(work: Work) -> Counter[str]:
    return Counter(work.profiles[category].category for category in work.category)


def tasks_of(work: Work, stage: str) -> list[int]:
    return [task for task, category in enumerate(work.category) if work.profiles[category].category == stage]


def check_columns(work: Work) -> None:
    """Every column agrees with the edges, and the edges with who reads what others make."""
    producer = {file: task for task in range(len(work)) for file in work.outputs_of(task)}
    read = [(producer[file], task) for task in range(len(work)) for file in work.inputs_of(task) if file in producer]
    assert sorted(edges(work)) == sorted(read)
    arriving = Counter(child for _, child in edges(work))
    assert list(work.waits_for) == [arriving[task] for task in range(len(work))]
    assert list(work.rank) == list(ranks_of(work.waits_for, work.child_start, work.children))
    assert list(work.weight) == list(bytes_read(len(work), work.input_start, work.inputs, work.file_bytes))
    assert len(work.category) == len(work) and max(work.category) < len(work.profiles)
    assert len(work.file_home) == len(work.file_bytes)
    assert all(work.file_home[file] == EVERYWHERE for file in producer)
    assert {type(second) for second in work.seconds} == {float}
    assert {type(size) for size in work.file_bytes} <= {int}


@pytest.mark.parametrize(
    "work",
    [
        matrix.bag(1, 50),
        stacking(1, 30, tasks=300),
        stacking(1, 2, tasks=100, aggregate=True),
        all_pairs(7),
        copyfile(1, 10),
        montage(1, 0.2),
        fmri(1, 9),
        moldyn(1, 2),
    ],
    ids=lambda work: work.name,
)
def test_the_columns_of_a_workload_agree_with_each_other(work: Work) -> None:
    check_columns(work)


@pytest.mark.parametrize("make", MATRIX_SHAPES)
@pytest.mark.parametrize("degree", [2, 3, 10])
def test_the_columns_of_a_matrix_shape_agree_at_every_size(make: Trees, degree: int) -> None:
    for tasks in ODD_SIZES:
        work = make(3, tasks, degree)
        assert len(work) == tasks
        check_columns(work)


def test_a_fan_out_task_is_followed_by_ten_times_its_number_plus_one_to_ten() -> None:
    work = matrix.fan_out(1, 1_000)
    assert edges(work) == [(i, child) for i in range(1_000) for child in range(10 * i + 1, min(10 * i + 11, 1_000))]


def test_fan_in_is_fan_out_seen_in_a_mirror() -> None:
    for tasks in ODD_SIZES:
        forward, mirrored = edges(matrix.fan_out(1, tasks)), edges(matrix.fan_in(1, tasks))
        assert mirrored == sorted((tasks - 1 - child, tasks - 1 - task) for task, child in forward)


def test_a_pipeline_is_broken_at_every_tenth_task() -> None:
    work = matrix.pipeline(1, 25)
    assert edges(work) == [(i, i + 1) for i in range(24) if (i + 1) % 10]
    assert list(work.rank) == [*range(9, -1, -1), *range(9, -1, -1), *range(4, -1, -1)]


def test_two_hundred_cores_give_a_fan_of_seven_levels() -> None:
    tasks = 200 * 1000
    levels = Counter(matrix.fan_in(1, tasks).rank)
    assert sorted(levels.items()) == [
        *((level, 10**level) for level in range(6)),
        (6, tasks - 111_111),
    ]


def test_a_bag_has_no_edges_and_no_files() -> None:
    work = matrix.bag(1, 2_000)
    assert not edges(work) and not work.inputs and not work.outputs and not work.file_bytes and not work.weight


def test_lengths_and_outputs_are_uniform_as_in_table_3() -> None:
    work = matrix.pipeline(1, 100_000)
    assert 0 <= min(work.seconds) < 0.0001 and 0.0999 < max(work.seconds) <= 0.1
    assert sum(work.seconds) / len(work) == pytest.approx(0.05, rel=0.01)
    assert 0 <= min(work.file_bytes) < 10_000 and 9_990_000 < max(work.file_bytes) <= 10_000_000
    assert sum(work.file_bytes) / len(work) == pytest.approx(5_000_000, rel=0.01)


def test_the_shapes_of_one_seed_have_the_same_lengths_and_a_small_one_is_the_beginning_of_a_large_one() -> None:
    bag, pipeline = matrix.bag(5, 3_000), matrix.pipeline(5, 1_000)
    assert bag.seconds[:1_000] == pipeline.seconds
    assert matrix.fan_in(5, 1_000).file_bytes == pipeline.file_bytes
    assert matrix.bag(6, 3_000).seconds != bag.seconds


def test_any_stretch_of_a_stream_can_be_drawn_again() -> None:
    whole = uniform(9, LENGTHS, (1 << 20) + 500)
    assert uniform(9, LENGTHS, 1_000, first=(1 << 20) - 500).tolist() == whole[-1_000:].tolist()
    assert whole[1 << 20 :].tolist() != whole[:500].tolist()
    assert uniform(9, SIZES, 10).tolist() != whole[:10].tolist()


def test_image_stacking_has_the_files_and_tasks_of_the_table() -> None:
    work = stacking(1, 30)
    readers = Counter(work.inputs)
    assert (len(readers), len(work)) == (790, 23_695)
    assert set(readers.values()) == {29, 30}
    assert list(FILES_AND_TASKS) == [1, 1.38, 2, 3, 4, 5, 10, 20, 30]
    for locality, (files, tasks) in FILES_AND_TASKS.items():
        assert tasks / files == pytest.approx(locality, rel=0.01)


def test_a_stacking_task_reads_2_mb_for_158_ms_and_makes_10_kb() -> None:
    work = stacking(1, 30, tasks=600)
    assert set(work.seconds) == {0.158} and set(work.weight) == {2_000_000}
    assert {work.file_bytes[file] for file in work.outputs} == {10_000}
    assert len(set(work.inputs)) == 20


def test_stacked_images_lie_round_robin_on_the_nodes() -> None:
    assert list(stacking(1, 30, tasks=600).file_home[:20]) == list(range(20))
    assert list(stacking(1, 30, tasks=600, nodes=8).file_home[:10]) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_the_aggregation_reads_every_cutout() -> None:
    work = stacking(1, 5, tasks=50, aggregate=True)
    assert len(work) == 51 and work.waits_for[50] == 50 and set(work.rank) == {0, 1}
    assert list(work.inputs_of(50)) == [work.outputs_of(task)[0] for task in range(50)]


def test_a_locality_that_is_not_in_the_table_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no locality 7; the paper has 1, 1\.38, 2, 3, 4, 5, 10, 20, 30"):
        stacking(1, 7)


def test_all_pairs_meets_each_pair_of_the_two_sets_once() -> None:
    work = all_pairs(6, nodes=4)
    assert [tuple(work.inputs_of(task)) for task in range(36)] == [(a, 6 + b) for a in range(6) for b in range(6)]
    assert list(work.file_home) == [file % 4 for file in range(12)]
    assert set(work.seconds) == {0.1} and set(work.weight) == {24_000_000}
    assert len(all_pairs()) == 250_000


def test_copyfile_copies_a_hundred_files_of_3_gib_twice() -> None:
    work = copyfile(1)
    assert by_stage(work) == {"A": 100, "B": 100}
    assert edges(work) == [(file, 100 + file) for file in range(100)]
    assert set(work.weight) == {3 * 2**30} and set(work.seconds) == {0.0}
    assert sorted(work.file_home[:100]) == list(range(100))


def test_the_montage_has_the_totals_that_pwrake_printed() -> None:
    work = montage(1)
    assert len(work) == 2707
    makes_images = ("mProjectPP", "mDiff", "mBackground", "mAdd", "mShrink", "mAddShrunk")
    images = [file for stage in makes_images for task in tasks_of(work, stage) for file in work.outputs_of(task)]
    assert len(images) == 4720
    assert sum(work.file_bytes[file] for file in images) == pytest.approx(63.5e9, rel=0.02)
    raw = [work.file_bytes[file] for file in range(421)]
    assert sum(raw) == pytest.approx(1061e6, rel=0.001)
    projected = sum(work.file_bytes[file] for task in tasks_of(work, "mProjectPP") for file in work.outputs_of(task))
    assert projected / 12 / 2**30 == pytest.approx(1.6, rel=0.01)


def test_the_montage_has_1175_overlaps_and_228_tiles() -> None:
    counts = by_stage(montage(1))
    assert counts == {
        "mProjectPP": 421,
        "mDiff": 1175,
        "mConcatFit": 1,
        "mBgModel": 1,
        "mBackground": 421,
        "mImgtbl": 2,
        "mCoverageCheck": 228,
        "mAdd": 228,
        "mShrink": 228,
        "mAddShrunk": 1,
        "mJPEG": 1,
    }


def test_the_stages_of_the_montage_have_one_rank_each() -> None:
    work = montage(1)
    rank = {stage: {work.rank[task] for task in tasks_of(work, stage)} for stage in STAGES}
    assert rank == {
        "mProjectPP": {9},
        "mDiff": {8},
        "mConcatFit": {7},
        "mBgModel": {6},
        "mBackground": {5},
        "mImgtbl": {6, 2},
        "mCoverageCheck": {5},
        "mAdd": {4},
        "mShrink": {3},
        "mAddShrunk": {1},
        "mJPEG": {0},
    }


def test_a_montage_task_reads_what_lies_under_it() -> None:
    work = montage(1)
    assert {len(work.inputs_of(task)) for task in tasks_of(work, "mDiff")} == {4}
    frames = [len(work.inputs_of(task)) // 2 for task in tasks_of(work, "mAdd")]
    assert sum(frames) / len(frames) == pytest.approx(5.7, abs=0.1) and min(frames) >= 1
    added = {file for task in tasks_of(work, "mAdd") for file in work.inputs_of(task)}
    corrected = {file for task in tasks_of(work, "mBackground") for file in work.outputs_of(task)}
    assert corrected <= added


def test_a_scaled_montage_keeps_its_stages() -> None:
    small = by_stage(montage(1, 0.1))
    assert list(small) == list(STAGES) and small["mProjectPP"] == 14 * 3 + 1 and small["mAdd"] == 12 * 2


def test_fmri_takes_each_volume_through_four_stages_and_aligns_it_with_the_first() -> None:
    work = fmri(1)
    assert by_stage(work) == {"reorient-y": 120, "reorient-x": 120, "alignlinear": 120, "reslice": 120}
    reference = work.outputs_of(tasks_of(work, "reorient-x")[0])[0]
    assert all(reference in work.inputs_of(task) for task in tasks_of(work, "alignlinear"))
    assert Counter(work.rank) == {3: 120, 2: 120, 1: 120, 0: 120}
    assert len(fmri(1, 480)) == 1920


def test_moldyn_has_one_task_and_84_for_each_molecule_in_eight_stages() -> None:
    assert len(moldyn(1, 1)) == 85 and len(moldyn(1, 50)) == 4_201
    work = moldyn(1, 244)
    assert len(work) == 20_497
    assert max(work.rank) == 7 and Counter(work.waits_for)[0] == 1
    assert list(by_stage(work).values()) == [1, 244, 244, 3 * 244, 68 * 244, 9 * 244, 244, 244]


def test_the_analyses_of_a_molecule_share_its_windows_out_by_kind() -> None:
    work = moldyn(1, 1)
    windows = {work.outputs_of(task)[0]: work.inputs_of(task)[0] for task in tasks_of(work, "sample")}
    analysed = [work.inputs_of(task) for task in tasks_of(work, "analyse")]
    assert sorted(file for files in analysed for file in files) == sorted(windows)
    assert all(len({windows[file] for file in files}) == 1 for files in analysed)


SEEDED: list[Callable[[int], Work]] = [
    lambda seed: matrix.fan_in(seed, 999),
    lambda seed: stacking(seed, 10, tasks=500),
    copyfile,
    lambda seed: montage(seed, 0.2),
    fmri,
    lambda seed: moldyn(seed, 3),
]


@pytest.mark.parametrize("make", SEEDED)
def test_the_same_seed_makes_the_same_workload_and_another_seed_another(make: Callable[[int], Work]) -> None:
    assert make(4) == make(4)
    assert make(4) != make(5)
