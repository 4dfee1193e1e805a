"""Runs whose tasks declare no memory: sizes are learned, what exceeds them is tried with more, and nothing is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from shoal.core.policies.sizing.sizer import Cell, Learned
from shoal.execution.learned_sizes import read_kept
from shoal.ledger.records import TaskEnded
from shoal.ledger.workspace import Workspace
from support.command import PATIENCE, shoal, start, wait_until
from support.ledgers import final_records, records, run_ids

HOG = "python3 -S -E -c 'import time; x = bytearray({mb} << 20); time.sleep(0.15)' && touch {out}"
"""Holds so much for long enough to be looked at."""
WAIT = "import os; any(time.sleep(0.02) for _ in iter(lambda: os.path.exists(chr(103) + chr(111)), True))"
"""Until there is a file `go`, in Python without quotation marks."""


def write_hogs(directory: Path, sizes: list[int], seconds: float = 0.15, **options: str) -> None:
    extra = "".join(f", {name}={value!r}" for name, value in options.items())
    lines = ["from shoal import rule"]
    for number, mb in enumerate(sizes):
        command = HOG.replace("{mb}", str(mb)).replace("{out}", f"o{number}").replace("0.15", str(seconds))
        lines.append(f'rule("o{number}", run="{command}", category="hog"{extra})')
    lines.append(f'rule("all", needs={[f"o{number}" for number in range(len(sizes))]!r}, run="touch all")')
    (directory / "flow.py").write_text("\n".join(lines) + "\n")


def categories(directory: Path) -> dict[str, dict[str, object]]:
    found = json.loads(shoal(directory, "status", "flow.py", "--categories", "--json").stdout)
    return {entry["category"]: entry for entry in found}


def test_a_task_that_uses_more_than_was_guessed_goes_on_as_long_as_there_is_room(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20, 30, 400, 20])
    shoal(tmp_path, "run", "flow.py", "all", "-j4", "--memory", "600M", "--quiet")
    hog = categories(tmp_path)["hog"]
    assert hog["retries"] == 0
    assert hog["memory"]["declared"] is None  # type: ignore[index]
    largest = max(record.max_rss for record in final_records(tmp_path / "flow.py"))
    assert largest > 400 << 20


def run_until_one_is_ended(directory: Path, *words: str) -> None:
    """Runs a workflow whose tasks wait for `go`, so that they are there together; it comes when one had to be ended."""
    run = start(directory, "run", "flow.py", "all", *words)
    flow = directory / "flow.py"

    def is_ended() -> bool:
        ends = [record for record in records(flow) if isinstance(record, TaskEnded)] if run_ids(flow) else []
        return any(record.outcome != "ok" for record in ends)

    wait_until(is_ended, "a task is ended for want of room")
    (directory / "go").touch()
    assert run.wait(PATIENCE) == 0


def test_what_outgrows_the_machine_is_tried_again_and_learned_for_the_next_run(tmp_path: Path) -> None:
    write_hogs(tmp_path, [200, 210, 205, 215, 200, 220], seconds=1.0)
    flow = tmp_path / "flow.py"
    flow.write_text(flow.read_text().replace("time.sleep(1.0)", f"{WAIT}; time.sleep(0.3)"))
    run_until_one_is_ended(tmp_path, "-j4", "--memory", "600M", "--quiet")
    assert categories(tmp_path)["hog"]["retries"] != 0
    shoal(tmp_path, "run", "flow.py", "all", "-j4", "--memory", "600M", "--quiet", "--force")
    assert categories(tmp_path)["hog"]["retries"] == 0


def test_a_task_over_the_limit_that_it_declared_fails_and_says_so(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20, 300, 30], memory="100M")
    done = shoal(tmp_path, "run", "flow.py", "all", "-j2", "--memory", "1G", expect=1)
    assert "used more than its 100 MiB of memory" in done.stdout + done.stderr
    assert (tmp_path / "o0").exists()
    assert (tmp_path / "o2").exists()
    assert not (tmp_path / "o1").exists()


def test_a_task_larger_than_the_machine_is_given_up_after_it_had_all_of_it(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20, 500])
    done = shoal(tmp_path, "run", "flow.py", "all", "-j2", "--memory", "300M", expect=1)
    assert "for which there was no room in 300 MiB" in done.stdout + done.stderr


def test_with_fixed_sizing_nothing_is_limited(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20, 500])
    shoal(tmp_path, "run", "flow.py", "all", "-j2", "--memory", "300M", "--sizing", "fixed", "--quiet")
    assert categories(tmp_path)["hog"]["retries"] == 0


def test_what_outgrows_the_disk_is_tried_again_with_more_of_it(tmp_path: Path) -> None:
    lines = ["from shoal import rule"]
    for number in range(3):
        command = f"head -c 70M /dev/zero > o{number}; while ! test -e go; do sleep 0.05; done"
        lines.append(f'rule("o{number}", run="{command}", category="writer")')
    lines.append('rule("all", needs=["o0", "o1", "o2"], run="touch all")')
    (tmp_path / "flow.py").write_text("\n".join(lines) + "\n")
    run_until_one_is_ended(tmp_path, "-j3", "--memory", "1G", "--disk", "120M", "--quiet", "--paranoid")
    assert all((tmp_path / f"o{number}").stat().st_size == 70 << 20 for number in range(3))
    writer = categories(tmp_path)["writer"]
    assert writer["disk"]["seen"] == 70 << 20  # type: ignore[index]
    assert writer["learned"]["disk"]["retries"] >= 1  # type: ignore[index]
    assert writer["learned"]["disk"]["first"] >= 70 << 20  # type: ignore[index]
    shoal(tmp_path, "run", "flow.py", "all", "-j3", "--memory", "1G", "--disk", "120M", "--quiet", "--force")
    assert categories(tmp_path)["writer"]["retries"] == 0, "one after the other from the beginning"


def test_the_plot_of_memory_does_not_blame_what_was_ended_for_its_disk(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(".MAKEFLOW CATEGORY wide\nDISK=1\no:\n\thead -c 5000000 /dev/zero > o\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet", expect=1)
    shoal(tmp_path, "status", "--categories", "--plot", "out.svg")
    assert "wide: 1 attempt, 0 killed over their limit" in (tmp_path / "out.svg").read_text()


def test_a_declared_core_is_shown_as_declared_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule, task\n"
        "rule('a', run='touch a', category='said', cores=1)\n"
        "rule('b', run='touch b', category='unsaid')\n"
        "task('all', needs=['a', 'b'])\n"
    )
    shoal(tmp_path, "run", "flow.py", "--quiet")
    found = categories(tmp_path)
    assert list(found) == ["said", "unsaid"], "a task that only groups others is no category"
    assert found["said"]["cores"]["declared"] == 1.0  # type: ignore[index]
    assert "cores" not in found["said"]["learned"]  # type: ignore[operator]
    assert found["unsaid"]["cores"]["declared"] is None  # type: ignore[index]
    assert "cores" in found["unsaid"]["learned"]  # type: ignore[operator]


def test_the_plot_shows_every_category_and_what_was_ended(tmp_path: Path) -> None:
    write_hogs(tmp_path, [200, 210, 205, 215], seconds=1.0)
    shoal(tmp_path, "run", "flow.py", "all", "-j4", "--memory", "600M", "--quiet")
    assert "retries" in shoal(tmp_path, "status", "--categories", "--plot", "out.svg").stdout.lower()
    drawing = ElementTree.parse(tmp_path / "out.svg").getroot()
    texts = [node.text or "" for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    retries = categories(tmp_path)["hog"]["retries"]
    assert any(text.startswith(f"hog: {4 + retries} attempts, {retries} killed over their limit") for text in texts)  # type: ignore[operator]
    assert any(text.startswith("touch: 1 attempt, 0 killed over their limit") for text in texts)
    bars = [node.get("fill") for node in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) > 2 * (5 + retries)  # type: ignore[operator]


def test_sizes_kept_by_an_earlier_version_are_read(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20])
    workspace = Workspace(str(tmp_path / "flow.py"))
    workspace.make()
    learned = Learned([Cell(100.0 * 2**20, 30.0, 60.0)], 100.0 * 2**20, 30)
    Path(workspace.sizes).write_bytes(msgspec.msgpack.encode({"memory": {"hog": learned}}))
    shoal(tmp_path, "run", "flow.py", "all", "-j4", "--memory", "2G", "--quiet")
    kept = read_kept(workspace)
    assert kept.memory["hog"].tasks == 31
    assert kept.wall["hog"].tasks == 1
    assert kept.shown["hog"]["cores"].first == 10_000


def test_work_queues_sizing_gives_the_first_tasks_the_whole_machine(tmp_path: Path) -> None:
    write_hogs(tmp_path, [20, 20, 20], seconds=0.4)
    shoal(tmp_path, "run", "flow.py", "all", "-j4", "--memory", "600M", "--sizing", "work-queue", "--quiet")
    ended = sorted((record.started, record.ended) for record in final_records(tmp_path / "flow.py"))
    assert all(one[1] <= other[0] for one, other in pairwise(ended)), "one after the other"
