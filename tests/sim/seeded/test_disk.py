"""A simulated disk with write-back: which tasks wait for it, and which do not."""

from __future__ import annotations

from array import array

import pytest

from shoal.core.work import Work, assemble
from shoal.sim.cluster.files import Activity, ModelledDisk
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

RATE = 100.0
"""Bytes per second."""


def writing(item: int) -> Activity:
    return Activity(0, item, 0, 0.0, [], computed=True)


def reading(item: int) -> Activity:
    return Activity(0, item, 0, 0.0, [])


def ends(disk: ModelledDisk) -> list[tuple[int, float]]:
    """Which task is through, and when; what is written in the background belongs to none."""
    found = []
    while len(disk):
        now = disk.next_end()
        item = disk.take(now)
        if not item.over:
            found.append((item.task, now))
    return found


def chain(written: int) -> Work:
    """A task that writes a file, and one behind it that reads that file and writes as much again."""
    return assemble(
        "chain",
        array("d", [1.0, 1.0]),
        [(), (0,)],
        [(0,), (1,)],
        array("q", [written] * 2),
        file_home=array("i", [-1] * 2),
    )


def makespan(work: Work, **kind: float) -> float:
    node = NodeSpec(cores=1, disk_rate=RATE, **kind)  # type: ignore[arg-type]
    return ClusterRun(work, ClusterSpec(node=node, latency=0.0), SimulationOptions()).execute().makespan


def test_what_fits_into_memory_is_written_at_once() -> None:
    disk = ModelledDisk(RATE, 300)
    for task in range(3):
        disk.add(0.0, 100, writing(task))
    assert ends(disk) == [(0, 0.0), (1, 0.0), (2, 0.0)]


def test_a_writer_waits_until_there_is_room_for_what_it_writes() -> None:
    disk = ModelledDisk(RATE, 250)
    for task in range(4):
        disk.add(0.0, 100, writing(task))
    assert ends(disk) == [(0, 0.0), (1, 0.0), (2, pytest.approx(1.0)), (3, pytest.approx(2.0))]


def test_a_piece_larger_than_the_limit_is_written_when_nothing_else_waits() -> None:
    disk = ModelledDisk(RATE, 50)
    disk.add(0.0, 100, writing(0))
    disk.add(0.0, 100, writing(1))
    assert ends(disk) == [(0, 0.0), (1, pytest.approx(1.0))]


def test_readers_share_the_disk_with_one_flow_that_writes() -> None:
    disk = ModelledDisk(RATE, 1000)
    for task in range(5):
        disk.add(0.0, 100, writing(task))
    disk.add(0.0, 100, reading(9))
    assert dict(ends(disk))[9] == pytest.approx(2.0)


def test_a_writer_that_is_given_up_takes_no_room() -> None:
    disk = ModelledDisk(RATE, 100)
    disk.add(0.0, 100, writing(0))
    gone, last = writing(1), writing(2)
    disk.add(0.0, 100, gone)
    disk.add(0.0, 100, last)
    disk.drop(0.0, {id(gone)})
    assert ends(disk) == [(0, 0.0), (2, pytest.approx(1.0))]


def test_with_write_back_a_chain_takes_as_long_as_it_computes() -> None:
    assert makespan(chain(50)) == pytest.approx(3.0)
    assert makespan(chain(50), dirty=1000) == pytest.approx(2.0)


def test_beyond_the_limit_a_chain_waits_for_the_disk() -> None:
    # The second task has computed after 2 s; what the first has written after 1 s fills the room for another 3 s.
    assert makespan(chain(300), dirty=300) == pytest.approx(4.0)
