"""Eight agents on eight hosts without shared files: bytes moved and makespan by policy, and the prediction of both.

`python bench/hosts.py [--rounds 3] [--rate 100mbit]`, as root: the hosts are network namespaces with shaped links. The
tasks sleep instead of computing, since all hosts share the cores of this machine. The prediction plays the same graph
with the same policies on a modelled cluster of the same links; the seconds that a task takes beside its own (starting
it, its folder, the books) are measured on one host beforehand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from shoal.engine.load import load_workflow
from shoal.model.work import from_graph
from shoal.sim.cluster.run import ClusterRun, Options
from shoal.sim.cluster.spec import ClusterSpec, NodeSpec
from support.campaign import Campaign
from support.clusters import NAME
from support.hosts import some_hosts

HOSTS = 8
FILE_BYTES = 2_000_000
SECONDS = 0.2
POLICIES = ("flds", "mlb")
RESULTS = Path(__file__).parent / "results" / "hosts.md"
HEAD = f"""from shoal import rule

def made(name, needs):
    read = f"cat {{' '.join(needs)}} > /dev/null; " if needs else ""
    rule(name, needs, run=f"{{read}}sleep {SECONDS}; head -c {FILE_BYTES} /dev/urandom > {{name}}")
"""
WORKLOADS = {
    "all-pairs": HEAD
    + """
for i in range(12):
    made(f"a{i}", [])
    made(f"b{i}", [])
pairs = []
for i in range(12):
    for j in range(12):
        rule(f"p{i}_{j}", [f"a{i}", f"b{j}"], run=f"cat a{i} b{j} > /dev/null; sleep SECONDS; echo {i} {j} > p{i}_{j}")
        pairs.append(f"p{i}_{j}")
rule("whole", pairs, run="cat p* > whole")
""".replace("SECONDS", str(SECONDS)),
    "pipeline": HEAD
    + """
ends = []
for i in range(24):
    made(f"c{i}_0", [])
    for j in range(1, 8):
        made(f"c{i}_{j}", [f"c{i}_{j - 1}"])
    rule(f"e{i}", [f"c{i}_7"], run=f"wc -c < c{i}_7 > e{i}")
    ends.append(f"e{i}")
rule("whole", ends, run="cat e* > whole")
""",
}


def predicted(folder: Path, policy: str, rate: float, overhead: float) -> tuple[float, int]:
    """Makespan and bytes moved, played with the scheduler's own code."""
    graph = load_workflow(str(folder / "flow.py"), ["whole"]).graph
    slept = [0.0 if name.startswith(("whole", "e")) else SECONDS for name in graph.names]
    sizes = [0 if name.startswith(("p", "e", "whole")) else FILE_BYTES for name in graph.file_names]
    work = from_graph(graph, slept, sizes)
    spec = ClusterSpec(nodes=HOSTS, node=NodeSpec(cores=1, link=rate), overhead=overhead)
    played = ClusterRun(work, spec, Options(policy=policy, submission="one", estimated=False)).execute()
    return played.makespan, played.moved


class Runs:
    """Real runs on the hosts."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.number = 0

    def run(self, text: str, policy: str) -> tuple[float, int, Path]:
        """Seconds from the first start to the last end, and bytes that went between hosts."""
        self.number += 1
        folder = self.campaign.folder / f"run{self.number}"
        folder.mkdir()
        (folder / "flow.py").write_text(text)
        hosts = self.campaign.hosts
        before = sum(hosts.bytes_sent(host) for host in range(1, hosts.count + 1))
        begin = time.monotonic()
        words = ("run", "--cluster", NAME, "--files", "managed", "--policy", policy, "whole", "--quiet")
        self.campaign.cluster.shoal(*words, where=folder)
        took = time.monotonic() - begin
        after = sum(hosts.bytes_sent(host) for host in range(1, hosts.count + 1))
        return _makespan(folder) or took, after - before, folder


def _makespan(folder: Path) -> float:
    """From the first start to the last end, as the ledger has it: without reading and sending the workflow."""
    from shoal.ledger.records import TaskEnded, decode, frames

    ended = [decode(payload) for _, payload in frames((folder / ".shoal/flow.py/ledger").read_bytes(), [])]
    tasks = [record for record in ended if isinstance(record, TaskEnded)]
    return max(task.ended for task in tasks) - min(task.started for task in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=100, help="megabits per second of each link")
    arguments = parser.parse_args()
    rate = arguments.rate * 1e6 / 8
    lines = ["| workload | policy | makespan (s) | predicted | moved (MB) | predicted |", "|---" * 6 + "|"]
    with tempfile.TemporaryDirectory() as name, some_hosts(HOSTS, f"{arguments.rate}mbit") as hosts:
        campaign = Campaign(Path(name), hosts, 0, None)
        campaign.trouble = False
        try:
            campaign.start()
            campaign.cluster.await_nodes(HOSTS)
            runs = Runs(campaign)
            overhead = _overhead(runs)
            print(f"a task takes {1000 * overhead:.0f} ms beside its own time", flush=True)
            for workload, text in WORKLOADS.items():
                found: dict[str, list[tuple[float, int, Path]]] = {policy: [] for policy in POLICIES}
                for _ in range(arguments.rounds):
                    for policy in POLICIES:
                        found[policy].append(runs.run(text, policy))
                for policy, each in found.items():
                    seconds, moved = predicted(each[0][2], policy, rate, overhead)
                    real = median(one[0] for one in each)
                    real_moved = median(one[1] for one in each) / 1e6
                    lines.append(
                        f"| {workload} | {policy} | {real:.2f} | {seconds:.2f} ({seconds / real - 1:+.0%}) "
                        f"| {real_moved:,.0f} | {moved / 1e6:,.0f} |"
                    )
                    print(lines[-1], flush=True)
        finally:
            campaign.end()
    RESULTS.write_text("# Eight hosts without shared files\n\n" + "\n".join(lines) + "\n")


def _overhead(runs: Runs) -> float:
    """Seconds of a task beside its own, from a chain on which nothing is fetched."""
    count = 30
    chain = "from shoal import rule\nrule('t0', run='sleep 0.02; touch t0')\n" + "".join(
        f"rule('t{i}', ['t{i - 1}'], run='sleep 0.02; touch t{i}')\n" for i in range(1, count)
    )
    took, _, _ = runs.run(chain + f"rule('whole', ['t{count - 1}'], run='touch whole')\n", "flds")
    return max(0.0, took / (count + 1) - 0.02)


if __name__ == "__main__":
    main()
