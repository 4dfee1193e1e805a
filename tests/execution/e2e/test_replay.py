"""A live run's trace, fed to a fresh broker, must give the same commands: what happens live can be replayed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.core.invariants import check_broker
from shoal.core.resources import Resources
from shoal.core.scheduler import Scheduler
from shoal.core.scheduler_messages import Command, Event
from shoal.execution.learned_sizes import DEFAULT_MODE, KeptSizes, LearnedSizes, columns_for, lanes_for
from shoal.execution.workflow_loader import load_workflow
from shoal.ledger.identity import Versions
from support.command import shoal

WORKFLOW = """
from shoal import rule, task

rule("a/{x}", run="echo {x} > {out}")
rule("b/{x}", needs="a/{x}", run="cat {needs} > {out}", cores=2)
task("flaky", run="test -e seen || {{ touch seen; exit 1; }}", retries=1)
task("bad", run="exit 3")
task("all", needs=["flaky", *[f"b/{number}" for number in range(30)]])
task("everything", needs=["all", "bad"])
"""


def test_live_trace_replays_to_the_same_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flow.py").write_text(WORKFLOW)
    trace = tmp_path / "trace.jsonl"
    shoal(
        tmp_path,
        "run",
        "flow.py",
        "everything",
        "-j2",
        "--memory",
        "4G",
        "--disk",
        "8G",
        "--trace",
        str(trace),
        "--paranoid",
        "--quiet",
        expect=1,
    )
    (tmp_path / "seen").unlink()

    monkeypatch.chdir(tmp_path)
    graph = load_workflow("flow.py", ["everything"]).graph
    node = Resources.parse({"cores": 2, "memory": "4G", "disk": "8G"})
    lanes = lanes_for(graph, LearnedSizes(graph, node, DEFAULT_MODE, KeptSizes()))
    broker = Scheduler(node, columns_for(graph, Versions(graph), "lifo+hrf"), lanes)
    lines = trace.read_bytes().splitlines()
    assert len(lines) > 20
    for line in lines:
        now, event, commands = msgspec.json.decode(line, type=tuple[float, Event, list[Command]])
        assert broker.handle(now, event) == commands
        check_broker(broker)
    assert broker.idle()
