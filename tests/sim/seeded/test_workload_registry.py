"""Workloads by name: what a user types becomes the work that was meant, or one sentence that says what there is."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from shoal.errors import InputError
from shoal.sim.workloads import matrix
from shoal.sim.workloads.published import all_pairs, copyfile, fmri, moldyn, stacking
from shoal.sim.workloads.registry import WORKLOADS, make_workload


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("bag", 2_000),
        ("fan-out", 2_000),
        ("fan-in:cores=8", 8_000),
        ("pipeline:tasks=20000,degree=10", 20_000),
        ("bag:tasks=1e4", 10_000),
        (" bag : tasks = 7 , seed = 3 ", 7),
        ("stacking:locality=30,nodes=100,tasks=500", 500),
        ("stacking:tasks=100,aggregate=1", 101),
        ("all-pairs:side=100", 10_000),
        ("copyfile", 200),
        ("montage-pwrake:seed=2", 2_707),
        ("fmri:volumes=240", 960),
        ("moldyn:molecules=2", 169),
    ],
)
def test_a_name_with_parameters_makes_that_workload(text: str, tasks: int) -> None:
    assert len(make_workload(text, 1)) == tasks


def test_every_parameter_reaches_the_workload() -> None:
    work = make_workload("fan-in:tasks=500,degree=3,seconds=2,output=1K", 1)
    assert work.children == matrix.fan_in(1, 500, 3).children
    assert 1 < max(work.seconds) <= 2 and 512 < max(work.file_bytes) <= 1024
    pairs = make_workload("all-pairs:side=4,seconds=0.5,file=3M,nodes=2", 1)
    assert set(pairs.seconds) == {0.5} and set(pairs.file_bytes) == {3 * 2**20} and set(pairs.file_home) == {0, 1}
    assert set(make_workload("copyfile:files=3,file=7", 1).file_bytes) == {7}
    assert len(make_workload("montage-pwrake:scale=0.1", 1)) < 300


def test_the_defaults_are_those_of_the_paper() -> None:
    for name, work in {
        "bag": matrix.bag(1, 2_000),
        "fan-out": matrix.fan_out(1, 2_000),
        "fan-in": matrix.fan_in(1, 2_000),
        "pipeline": matrix.pipeline(1, 2_000),
        "all-pairs": all_pairs(),
        "copyfile": copyfile(1),
        "fmri": fmri(1),
        "moldyn": moldyn(1),
    }.items():
        assert msgspec.structs.replace(make_workload(name, 1), name=work.name) == work, name


def test_the_seed_in_the_text_goes_before_that_of_the_command() -> None:
    assert make_workload("bag:seed=7", 1).seconds == matrix.bag(7, 2_000).seconds
    assert make_workload("bag", 7).seconds == matrix.bag(7, 2_000).seconds
    assert make_workload("bag:seed=0", 7).seconds == matrix.bag(0, 2_000).seconds


def test_a_workload_is_called_what_the_user_typed() -> None:
    assert make_workload("bag", 1).name == "bag"
    assert make_workload("bag:tasks=5", 1).name == "bag:tasks=5"


def test_every_workload_is_made_with_its_defaults_alone() -> None:
    for name, description in WORKLOADS.items():
        assert len(make_workload(name, 1)) > 1, name
        assert description.summary and all(parameter.meaning for parameter in description.parameters)


def test_the_default_locality_is_the_one_of_the_figure() -> None:
    assert make_workload("stacking:tasks=600", 3).inputs == stacking(3, 30, tasks=600).inputs


def test_an_unknown_workload_is_answered_with_those_there_are() -> None:
    for text in ("", "pipelin", "bag of tasks", ":tasks=3"):
        with pytest.raises(InputError, match=r"unknown workload .*use one of bag, fan-out, .*, moldyn"):
            make_workload(text, 1)


def test_an_unknown_parameter_is_answered_with_those_of_the_workload() -> None:
    with pytest.raises(
        InputError, match=r"bag has no parameter 'degree'; its parameters are tasks, cores=2, seconds=0\.1, seed"
    ):
        make_workload("bag:degree=10", 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bag:tasks=0", "tasks of the workload bag must be between 1 and 100,000,000, not 0"),
        ("bag:tasks=-3", "must be between 1 and"),
        ("bag:tasks=1e30", "must be between 1 and"),
        ("bag:tasks=" + "9" * 400, "must be between 1 and"),
        ("bag:tasks=many", "tasks of the workload bag must be a whole number, not 'many'"),
        ("bag:tasks=1.5", "must be a whole number"),
        ("bag:tasks=inf", "must be a whole number"),
        ("bag:seconds=-1", "seconds of the workload bag must be between 0 and"),
        ("bag:seconds=nan", "must be between 0 and"),
        ("bag:seconds=fast", "must be a number, not 'fast'"),
        ("bag:tasks", "tasks of the workload bag has no value"),
        ("bag:tasks=", "tasks of the workload bag has no value"),
        ("bag:tasks=1,tasks=2", "is given twice"),
        ("bag:tasks=1,", "has an empty parameter"),
        ("fan-out:degree=1", "degree of the workload fan-out must be between 2 and"),
        ("pipeline:output=big", "output of the workload pipeline 'big' is not a size"),
        ("stacking:locality=7", "has no locality 7"),
        ("stacking:locality=0", "must be between 1 and 30"),
        ("stacking:nodes=0", "nodes of the workload stacking must be between 1 and"),
        ("montage-pwrake:scale=0", "scale of the workload montage-pwrake must be between 0.01 and 1,000"),
        ("bag:seed=-1", "seed of the workload bag must be between 0 and"),
    ],
)
def test_a_bad_value_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        make_workload(text, 1)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_and_parameters_are_known_without_loading_numpy() -> None:
    code = "import sys; import shoal.sim.workloads.registry; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
