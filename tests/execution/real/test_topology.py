"""What is found of a machine, this one or one that is only files; and processes that are held to their processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import InputError
from shoal.execution.processes.orders import without
from shoal.execution.processes.pinning import cpus_in, number_list, number_text, pin, pinned
from shoal.execution.processes.seats import Seats, environment_of
from shoal.execution.processes.topology import described_machines, this_machine
from shoal.resources.machine import MachinePart
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import require


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def two_sockets(root: Path, *, numas_per_socket: int = 1) -> None:
    """Two sockets with two cores of two threads each; processors 4 to 7 are the second threads."""
    write(root, "sys/devices/system/cpu/online", "0-7\n")
    for cpu in range(8):
        core = cpu % 4
        where = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(root, f"{where}/physical_package_id", f"{core // 2}\n")
        write(root, f"{where}/core_id", f"{core % 2}\n")
        write(root, f"{where}/thread_siblings_list", f"{core},{core + 4}\n")
    numas = 2 * numas_per_socket
    write(root, "sys/devices/system/node/online", f"0-{numas - 1}\n")
    for numa in range(numas):
        cores = [core for core in range(4) if core * numas // 4 == numa]
        cpus = ",".join(str(cpu) for core in cores for cpu in (core, core + 4))
        write(root, f"sys/devices/system/node/node{numa}/cpulist", cpus + "\n")
        write(root, f"sys/devices/system/node/node{numa}/meminfo", f"Node {numa} MemTotal:   1048576 kB\n")


def found(root: Path, **options: object) -> MachinePart:
    return this_machine(name="fake", root=str(root), environment={}, **options)  # type: ignore[arg-type]


def units(part: MachinePart, kind: str) -> list[MachinePart]:
    inside = [each for child in part.parts for each in units(child, kind)]
    return [part, *inside] if part.kind == kind else inside


def cpus(part: MachinePart) -> list[int]:
    return sorted(each.cpu for each in units(part, "thread") if each.cpu is not None)


def test_sockets_cores_and_threads_hang_together_as_the_system_says(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    machine = found(tmp_path)
    assert [cpus(socket) for socket in units(machine, "socket")] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [cpus(core) for core in units(machine, "core")] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [numa.memory for numa in units(machine, "numa")] == [1 << 30, 1 << 30]


def test_a_socket_may_have_several_numa_nodes(tmp_path: Path) -> None:
    two_sockets(tmp_path, numas_per_socket=2)
    assert [cpus(numa) for numa in units(found(tmp_path), "numa")] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_only_processors_that_we_may_use_are_found(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert cpus(found(tmp_path, allowed=[1, 2, 5])) == [1, 2, 5]
    write(tmp_path, "proc/self/cgroup", "0::/box\n")
    write(tmp_path, "sys/fs/cgroup/box/cpuset.cpus.effective", "2-3,6\n")
    assert cpus(found(tmp_path)) == [2, 3, 6]
    assert cpus(found(tmp_path, allowed=[1, 2])) == [2]


def test_memory_is_no_more_than_the_control_group_may_use(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    write(tmp_path, "proc/self/cgroup", "0::/box/task\n")
    write(tmp_path, "sys/fs/cgroup/box/memory.max", str(1 << 30))
    write(tmp_path, "sys/fs/cgroup/box/task/memory.max", "max\n")
    assert [numa.memory for numa in units(found(tmp_path), "numa")] == [1 << 29, 1 << 29]


def test_gpus_are_found_by_the_driver_or_by_their_device_files(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert units(found(tmp_path), "gpu") == []
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        write(tmp_path, f"dev/{name}", "")
    assert [gpu.device for gpu in units(found(tmp_path), "gpu")] == ["0", "1"]
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        write(tmp_path, f"proc/driver/nvidia/gpus/{name}/information", "Model: x\n")
    assert [gpu.device for gpu in units(found(tmp_path), "gpu")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("visible", "devices"), [("", []), ("2,0", ["2", "0"]), ("1,-1,2", ["1"]), ("GPU-1f", ["GPU-1f"])]
)
def test_only_gpus_that_are_visible_to_us_are_found(tmp_path: Path, visible: str, devices: list[str]) -> None:
    two_sockets(tmp_path)
    write(tmp_path, "dev/nvidia0", "")
    machine = this_machine(name="fake", root=str(tmp_path), environment={"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.device for gpu in units(machine, "gpu")] == devices


def test_a_system_without_a_topology_still_has_its_cores(tmp_path: Path) -> None:
    machine = found(tmp_path)
    assert len(units(machine, "core")) == os.cpu_count()
    assert len(units(machine, "socket")) == 1


def test_this_machine_has_the_processors_that_this_process_may_use() -> None:
    machine = this_machine()
    assert cpus(machine) == sorted(os.sched_getaffinity(0))
    assert sum(numa.memory for numa in units(machine, "numa")) + machine.memory > 0


def test_a_description_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "machines.toml"
    path.write_text('[[node]]\nname = "n"\ncores = 2\n')
    assert [len(units(each, "core")) for each in described_machines(str(path))] == [2]
    with pytest.raises(InputError, match="cannot read the description of machines: No such file"):
        described_machines(str(tmp_path / "none.toml"))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not valid UTF-8"):
        described_machines(str(path))


def test_sets_of_processors_are_written_and_read_as_the_system_does() -> None:
    assert number_text([8, 0, 1, 2, 10]) == "0-2,8,10"
    assert number_list("0-2,8,10\n") == [0, 1, 2, 8, 10]
    assert number_list("") == []


def test_a_task_gets_its_processors_in_variables_and_sees_only_its_own_gpus(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    for name in ("nvidia0", "nvidia1"):
        write(tmp_path, f"dev/{name}", "")
    steward = ResourceManager([found(tmp_path)])
    first = steward.request("run", require({"core": 2, "gpu": 1}))
    second = steward.request("run", require("core", memory=1000))
    told = [dict(environment_of(steward.grant(each.number).on("fake"))) for each in (first, second)]
    assert told[0]["SHOAL_CPUS"] == "0-1,4-5" and told[0]["SHOAL_CORES"] == "4"
    assert told[0]["CUDA_VISIBLE_DEVICES"] == "0"
    assert told[1]["CUDA_VISIBLE_DEVICES"] == "" and told[1]["SHOAL_MEMORY_BYTES"] == "1000"
    assert cpus_in(told[0].items()) == [0, 1, 4, 5]
    assert cpus_in([("A", "1")]) == []


def seat(seats: Seats, task: int, cores: int) -> list[int]:
    """The processors that a task is told of."""
    return cpus_in(pair.partition("=")[::2] for pair in seats.take(task, cores).decode().split("\0"))


def test_no_two_tasks_have_the_same_seat_and_who_finds_none_is_not_pinned(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    seats = Seats(found(tmp_path), str(tmp_path))
    taken = [seat(seats, task, 2) for task in range(4)]
    assert sorted(cpu for each in taken for cpu in each) == list(range(8))
    assert all(len({cpu % 4 for cpu in each}) == 1 for each in taken), "two threads of one core"
    assert seats.take(4, 1) == b""
    assert seats.take(5, 99) == b""
    seats.give(4)
    seats.give(2)
    assert seat(seats, 6, 2) == taken[2]


def test_tasks_of_one_core_go_to_idle_cores_before_two_of_them_share_one(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    seats = Seats(found(tmp_path), str(tmp_path))
    taken = [seat(seats, task, 1) for task in range(8)]
    assert len({cpu % 4 for (cpu,) in taken[:4]}) == 4
    assert sorted(cpu for (cpu,) in taken) == list(range(8))


def test_what_a_user_sets_for_a_task_is_not_set_otherwise() -> None:
    assert without(b"A=1\0B=2\0", b"B=3\0C=4\0") == b"A=1\0"
    assert without(b"A=1\0", b"") == b"A=1\0"


def test_two_runs_on_a_machine_do_not_give_the_same_processors_to_their_tasks(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    one, other = (Seats(found(tmp_path), str(tmp_path)) for _ in range(2))
    first = seat(one, 0, 2)
    assert len(first) == 2
    others = [seat(other, task, 2) for task in range(4)]
    assert others[3] == []
    assert sorted(first + [cpu for each in others for cpu in each]) == list(range(8))
    one.give(0)
    assert seat(other, 4, 2) == first


def test_a_process_started_while_pinned_runs_on_the_given_processors() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    with pinned([last]):
        command = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert told == f"[{last}]\n"
    assert os.sched_getaffinity(0) == before


def test_pinning_to_what_is_not_there_is_no_disaster() -> None:
    before = os.sched_getaffinity(0)
    assert not pin([])
    assert not pin([100_000])
    assert os.sched_getaffinity(0) == before
