"""What a node offers: command line, environment, allocation, machine, in this order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.nodes.machine import shares_of_machine, this_machine
from shoal.cluster.nodes.offer import MEGABYTE, Declared, MachineFacts, Offer, offer
from shoal.core.resources import FRACTION, Resources
from shoal.errors import InputError

GIGABYTE = 1 << 30
BIG = MachineFacts(cores=64, memory=256 * GIGABYTE, disk=1000 * GIGABYTE, gpus=4)
JOB = {"SLURM_JOB_ID": "7"}


def cores(found: Offer) -> float:
    return found.resources.get("cores") / FRACTION


def test_a_machine_by_itself_is_offered_whole() -> None:
    found = offer({}, BIG, Declared())
    assert found.resources == Resources.parse({"cores": 64, "memory": "256G", "disk": "1000G", "gpus": 4})
    assert (found.ends_at, found.labels, found.warnings) == (None, (), ())


def test_the_command_line_comes_before_the_environment_and_that_before_the_allocation() -> None:
    job = JOB | {"SLURM_CPUS_ON_NODE": "8"}
    assert cores(offer(job, BIG, Declared())) == 8
    assert cores(offer(job | {"CORES": "6"}, BIG, Declared())) == 6
    assert cores(offer(job | {"CORES": "6"}, BIG, Declared(cores="2"))) == 2


def test_all_asks_for_what_is_found_whatever_the_environment_says() -> None:
    job = JOB | {"SLURM_CPUS_ON_NODE": "8", "CORES": "6"}
    assert cores(offer(job, BIG, Declared(cores="all"))) == 8


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (MachineFacts(8, GIGABYTE, GIGABYTE, affinity=3), 3),
        (MachineFacts(8, GIGABYTE, GIGABYTE, affinity=3, group_cores=2.5), 2),
        (MachineFacts(8, GIGABYTE, GIGABYTE, group_cores=0.5), 1),
    ],
)
def test_affinity_mask_and_control_group_cap_what_is_found(machine: MachineFacts, expected: int) -> None:
    assert cores(offer({}, machine, Declared())) == expected


def test_an_allocation_larger_than_the_affinity_mask_does_not_widen_it() -> None:
    machine = MachineFacts(64, GIGABYTE, GIGABYTE, affinity=4)
    assert cores(offer(JOB | {"SLURM_CPUS_ON_NODE": "16"}, machine, Declared())) == 4


def test_memory_of_an_allocation_is_per_node_or_per_core_and_zero_means_all() -> None:
    job = JOB | {"SLURM_CPUS_ON_NODE": "4"}
    assert offer(job | {"SLURM_MEM_PER_NODE": "2000"}, BIG, Declared()).resources.get("memory") == 2000 * MEGABYTE
    assert offer(job | {"SLURM_MEM_PER_CPU": "500"}, BIG, Declared()).resources.get("memory") == 2000 * MEGABYTE
    assert offer(job | {"SLURM_MEM_PER_NODE": "0"}, BIG, Declared()).resources.get("memory") == BIG.memory
    limited = MachineFacts(4, 8 * GIGABYTE, GIGABYTE, group_memory=GIGABYTE)
    assert offer(job | {"SLURM_MEM_PER_NODE": "2000"}, limited, Declared()).resources.get("memory") == GIGABYTE


@pytest.mark.parametrize(
    ("text", "node", "expected"), [("4", "0", 4), ("4(x2),2", "1", 4), ("4(x2),2", "2", 2), ("1,3", "1", 3)]
)
def test_cores_per_node_are_those_of_our_node(text: str, node: str, expected: int) -> None:
    job = JOB | {"SLURM_JOB_CPUS_PER_NODE": text, "SLURM_NODEID": node}
    assert cores(offer(job, BIG, Declared())) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 4),
        (JOB, 0),
        (JOB | {"SLURM_GPUS_ON_NODE": "2"}, 2),
        (JOB | {"CUDA_VISIBLE_DEVICES": "0,3,5"}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,GPU-11"}, 2),
    ],
)
def test_gpus_are_those_the_job_may_see(environment: dict[str, str], expected: int) -> None:
    assert offer(environment, BIG, Declared()).resources.get("gpus") == expected * FRACTION


def test_the_end_of_the_allocation_is_offered() -> None:
    assert offer(JOB | {"SLURM_JOB_END_TIME": "1794816594"}, BIG, Declared()).ends_at == 1794816594.0
    assert offer({"SLURM_JOB_END_TIME": "1794816594"}, BIG, Declared()).ends_at is None


def test_slurm_variables_without_a_job_are_of_no_account() -> None:
    assert cores(offer({"SLURM_CPUS_ON_NODE": "2"}, BIG, Declared())) == 64


def test_declaring_more_than_there_is_is_believed_with_one_warning() -> None:
    small = MachineFacts(2, 2 * GIGABYTE, GIGABYTE)
    found = offer({"MEMORY": "4096"}, small, Declared(cores="8", disk="512"))
    assert found.resources == Resources.parse({"cores": 8, "memory": "4G", "disk": "512M"})
    assert found.warnings == (
        "this node declares more than it has: cores 8 (there is 2), memory 4 GiB (there is 2 GiB)",
    )


def test_sizes_are_megabytes_unless_a_unit_is_written() -> None:
    assert offer({}, BIG, Declared(memory="1500")).resources.get("memory") == 1500 * MEGABYTE
    assert offer({}, BIG, Declared(memory="2G")).resources.get("memory") == 2 * GIGABYTE


def test_named_resources_and_labels_are_taken_over() -> None:
    found = offer({}, BIG, Declared(resources=("licence=2", "tape=0.5"), labels=("site=north", "class=fat=yes")))
    assert found.resources.get("licence") == 2 * FRACTION
    assert found.resources.get("tape") == FRACTION // 2
    assert found.labels == (("class", "fat=yes"), ("site", "north"))


@pytest.mark.parametrize(
    ("declared", "environment", "words"),
    [
        (Declared(cores="many"), {}, "--cores"),
        (Declared(cores="0"), {}, "runs nothing"),
        (Declared(), {"MEMORY": "lots"}, "MEMORY"),
        (Declared(gpus="-1"), {}, "--gpus"),
        (Declared(resources=("licence",)), {}, "NAME=N"),
        (Declared(resources=("cores=3",)), {}, "--cores"),
        (Declared(labels=("=x",)), {}, "KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(declared: Declared, environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        offer(environment, BIG, declared)
    assert "\n" not in str(caught.value)


def test_invalid_variables_of_the_batch_system_are_ignored_with_a_warning() -> None:
    found = offer(JOB | {"SLURM_CPUS_ON_NODE": "x", "SLURM_JOB_CPUS_PER_NODE": "?"}, BIG, Declared())
    assert cores(found) == 64
    assert len(found.warnings) == 2


@given(st.dictionaries(st.sampled_from(["CORES", "SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_NODEID", "SLURM_JOB_END_TIME", "CUDA_VISIBLE_DEVICES",
    "MEMORY", "DISK", "GPUS"]), st.text(alphabet="0123456789(x),-. abGM", max_size=8)))  # fmt: skip
def test_any_environment_gives_an_offer_or_one_sentence(environment: dict[str, str]) -> None:
    try:
        found = offer(environment, BIG, Declared())
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert found.resources.get("cores") > 0


def test_the_reader_finds_this_machine(tmp_path: Path) -> None:
    found = this_machine(str(tmp_path))
    assert found.cores == os.cpu_count()
    assert found.affinity == len(os.sched_getaffinity(0))
    assert found.memory > 0
    assert found.disk > 0


def test_the_reader_takes_the_tightest_group_above_us(tmp_path: Path) -> None:
    (tmp_path / "groups/a/b").mkdir(parents=True)
    (tmp_path / "groups/a/cpu.max").write_text("150000 100000\n")
    (tmp_path / "groups/a/b/cpu.max").write_text("max 100000\n")
    (tmp_path / "groups/a/b/memory.max").write_text("1000000\n")
    (tmp_path / "groups/a/memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    found = this_machine(str(tmp_path), str(tmp_path / "groups"), str(tmp_path / "own"))
    assert (found.group_cores, found.group_memory) == (1.5, 1000000)


def test_the_reader_knows_groups_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "groups/cpu,cpuacct/job").mkdir(parents=True)
    (tmp_path / "groups/memory/job").mkdir(parents=True)
    (tmp_path / "groups/cpu,cpuacct/job/cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "groups/cpu,cpuacct/job/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "groups/memory/job/memory.limit_in_bytes").write_text("5000000\n")
    (tmp_path / "own").write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    found = this_machine(str(tmp_path), str(tmp_path / "groups"), str(tmp_path / "own"))
    assert (found.group_cores, found.group_memory) == (2.0, 5000000)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_agents_on_one_machine_divide_it_among_them(count: int, tmp_path: Path) -> None:
    cores, memory = (int(word.partition("=")[2]) for word in shares_of_machine([], count))
    machine = this_machine(str(tmp_path))
    assert cores == max(1, (machine.affinity or machine.cores) // count)
    assert (
        (memory + 1) * count << 20 > min(machine.memory, machine.group_memory or machine.memory) >= memory * count << 20
    )


def test_who_says_how_much_an_agent_has_is_right() -> None:
    (cores,) = shares_of_machine(["--memory=100"], 2)
    assert cores.startswith("--cores=")
    assert shares_of_machine(["--memory", "2G", "--cores=4"], 2) == []
