"""Four hosts without shared files compare all of one set with all of another: what moves depends on who does what."""

from __future__ import annotations

from pathlib import Path

from shoal.ledger.records import TaskEnded, decode, frames
from support.allpairs import all_pairs_flow
from support.campaign import Campaign
from support.clusters import NAME
from support.hosts import some_hosts

HOSTS, SIDE, FILE_BYTES = 4, 12, 1_000_000


def moved(campaign: Campaign, policy: str) -> int:
    """Bytes that the hosts sent; every task ran once, and all of them did what they should."""
    folder, hosts = campaign.folder / policy, campaign.hosts
    folder.mkdir()
    (folder / "flow.py").write_text(all_pairs_flow(SIDE, FILE_BYTES, 0.05, 0.05))
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
