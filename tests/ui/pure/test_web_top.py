"""The lines of `shoal top`: they fit every terminal, say the essentials, and obey nothing that names contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import Record, TaskStarted, encode
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.text import cells
from shoal.ui.top.tables import VIEWS, RowTarget, Table, TableRow, TopView, table_of
from shoal.ui.top.terminal import keys_in
from shoal.ui.top.view import HELP, PLAIN_BARS, Window, curve, fitted, lines, listed, task_lines
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.tasks import list_tasks, task_data
from shoal.ui.web.watch import Watch
from support.views import BEGAN, ended, linked, over, planned, started

ODD = "\x1b[2Jodd\r\x07\u202e中文"
RUN: list[Record] = [
    started(4),
    planned(["first", "long", ODD, "last"]),
    linked({1: [0], 2: [1]}),
    ended(0, 1.0, 3.0, memory=1 << 20),
    ended(1, 3.0, 7.0, "failed", message=ODD),
    TaskStarted(2, 1, BEGAN + 5.0, 7, 0.0, 0),
]


def plain(text: str, colour: str) -> str:
    return text


def watch_of(folder: Path, *records: Record) -> Watch:
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    watch = Watch(workspace)
    watch.refresh()
    return watch


def parts_of(watch: Watch) -> dict[str, Any]:
    listing = list_tasks(watch, state="", category="", search="", after=-1, limit=50)
    return {**slow_parts(watch), **quick_parts(watch), "tasks": listing}


def shown(parts: dict[str, Any], place: TopView, width: int, height: int, *, blocks: bool = True) -> list[str]:
    return lines(parts, table_of(place.view, parts), place, Window(width, height, plain, blocks))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(10, 3), (39, 12), (79, 24), (199, 60)])
def test_lines_fit_the_terminal_and_move_no_cursor(tmp_path: Path, view: str, width: int, height: int) -> None:
    parts = parts_of(watch_of(tmp_path, *RUN))
    for place in (TopView(view), TopView(view, help=True), TopView(view, row=99, order={view: 1})):
        found = shown(parts, place, width, height)
        assert len(found) <= height
        assert max(map(cells, found)) <= width
        assert all(line.isprintable() for line in found)


def test_nothing_that_is_said_is_cut_on_a_usual_terminal(tmp_path: Path) -> None:
    assert max(map(len, HELP)) < 80
    parts = parts_of(watch_of(tmp_path, *RUN, over(9.0, "failed")))
    parts["critical"]["by_category"][0]["name"] = "c" * 40
    [told] = [line for line in shown(parts, TopView("c"), 79, 24) if "critical path" in line]
    assert told == "critical path: 2 tasks, ran 6 s, waited 1 s"


def test_a_chain_of_which_a_little_is_left_is_not_done(tmp_path: Path) -> None:
    parts = parts_of(watch_of(tmp_path, *RUN))
    parts["critical"]["done"], parts["run"]["live"] = 0.996, True
    assert "critical path: 99 % done" in "\n".join(shown(parts, TopView("c"), 120, 30))


def test_progress_path_failures_tables_and_keys_are_shown(tmp_path: Path) -> None:
    parts = parts_of(watch_of(tmp_path, *RUN, over(9.0, "failed")))
    text = "\n".join(shown(parts, TopView("c"), 120, 30))
    assert "flow.py  failed" in text and "1 of 4 done, 1 failed, 2 not run" in text
    assert "critical path: 2 tasks, ran 6 s, waited 1 s, mostly long" in text
    assert "failures: ?[2Jodd???中文 (1)" in text
    assert "category" in text and "first" in text and "q quit" in text
    assert "cause" in "\n".join(shown(parts, TopView("f"), 100, 30))
    assert "here" in "\n".join(shown(parts, TopView("n"), 100, 30))
    assert "t1     failed   long" in "\n".join(shown(parts, TopView("t"), 100, 30))


def test_of_a_run_that_goes_on_it_is_told_how_many_cores_are_held_now(tmp_path: Path) -> None:
    parts = parts_of(watch_of(tmp_path, *RUN))
    parts["progress"] |= {"cores_held": 1.8}
    parts["run"] |= {"live": True}
    text = "\n".join(shown(parts, TopView("c"), 100, 30))
    assert " 1.8 of 2" in text and " peak 1 MiB" in text


def test_before_the_first_run_there_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("")
    watch = Watch(Workspace(str(tmp_path / "flow.py")))
    watch.refresh()
    found = lines(quick_parts(watch), Table([], []), TopView(), Window(80, 24, plain))
    assert found[0] == "flow.py: not run yet"


def table(*names: str) -> Table:
    rows = [
        TableRow([name, f"{len(name)}", "5"], [name, len(name), None], RowTarget(task=at))
        for at, name in enumerate(names)
    ]
    return Table(["category", "planned", "done"], rows)


def test_the_last_columns_give_way_before_the_name_is_gone() -> None:
    one = table("a-long-name-of-a-category")
    assert listed(one, TopView(), 9, Window(25, 9, plain)) == ["  category        planned", "> a-long-name-o…       25"]
    assert listed(one, TopView(), 9, Window(60, 9, plain))[1] == "> a-long-name-of-a-category        25     5"


def test_rows_are_scrolled_to_the_chosen_one() -> None:
    many = table(*(f"c{number:03}" for number in range(100)))
    found = listed(many, TopView(row=70), 11, Window(40, 20, plain))
    assert len(found) == 11 and "> c070" in "\n".join(found)
    assert listed(many, TopView(row=99), 11, Window(40, 20, plain))[-1].startswith("> c099")


def test_s_sorts_by_one_column_after_the_other_and_then_as_it_was() -> None:
    some, place = table("bb", "a", "ccc"), TopView()
    orders = []
    for _ in range(4):
        place.press("s", some)
        orders.append([row.values[0] for row in some.sorted_by(place.order.get("c")).rows])
    assert orders == [["a", "bb", "ccc"], ["ccc", "bb", "a"], ["bb", "a", "ccc"], ["bb", "a", "ccc"]]


def test_keys_choose_open_and_go_back() -> None:
    some, place = table("a", "b", "c"), TopView()
    for key in ("down", "down", "down", "up"):
        place.press(key, some)
    assert place.row == 1
    place.press("enter", some)
    assert place.task == 1
    place.press("escape", some)
    assert place.view == "c" and not place.task
    place.press("enter", Table(["category"], [TableRow(["x"], ["x"], RowTarget(category="x"))]))
    assert place.row == 1  # there is no such row
    place.press("home", some)
    place.press("enter", Table(["category"], [TableRow(["x"], ["x"], RowTarget(category="x"))]))
    assert (place.view, place.category) == ("t", "x")
    place.press("escape", some)
    assert (place.view, place.category) == ("c", "")
    place.press("?", some)
    place.press("f", some)
    assert (place.help, place.view) == (False, "c")
    place.press("q", some)
    assert place.over


def test_keys_are_told_apart_even_when_they_come_in_pieces() -> None:
    assert keys_in(b"\x1b[A\x1bOB\r\x7fjq") == (["up", "down", "enter", "back", "down", "q"], b"")
    assert keys_in(b"s\x1b[") == (["s"], b"\x1b[")
    assert keys_in(b"\x1b[" + b"5~") == (["page up"], b"")
    assert keys_in(b"\x1b[1;5C\x1b[999Zx") == (["x"], b"")
    assert keys_in(b"\x1b") == ([], b"\x1b")
    assert keys_in(b"\x1b\x1b[A") == (["escape", "up"], b"")


def test_one_task_is_told_with_its_attempts_output_and_reason(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, *RUN)
    watch.live = True
    task = task_data(watch, 1)
    assert task is not None
    text = task_lines(task, b"one\n\x1b[31mtwo\n", {"why": "it failed", "command": "make it"}, 9.0)
    assert text.splitlines()[:4] == ["t1  failed", "category long", "why: it failed", "command:"]
    assert "needs: t0 (done)" in text and "needed by: t2 (running)" in text
    assert "attempt 1: ?[2Jodd???中文, wall time 4 s, started after 3 s" in text
    assert text.endswith("output:\n  one\n  two")
    place = TopView(task=1, scrolled=1000)
    for window in (Window(10, 3, plain), Window(40, 6, plain), Window(100, 40, plain)):
        found = fitted(text, place, window)
        assert len(found) <= window.height and max(map(cells, found)) <= window.width
        assert all(line.isprintable() for line in found)


def test_a_curve_has_letters_for_levels_and_lines_for_heights() -> None:
    assert curve([0, 4, 8], 8, 10, PLAIN_BARS) == [" =%"]
    assert curve([0, 0, 8, 8], 8, 2, PLAIN_BARS) == [" %"]
    assert curve([], 0, 3, PLAIN_BARS) == ["   "]
    assert curve([0, 4, 6, 8], 8, 10, PLAIN_BARS, 2) == ["  =%", " %%%"]
