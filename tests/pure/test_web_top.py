"""The lines of `shoal top`: they fit every terminal, say the essentials, and obey nothing that names contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.topview import PLAIN_BARS, VIEWS, fitted, lines, spark
from shoal.engine.workspace import Workspace
from shoal.ledger.records import Record, TaskStarted, encode
from shoal.web.parts import quick_parts, slow_parts
from shoal.web.watch import Watch
from support.views import BEGAN, ended, over, planned, started

ODD = "\x1b[2Jodd\r\x07"
RUN: list[Record] = [
    started(4),
    planned(["first", "long", ODD, "last"]),
    ended(0, 1.0, 3.0, memory=1 << 20),
    ended(1, 3.0, 7.0, "failed", message=ODD),
    TaskStarted(2, 1, BEGAN + 5.0, 7, 0.0, 0),
]


def parts_of(folder: Path, *records: Record) -> dict[str, Any]:
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    watch = Watch(workspace)
    watch.refresh()
    return {**slow_parts(watch), **quick_parts(watch)}


def plain(text: str, colour: str) -> str:
    return text


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(20, 3), (40, 8), (79, 24), (200, 60)])
def test_lines_fit_the_terminal_and_move_no_cursor(tmp_path: Path, view: str, width: int, height: int) -> None:
    found = lines(parts_of(tmp_path, *RUN), view, width, height, plain, blocks=False)
    assert len(found) <= height
    assert max(map(len, found)) <= width
    assert all(line.isprintable() for line in found)


def test_progress_tables_and_keys_are_shown(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, *RUN, over(9.0, "failed"))
    text = "\n".join(lines(parts, "c", 100, 30, plain, blocks=True))
    assert "flow.py  failed" in text and "1 of 4 done, 1 failed, 2 not run" in text
    assert "category" in text and "first" in text and "q leaves" in text
    assert "cause" in "\n".join(lines(parts, "f", 100, 30, plain, blocks=True))
    assert "here" in "\n".join(lines(parts, "n", 100, 30, plain, blocks=True))


def test_before_the_first_run_there_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("")
    watch = Watch(Workspace(str(tmp_path / "flow.py")))
    watch.refresh()
    assert lines(quick_parts(watch), "c", 80, 24, plain, blocks=True)[0] == "flow.py: nothing has been run yet"


def test_the_last_columns_give_way_before_the_name_is_gone() -> None:
    table = [["category", "planned", "done"], ["a-long-name-of-a-category", "1,000,000", "5"]]
    assert fitted(table, 24, 9, plain) == ["category         planned", "a-long-name-…  1,000,000"]
    assert fitted(table, 60, 9, plain)[1] == "a-long-name-of-a-category  1,000,000     5"


def test_a_curve_has_letters_for_levels() -> None:
    assert spark([0, 4, 8], 8, 10, PLAIN_BARS) == " =%"
    assert spark([0, 0, 8, 8], 8, 2, PLAIN_BARS) == " %"
    assert spark([], 0, 3, PLAIN_BARS) == "   "
