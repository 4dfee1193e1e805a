"""Two hundred random damages to a ledger: the next run always starts, says so, and redoes no more than was damaged,
once the user has said that it may."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from shoal.execution.session import look
from shoal.ledger.history import read_history
from shoal.ledger.records import Damage, TaskEnded, decode, frames
from shoal.ledger.workspace import Workspace
from support.command import shoal
from support.ledgers import ledger_path

TASKS = 120
DAMAGES = 200


def damage_bytes(data: bytes, dice: random.Random) -> tuple[bytes, int, int]:
    """Cut, zeroed, flipped or overwritten, in the middle or at the end; with the stretch that was touched."""
    kind = dice.choice(["cut", "zero", "flip", "noise"])
    begin = dice.randrange(len(data))
    end = min(len(data), begin + dice.choice([1, 1, 8, 100, 512, 4096]))
    if kind == "cut":
        return data[:begin], begin, len(data)
    if kind == "zero":
        return data[:begin] + bytes(end - begin) + data[end:], begin, end
    if kind == "flip":
        return (
            data[:begin] + bytes(byte ^ (1 << dice.randrange(8)) for byte in data[begin:end]) + data[end:],
            begin,
            end,
        )
    return data[:begin] + dice.randbytes(end - begin) + data[end:], begin, end


def results_touched(data: bytes, begin: int, end: int) -> int:
    """Accepted results whose frames overlap the damaged stretch."""
    touched, at = 0, 0
    nothing: list[Damage] = []
    for after, payload in frames(data, nothing):
        if at < end and after > begin and isinstance(decode(payload), TaskEnded):
            touched += 1
        at = after
    return touched


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished")
    lines = [f"o{number}:\n\techo {number} > o{number}\n" for number in range(TASKS)]
    (directory / "Makeflow").write_text("".join(lines))
    shoal(directory, "run", "Makeflow", "-j2", "--quiet")
    return directory


@pytest.mark.parametrize("chunk", range(4))
def test_no_more_is_redone_than_the_damaged_stretch_covered(
    finished: Path, tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(chunk)
    original = ledger_path(finished / "Makeflow").read_bytes()
    directory = tmp_path / "damaged"
    shutil.copytree(finished, directory)
    workflow = directory / "Makeflow"
    monkeypatch.chdir(directory)
    for _ in range(DAMAGES // 4):
        data, begin, end = damage_bytes(original, dice)
        ledger_path(workflow).write_bytes(data)
        view = look(str(workflow), [], None)
        redone = len(view.plan.to_run())
        assert redone <= results_touched(original, begin, end)
        history = read_history(Workspace(str(workflow)))
        if data != original and begin < len(data):
            assert history.damage, f"damage at {begin}:{end} went unnoticed"


@pytest.mark.parametrize("seed", range(10))
def test_run_starts_says_what_was_lost_and_repairs_it(finished: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(1000 + seed)
    directory = tmp_path / "damaged"
    shutil.copytree(finished, directory)
    path = ledger_path(directory / "Makeflow")
    original = path.read_bytes()
    begin = dice.randrange(len(original) // 2, len(original) - 2000)
    path.write_bytes(original[:begin] + dice.randbytes(700) + original[begin + 700 :])
    lost = results_touched(original, begin, begin + 700)
    first = shoal(directory, "run", "Makeflow", "-j2", expect=2 if lost else 0)
    assert "damaged" in first.stderr + first.stdout
    if lost:  # their outputs are there, and nobody knows any more who made them
        assert "was not made by this workflow" in first.stderr
        shoal(directory, "run", "Makeflow", "-j2", "--overwrite")
    second = shoal(directory, "run", "Makeflow", "-j2")
    assert "damaged" not in second.stderr + second.stdout
    assert sorted(p.read_text() for p in directory.glob("o*")) == sorted(f"{n}\n" for n in range(TASKS))
