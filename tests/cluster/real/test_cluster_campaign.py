"""Two thousand tasks on agents of six hosts, while agents, links, head, Redis and client fail. Seeds by SHOAL_SEEDS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.ledger.records import Damage, TaskEnded, decode, frames
from support.campaign import Campaign
from support.command import wait_until
from support.hosts import some_hosts
from support.redis_servers import CAREFUL, FORGETFUL, free_port, one_server

SEEDS = [int(word) for word in os.environ.get("SHOAL_SEEDS", "2").split()]
STRIKES = 5
SECONDS = 300.0


def expect_one_result_each(ledger: Path) -> None:
    """Every task has a result, and one that was accepted again only because it was lost is not recorded twice."""
    damage: list[Damage] = []
    accepted: dict[bytes, int] = {}
    for _, payload in frames(ledger.read_bytes(), damage):
        record = decode(payload)
        if isinstance(record, TaskEnded) and record.outcome == "ok" and record.final:
            accepted[record.place] = accepted.get(record.place, 0) + 1
    assert len(accepted) == 2001


@pytest.mark.parametrize("seed", SEEDS)
def test_every_output_is_right_whatever_happens(seed: int, tmp_path: Path) -> None:
    port = free_port()
    with (
        some_hosts(6) as hosts,
        one_server(tmp_path, *CAREFUL, "--port", str(port), "--bind", hosts.here, "--protected-mode", "no") as server,
    ):
        campaign = Campaign(tmp_path, hosts, seed, server if seed % 2 else None, f"redis://{hosts.here}:{port}")
        try:
            campaign.start()
            campaign.play(STRIKES, SECONDS)
            campaign.check()
            expect_one_result_each(campaign.work / ".shoal" / "flow.py" / "ledger")
        finally:
            campaign.end()


def test_no_run_hangs_when_its_store_is_lost_its_head_is_down_and_its_agents_get_other_numbers(tmp_path: Path) -> None:
    """Each client ends: with the result, or with the word that its run is lost; then the same command goes on."""
    port = free_port()
    places = ("--port", str(port), "--protected-mode", "no")
    with some_hosts(3) as hosts, one_server(tmp_path, *FORGETFUL, *places, "--bind", hosts.here, "127.0.0.1") as server:
        address = f"redis://{hosts.here}:{port}"
        campaign = Campaign(tmp_path, hosts, 5, server, address, tasks=(6, 30), task_seconds=0.1, gated=True)
        strikes = ["rename", "headless", "empty", "rename", "kill", "empty", "headless"]
        try:
            campaign.start()
            campaign.play_all(strikes, SECONDS)
            campaign.check()
            assert campaign.happened == strikes
        finally:
            campaign.end()


def test_with_one_agent_left_the_run_still_ends(tmp_path: Path) -> None:
    with some_hosts(4) as hosts:
        campaign = Campaign(tmp_path, hosts, 77, None, tasks=(6, 50))
        campaign.trouble = False
        try:
            campaign.start()
            campaign.cluster.await_nodes(4)
            campaign.start_client()
            wait_until(lambda: "%" in campaign.told(), "the run has begun")
            for host in (1, 2, 3):
                campaign.kill_for_good(host)
            campaign.play(0, SECONDS)
            campaign.check()
        finally:
            campaign.end()
