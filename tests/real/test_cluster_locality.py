"""Four hosts without shared files compare all of one set with all of another: what moves depends on who does what."""

from __future__ import annotations

from pathlib import Path

from shoal.ledger.records import TaskEnded, decode, frames
from support.campaign import Campaign
from support.clusters import NAME
from support.hosts import some_hosts

HOSTS, SIDE, FILE_BYTES = 4, 12, 1_000_000
FLOW = f"""from shoal import rule

made = []
for i in range({SIDE}):
    for name in (f"a{{i}}", f"b{{i}}"):
        rule([name, f"{{name}}.ok"], run=f"sleep 0.05; head -c {FILE_BYTES} /dev/zero > {{name}}; touch {{name}}.ok")
        made.append(f"{{name}}.ok")
rule("made", made, run="touch made")
pairs = []
for i in range({SIDE}):
    for j in range({SIDE}):
        name = f"p{{i}}_{{j}}"
        rule(name, [f"a{{i}}", f"b{{j}}", "made"], run=f"sleep 0.05; cat a{{i}} b{{j}} | wc -c > {{name}}")
        pairs.append(name)
rule("whole", pairs, run="cat p* > whole")
"""


def moved(campaign: Campaign, policy: str) -> int:
    """Bytes that the hosts sent; every task ran once, and all of them did what they should."""
    folder, hosts = campaign.folder / policy, campaign.hosts
    folder.mkdir()
    (folder / "flow.py").write_text(FLOW)
    before = sum(map(hosts.bytes_sent, range(1, HOSTS + 1)))
    words = ("--files", "managed", "--policy", policy, "whole", "--quiet")
    campaign.cluster.shoal("run", "--cluster", NAME, *words, where=folder)
    assert (folder / "whole").read_text().split() == [str(2 * FILE_BYTES)] * SIDE**2
    records = [decode(payload) for _, payload in frames((folder / ".shoal/flow.py/ledger").read_bytes(), [])]
    ended = [record.place for record in records if isinstance(record, TaskEnded)]
    assert len(ended) == len(set(ended)) == SIDE**2 + 2 * SIDE + 2
    return sum(map(hosts.bytes_sent, range(1, HOSTS + 1))) - before


def test_tasks_that_read_the_same_run_together(tmp_path: Path) -> None:
    with some_hosts(HOSTS, "200mbit") as hosts:
        campaign = Campaign(tmp_path, hosts, 0, None, tasks=(1, 1))
        campaign.trouble = False
        try:
            campaign.start()
            campaign.cluster.await_nodes(HOSTS)
            by_load, by_data = moved(campaign, "mlb"), moved(campaign, "flds")
            assert by_data < 0.8 * by_load  # about 0.55; in the worst case everything goes everywhere in both
        finally:
            campaign.end()
