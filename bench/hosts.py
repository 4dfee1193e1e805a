"""Eight agents on eight hosts without shared files: bytes moved and makespan by policy, and the prediction of both.

`python bench/hosts.py [--rounds 3] [--only WORKLOAD]`, as root: the hosts are network namespaces with shaped links. The
tasks sleep instead of computing, since all hosts share the cores of this machine. The prediction plays the same graph
with the same policies on a modelled cluster of the same links; the seconds that a task takes beside its own (starting
it, its folder, the books) are measured beforehand. The promises: FLDS moves at most half of what MLB moves and is
done sooner, and no prediction is off by more than 15 %; the exit status is 1 if one of them is not kept.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from shoal.core.work import from_graph
from shoal.execution.workflow_loader import load_workflow
from shoal.ledger.records import TaskEnded, decode, frames
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec
from support.allpairs import all_pairs_flow
from support.campaign import Campaign
from support.clusters import NAME
from support.hosts import some_hosts

HOSTS = 8
SIDE = 24
FILE_BYTES = 3_000_000
PAIR_SECONDS = 0.2
CHAINS, LINKS, LARGEST = 48, 8, 10_000_000
POLICIES = ("flds", "mlb")
RATES = {"all-pairs": 100, "pipeline": 50}
"""Megabits a second of each link, so that moving what a task reads takes longer than the task."""
PAYLOAD = 1448 / 1514
"""Bytes of a file in each byte of a full frame, as the links count them."""
RESULTS = Path(__file__).parent / "results" / "hosts.md"
PIPELINE = """from shoal import rule

ends = []
for chain, (seconds, sizes) in enumerate(zip(SECONDS, SIZES)):
    for link, (second, size) in enumerate(zip(seconds, sizes)):
        before = [f"c{chain}_{link - 1}"] if link else []
        name = f"c{chain}_{link}"
        read = f"cat {before[0]} > /dev/null; " if link else ""
        rule(name, before, run=f"{read}sleep {second}; head -c {size} /dev/zero > {name}")
    rule(f"e{chain}", [name], run=f"wc -c < {name} > e{chain}")
    ends.append(f"e{chain}")
rule("whole", ends, run="cat e* > whole")
"""


def drawn() -> tuple[list[list[float]], list[list[int]]]:
    """Seconds and bytes of the pipeline's tasks: both uniform, as in MATRIX's workloads."""
    random = Random(1)
    seconds = [[round(random.uniform(0.02, 0.5), 3) for _ in range(LINKS)] for _ in range(CHAINS)]
    sizes = [[random.randrange(LARGEST) for _ in range(LINKS)] for _ in range(CHAINS)]
    return seconds, sizes


def workloads() -> dict[str, str]:
    seconds, sizes = drawn()
    return {
        "all-pairs": all_pairs_flow(SIDE, FILE_BYTES, 0, PAIR_SECONDS),
        "pipeline": f"SECONDS = {seconds}\nSIZES = {sizes}\n" + PIPELINE,
    }


def costs(name: str) -> tuple[float, int]:
    """Seconds that whatever makes a file sleeps, and the file's bytes."""
    if name[0] in "ab" and not name.endswith(".ok"):
        return 0.0, FILE_BYTES
    if name[0] == "c":
        chain, link = map(int, name[1:].split("_"))
        seconds, sizes = drawn()
        return seconds[chain][link], sizes[chain][link]
    return (PAIR_SECONDS if name[0] == "p" else 0.0), 0


def predicted(folder: Path, policy: str, rate: float, overhead: float) -> tuple[float, int]:
    """Makespan and bytes moved, played with the scheduler's own code."""
    graph = load_workflow(str(folder / "flow.py"), ["whole"]).graph
    slept = [costs(name)[0] for name in graph.names]
    sizes = [costs(name)[1] for name in graph.file_names]
    work = from_graph(graph, slept, sizes)
    spec = ClusterSpec(nodes=HOSTS, node=NodeSpec(cores=1, link=rate), overhead=overhead)
    played = [
        ClusterRun(work, spec, SimulationOptions(policy=policy, submission="one", estimated=False, seed=seed)).execute()
        for seed in range(5)
    ]
    return median(one.makespan for one in played), int(median(one.moved for one in played))


