"""A real run of a category whose tasks ask for different cores: page, report and status count what each one held."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.ledger.records import CoresAsked
from support.command import shoal
from support.ledgers import final_records, records

FLOW = """
from shoal import rule, task
for i in range(6):
    rule(f"part{i}", run=f"sleep 0.2; touch part{i}", category="merge", cores=1)
rule("whole", [f"part{i}" for i in range(6)], run="sleep 0.4; touch whole", category="merge", cores=2)
rule("alike", ["whole"], run="touch alike", category="alike", cores=2)
task("all", needs=["alike"])
"""


def test_tasks_are_charged_with_the_cores_they_asked_for(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    shoal(tmp_path, "run", "flow.py", "all", "-j2", "--quiet")
    (said,) = [record for record in records(flow) if isinstance(record, CoresAsked)]
    assert len(said.tasks) == len(said.cores) == 4 * 6
    data = json.loads(shoal(tmp_path, "report", "flow.py", "--json").stdout)
    merge = next(row for row in data["categories"] if row["name"] == "merge")
    assert (merge["cores_least"], merge["cores_most"]) == (1, 2)
    # Six tasks on one core and one on two; the last two tasks of all have two.
    took = [record.ended - record.started for record in sorted(final_records(flow), key=lambda record: record.started)]
    own = sum(took[:6]) + 2 * took[6]
    assert abs(merge["core_seconds"] - own) < 0.02 * own
    held = [sum(column) for column in zip(*data["timeline"]["cores"], strict=True)]
    assert max(held) <= 2.01
    blamed = ("with 2 cores", "needs 2 cores")
    assert not [sentence for sentence in data["advice"] if any(words in sentence for words in blamed)]


def test_a_run_of_tasks_alike_says_nothing_more(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW.replace("cores=1", "cores=2"))
    shoal(tmp_path, "run", "flow.py", "all", "-j2", "--quiet")
    assert not [record for record in records(flow) if isinstance(record, CoresAsked)]
