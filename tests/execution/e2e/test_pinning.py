"""Tasks that declare whole cores are held to certain processors, whichever launcher starts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.command import shoal, wait_until

FLOW = """
from shoal import rule, task

see = "set +u; grep Cpus_allowed_list /proc/self/status > {name}; echo $SHOAL_CPUS >> {name}; sleep 0.2"
for number in range(4):
    rule(f"one{number}", run=see.format(name=f"one{number}"), cores=1)
rule("free", run=see.format(name="free"))
task("all", needs=[*(f"one{number}" for number in range(4)), "free"])
"""


def seen(path: Path) -> tuple[str, str]:
    """What the system says of the processors of a task, and what the task was told."""
    allowed, told = path.read_text().splitlines()
    return allowed.split()[1], told


@pytest.mark.parametrize("launcher", ["native", "python"])
def test_a_task_runs_where_it_was_granted_a_place_and_others_run_anywhere(
    tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHER", launcher)
    (tmp_path / "flow.py").write_text(FLOW)
    processors = {str(cpu) for cpu in os.sched_getaffinity(0)}

    def some_were_pinned() -> bool:
        """What other engines on this machine have given to their tasks is not ours to give: then it is tried again."""
        shoal(tmp_path, "run", "--quiet", "--force")
        for number in range(4):
            allowed, told = seen(tmp_path / f"one{number}")
            assert not told or (allowed == told and told in processors)
        return any(seen(tmp_path / f"one{number}")[1] for number in range(4))

    wait_until(some_were_pinned, "a task gets a processor of its own")
    allowed, told = seen(tmp_path / "free")
    assert told == ""
    assert allowed not in processors or len(processors) == 1
