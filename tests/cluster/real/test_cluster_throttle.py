"""A throttle on each node of a real cluster: how many tasks run there, and what the client hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ledger.records import ThrottleDecided
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until
from support.ledgers import final_records, records


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One agent of one core."""
    with local_cluster(tmp_path_factory.mktemp("throttle"), 1, "--agent=--cores=1") as found:
        yield found


def write(folder: Path, count: int, wait: str) -> Path:
    folder.mkdir()
    flow = folder / "flow.py"
    flow.write_text(
        "from shoal import rule, task\n"
        f"for i in range({count}):\n"
        f'    rule(f"part{{i}}", run=f"{wait} && touch part{{i}}", category="wait")\n'
        f'task("all", needs=[f"part{{i}}" for i in range({count})])\n'
    )
    return flow


def most_together(flow: Path) -> int:
    ended = final_records(flow)
    return max(sum(other.started <= one.started < other.ended for other in ended) for one in ended)


def test_slots_are_exact_on_a_node_and_the_default_counts_cores(cluster: LocalCluster) -> None:
    three = "until [ $(ls | grep -c begun) -ge 3 ]; do sleep 0.05; done"  # else one might be over before another begins
    flow = write(cluster.folder / "slots", 12, f"touch begun{{i}}; {three}; sleep 0.3")
    cluster.shoal("run", "--cluster", NAME, "--throttle", "slots=3", "all", "--quiet", where=flow.parent)
    assert most_together(flow) == 3
    flow = write(cluster.folder / "plain", 4, "sleep 0.2")
    cluster.shoal("run", "--cluster", NAME, "all", "--quiet", where=flow.parent)
    assert most_together(flow) == 1


def decisions(flow: Path) -> list[ThrottleDecided]:
    return [record for record in records(flow) if isinstance(record, ThrottleDecided)]


def test_a_node_finds_out_how_many_and_says_so(cluster: LocalCluster) -> None:
    count = 1000
    flow = write(cluster.folder / "adaptive", count, "(test -e enough || sleep 0.25)")
    run = cluster.begin("run", "--cluster", NAME, "--throttle", "adaptive", "all", "--quiet", where=flow.parent)
    try:
        wait_until(
            lambda: "throttle: wait: " in cluster.shoal("cluster", "status", NAME), "the node tells of its throttle"
        )
        last = f"part{count - 1}"
        wait_until(lambda: "held back by the throttle" in cluster.shoal("why", last, where=flow.parent), "so does why")
        wait_until(lambda: any(each.cap > 1 for each in decisions(flow)), "it has tried more than one at a time")
    finally:
        (flow.parent / "enough").touch()
        run.wait(120)
    assert run.returncode == 0
    assert most_together(flow) > 1
    told = decisions(flow)
    assert told[0].cap == 1 and told[0].node
    assert " on " in cluster.shoal("status", "--throttle", where=flow.parent)