class Runs:
    """Real runs on the hosts."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.number = 0

    def run(self, text: str, policy: str) -> tuple[float, int, Path]:
        """Seconds from the first start to the last end, and bytes of files that went between hosts."""
        self.number += 1
        folder = self.campaign.folder / f"run{self.number}"
        folder.mkdir()
        (folder / "flow.py").write_text(text)
        before = self._fetched()
        begin = time.monotonic()
        words = ("run", "--cluster", NAME, "--files", "managed", "--policy", policy, "whole", "--quiet")
        self.campaign.cluster.shoal(*words, where=folder)
        took = time.monotonic() - begin
        return _makespan(folder) or took, self._fetched() - before, folder

    def _fetched(self) -> int:
        """Bytes of files that the nodes have got from each other, as they told with their last beat."""
        time.sleep(1.5)
        told = self.campaign.cluster.shoal("cluster", "status", NAME)
        return 1_000_000 * sum(int(found.replace(",", "")) for found in re.findall(r"([\d,]+) MB fetched", told))


def _tasks(folder: Path) -> list[TaskEnded]:
    """The ends of tasks, as the ledger has them."""
    ended = [decode(payload) for _, payload in frames((folder / ".shoal/flow.py/ledger").read_bytes(), [])]
    found = [record for record in ended if isinstance(record, TaskEnded)]
    assert len({record.place for record in found}) == len(found), "a task has run twice"
    return found


def _makespan(folder: Path) -> float:
    """From the first start to the last end, as the ledger has it: without reading and sending the workflow."""
    tasks = _tasks(folder)
    return max(task.ended for task in tasks) - min(task.started for task in tasks)


class Row(NamedTuple):
    """One workload under one policy: medians of the real runs, and the prediction."""

    workload: str
    policy: str
    seconds: float
    foreseen: float
    moved: float
    foreseen_moved: float

    def text(self) -> str:
        off = self.foreseen / self.seconds - 1
        amounts = f"{self.moved / 1e6:,.0f} | {self.foreseen_moved / 1e6:,.0f}"
        return (
            f"| {self.workload} | {self.policy} | {self.seconds:.2f} | {self.foreseen:.2f} ({off:+.0%}) | {amounts} |"
        )


def measure(workload: str, text: str, rate: int, rounds: int) -> list[Row]:
    """All policies in turn, on fresh hosts."""
    with tempfile.TemporaryDirectory() as name, some_hosts(HOSTS, f"{rate}mbit") as hosts:
        campaign = Campaign(Path(name), hosts, 0, None)
        campaign.trouble = False
        try:
            campaign.start()
            campaign.cluster.await_nodes(HOSTS)
            runs = Runs(campaign)
            overhead = _overhead(runs)
            found = [(policy, runs.run(text, policy)) for _ in range(rounds) for policy in POLICIES]
            rows = []
            for policy in POLICIES:
                each = [run for ran, run in found if ran == policy]
                foreseen = predicted(each[0][2], policy, PAYLOAD * rate * 1e6 / 8, overhead)
                seconds, moved = median(run[0] for run in each), median(run[1] for run in each)
                rows.append(Row(workload, policy, seconds, foreseen[0], moved, foreseen[1]))
            return rows
        finally:
            campaign.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(RATES), help="one workload")
    arguments = parser.parse_args()
    lines = ["| workload | policy | makespan (s) | predicted | moved (MB) | predicted |", "|---" * 6 + "|"]
    kept = True
    for workload, text in workloads().items():
        if arguments.only not in (None, workload):
            continue
        rows = measure(workload, text, RATES[workload], arguments.rounds)
        lines += [row.text() for row in rows]
        print("\n".join(row.text() for row in rows), flush=True)
        flds, mlb = rows
        kept = kept and flds.moved <= mlb.moved / 2 and flds.seconds < mlb.seconds
        kept = kept and all(abs(row.foreseen / row.seconds - 1) <= 0.15 for row in rows)
    if arguments.only is None:
        RESULTS.write_text("# Eight hosts without shared files\n\n" + "\n".join(lines) + "\n")
    return 0 if kept else 1


def _overhead(runs: Runs) -> float:
    """Seconds of a task beside its own, from chains on all hosts at once on which nothing is fetched."""
    count, slept = 20, 0.2
    text = "from shoal import rule\n"
    for chain in range(HOSTS):
        for link in range(count):
            name, before = f"t{chain}_{link}", [f"t{chain}_{link - 1}"] if link else []
            text += f"rule({name!r}, {before}, run='sleep {slept}; head -c {FILE_BYTES} /dev/zero > {name}')\n"
        text += f"rule('u{chain}', ['t{chain}_{count - 1}'], run='touch u{chain}')\n"
    text += f"rule('whole', {[f'u{chain}' for chain in range(HOSTS)]}, run='touch whole')\n"
    _, _, folder = runs.run(text, "flds")
    ends = [task.ended for task in sorted(_tasks(folder), key=lambda task: task.task)]
    gaps = [later - one for one, later in pairwise(ends)]  # all but a few are of neighbours in a chain
    return mean(gap - slept for gap in gaps if slept < gap < 3 * slept)


if __name__ == "__main__":
    sys.exit(main())
