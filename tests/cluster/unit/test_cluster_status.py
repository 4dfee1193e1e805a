"""How `shoal cluster status` shows groups."""

from __future__ import annotations

from shoal.cluster.agent.messages import ClusterNodeFacts, ClusterReply, ClusterRunFacts
from shoal.cluster.home import ClusterRecord, GroupRecord
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.ui.cli.cluster import described


def node(name: str, **labels: str) -> NodeInfo:
    return NodeInfo(f"tcp://{name}:1", f"{name}/7", Resources.parse({"cores": 2}), labels, None, "", "1")


def test_a_single_group_needs_no_heading() -> None:
    found = ClusterReply({0: node("a", group="main", site="x")}, [], {0: ClusterNodeFacts(2, 3)})
    assert described(found, ClusterRecord(groups=[GroupRecord()]), {"main": ["  factory from 0 to 3 nodes"]}) == [
        "1 node",
        "     0  a/7  tcp://a:1  cores 2  site=x  (2 run, 3 wait)",
        "  factory from 0 to 3 nodes",
    ]


def test_fetched_bytes_are_shown_in_a_suitable_unit() -> None:
    found = ClusterReply({0: node("a", group="main")}, [], {0: ClusterNodeFacts(fetched=195 << 10)})
    assert described(found, ClusterRecord(groups=[GroupRecord()]), {})[1].endswith("(0 run, 0 wait, 195 KiB fetched)")


def test_several_groups_have_one_each_with_what_is_missing_from_it() -> None:
    nodes = {0: node("a", group="main"), 3: node("b", group="gpu"), 4: node("c")}
    started = ClusterRecord(
        groups=[GroupRecord(), GroupRecord("gpu", "slurm"), GroupRecord("old", "local", closing=True)]
    )
    run = ClusterRunFacts("r1", "flow.py", "active", 10, 4)
    lines = described(ClusterReply(nodes, [run]), started, {"gpu": ["  waiting  job 17  no free node"]})
    assert [line.split("  tcp:")[0] for line in lines] == [
        "3 nodes",
        "  group main, local: 1 node",
        "     0  a/7",
        "  group gpu, slurm: 1 node",
        "     3  b/7",
        "    waiting  job 17  no free node",
        "  in no group: 1 node",
        "     4  c/7",
        "  run r1  flow.py  active  6 of 10 tasks",
    ]


def test_who_has_only_the_access_file_sees_the_groups_as_well() -> None:
    nodes = {0: node("a", group="main"), 3: node("b", group="gpu")}
    lines = described(ClusterReply(nodes, []), ClusterRecord(), {})
    assert [line for line in lines if "group" in line] == ["  group main: 1 node", "  group gpu: 1 node"]


def test_a_group_is_shown_until_its_last_node_is_gone() -> None:
    started = ClusterRecord(groups=[GroupRecord(), GroupRecord("old", "local", closing=True)])
    lines = described(ClusterReply({0: node("a", group="old")}, []), started, {})
    assert "  group old, local, is being removed: 1 node" in lines
