"""The tables of `shoal top`: rows of text from the model, sorting, selection, and what Enter opens. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.core.quantities import show_bytes, show_number, show_seconds, show_share

Parts = Mapping[str, Any]
VIEWS = {"c": "categories", "t": "tasks", "r": "running", "f": "failures", "n": "nodes"}


class RowTarget(msgspec.Struct, frozen=True):
    """What Enter opens for a row: one task, or the tasks of a category or state."""

    task: int | None = None
    category: str = ""
    state: str = ""


class TableRow(msgspec.Struct, frozen=True):
    """One line of a table."""

    cells: list[str]
    values: list[Any]
    opens: RowTarget | None = None


class Table(msgspec.Struct, frozen=True):
    """Named columns; the first contains text and is left-aligned."""

    heads: list[str]
    rows: list[TableRow]
    empty: str = "nothing"

    def is_text(self, column: int) -> bool:
        """Whether a column contains names rather than numbers."""
        return any(isinstance(row.values[column], str) for row in self.rows)

    def sorted_by(self, column: int | None) -> Table:
        """Sorts by a column: text ascending, numbers descending."""
        if column is None or column >= len(self.heads):
            return self
        known = [row for row in self.rows if row.values[column] is not None]
        unknown = [row for row in self.rows if row.values[column] is None]
        known.sort(key=lambda row: row.values[column], reverse=not self.is_text(column))
        return msgspec.structs.replace(self, rows=known + unknown)


def table_of(view: str, parts: Parts) -> Table:
    """Returns one of `VIEWS`."""
    return _TABLES[view](parts)


def rows_of(parts: Parts, name: str) -> list[dict[str, Any]]:
    """Joins the rows of a table that was split into parts."""
    found: list[dict[str, Any]] = []
    number = 0
    while (part := parts.get(f"{name}.{number}")) is not None:
        found += part
        number += 1
    return found


def _row(opens: RowTarget | None, *columns: tuple[Any, str]) -> TableRow:
    """Builds a row from pairs of a value and its text."""
    return TableRow([text for _, text in columns], [value for value, _ in columns], opens)


def _number(value: float | None) -> tuple[float | None, str]:
    return (value, "-") if value is None else (value, f"{value:,}")


def _time(value: float | None) -> tuple[float | None, str]:
    return (value, show_seconds(value)) if value else (value, "-")


def _size(value: float | None) -> tuple[float | None, str]:
    return (value, show_bytes(round(value))) if value else (value, "-")


def _share(value: float | None) -> tuple[float | None, str]:
    return (None, "-") if value is None else (value, show_share(value))


def _range(least: float, most: float) -> str:
    return show_number(least) if least == most else f"{show_number(least)}-{show_number(most)}"


def _categories(parts: Parts) -> Table:
    """Categories, with allocated and used resources."""
    heads = ["category", "done", "of", "failed", "mean", "longest", "cores", "busy", "memory", "peak", "unused"]
    heads += ["retries", "core time"]
    rows = []
    for row in rows_of(parts, "categories"):
        given = row["memory_declared"] or row["memory_limit"]
        rows.append(
            _row(
                RowTarget(category=row["name"]),
                (row["name"], row["name"]),
                *(_number(row["done"]), _number(row["planned"]), _number(row["failed"])),
                *(_time(row["mean"]), _time(row["longest"])),
                (row["cores"], _range(row["cores_least"], row["cores_most"])),
                (row["cores_used"], show_number(row["cores_used"]) if row["done"] else "-"),
                *(_size(given), _size(row["most_memory"]), _share(row["memory_waste"])),
                *(_number(row["retries"]), _time(row["core_seconds"])),
            )
        )
    return Table(heads, rows, "no task has finished yet")


def _nodes(parts: Parts) -> Table:
    """Nodes, with totals over all attempts and the latest reports of the nodes."""
    now = {row["name"]: row for row in rows_of(parts, "standing")}
    heads = ["node", "cores", "running", "waiting", "local", "shared", "tasks", "failed", "busy"]
    heads += ["fetched", "hits", "stolen", "pushed"]
    rows = []
    for each in rows_of(parts, "nodes"):
        row = each | now.get(each["name"], {})
        queues = [_number(row.get(name)) for name in ("running", "wait", "local", "shared")]
        hits, read = row.get("hits", 0), row.get("hits", 0) + row.get("fetched_files", 0)
        rows.append(
            _row(
                None,
                (row["name"], row["name"]),
                (row["cores"], show_number(row["cores"])),
                *queues,
                *(_number(row["tasks"]), _number(row["failed"]), _share(row["share"]), _size(row["fetched"])),
                (hits / read, show_share(hits, read)) if read else (None, "-"),
                *(_number(row["stolen"]), _number(row["pushed"])),
            )
        )
    return Table(heads, rows, "no nodes")


def _running(parts: Parts) -> Table:
    """Running tasks, longest first."""
    elapsed = parts["progress"]["elapsed"]
    cluster = parts["run"]["cluster"]
    words = ["category", "node"] if cluster else ["category"]
    rows = [
        _row(
            RowTarget(task=row["task"]),
            (row["name"], row["name"]),
            _time(elapsed - row["since"]),
            _number(row["attempt"]),
            *((row.get(word) or "", row.get(word) or "") for word in words),
        )
        for row in parts.get("under_way") or parts.get("running") or []
    ]
    empty = "no running tasks" if not cluster else "no task has run for a second or more"
    return Table(["running task", "wall time", "attempt", *words], rows, empty)


def _tasks(parts: Parts) -> Table:
    rows = [
        _row(
            RowTarget(task=row["task"]),
            (row["name"], row["name"]),
            (row["state"], row["state"]),
            (row["category"] or "", row["category"] or "-"),
            _number(row["task"]),
        )
        for row in (parts.get("tasks") or {}).get("tasks", [])
    ]
    return Table(["task", "state", "category", "number"], rows, "no matching tasks")


def _failures(parts: Parts) -> Table:
    """Failures by cause, those with most tasks first."""
    rows = [
        _row(
            RowTarget(state="failed", category=row["categories"][0] if len(row["categories"]) == 1 else ""),
            (row["text"], row["text"]),
            *(_number(row["attempts"]), _number(row["given_up"]), _time(row["seconds"])),
        )
        for row in parts.get("failures") or []
    ]
    return Table(["cause", "attempts", "failed tasks", "time lost"], rows, "no failures")


_TABLES: dict[str, Callable[[Parts], Table]] = {
    "c": _categories,
    "t": _tasks,
    "r": _running,
    "f": _failures,
    "n": _nodes,
}


def widths_of(table: Table, shown: Sequence[TableRow], width: int, cells: Callable[[str], int]) -> list[int]:
    """Widths of the columns that fit: first the text column shrinks to a minimum, then the last columns are omitted."""
    texts = [table.heads, *(row.cells for row in shown)]
    found = [max(map(cells, column)) for column in zip(*texts, strict=True)]
    found = [size + 1 for size in found]  # room for the sort mark
    while len(found) > 1 and min(found[0], 12) + sum(found[1:]) + len(found[1:]) > width:
        found.pop()
    found[0] = max(1, min(found[0], width - sum(found[1:]) - len(found[1:])))
    return found


_PAGE = 10


class TopView(msgspec.Struct):
    """The user's position: view, selection, scroll offset and sort order."""

    view: str = "c"
    row: int = 0
    """The selected row of the sorted table."""
    task: int | None = None
    """The task that is shown instead of the table."""
    scrolled: int = 0
    """Number of lines of the task's page above the window."""
    category: str = ""
    state: str = ""
    """State of the listed tasks."""
    order: dict[str, int] = msgspec.field(default_factory=dict)
    """By view: the column by which its table is sorted."""
    help: bool = False
    over: bool = False

    def press(self, key: str, table: Table) -> None:
        """Handles one key; `table` is the visible, sorted table."""
        if key == "q":
            self.over = True
        elif self.help:
            self.help = False
        elif key == "?":
            self.help = True
        elif key in VIEWS or key == "tab":
            self._show(key if key in VIEWS else _after(self.view))
        elif self.task is not None:
            self._press_in_task(key)
        else:
            self._press_in_table(key, table)

    def _show(self, view: str) -> None:
        self.view, self.task, self.row, self.category, self.state = view, None, 0, "", ""

    def _press_in_task(self, key: str) -> None:
        if key in ("escape", "back", "left", "enter"):
            self.task = None
        else:
            self.scrolled = max(0, self.scrolled + _steps(key, 1000))

    def _press_in_table(self, key: str, table: Table) -> None:
        last = len(table.rows) - 1
        if key == "s":
            now = self.order.get(self.view, -1) + 1
            self.order[self.view] = now
            if now >= len(table.heads):
                del self.order[self.view]
        elif key in ("enter", "right"):
            if 0 <= self.row <= last:
                self._open(table.rows[self.row])
        elif key in ("escape", "back", "left"):
            self._show(self.view if not (self.category or self.state) else "c")
        else:
            self.row = max(0, min(last, self.row + _steps(key, last + 1)))

    def _open(self, row: TableRow) -> None:
        opens = row.opens or RowTarget()
        if opens.task is not None:
            self.task, self.scrolled = opens.task, 0
        elif opens.category or opens.state:
            self._show("t")
            self.category, self.state = opens.category, opens.state


def _after(view: str) -> str:
    names = list(VIEWS)
    return names[(names.index(view) + 1) % len(names)]


def _steps(key: str, rows: int) -> int:
    found = {"up": -1, "down": 1, "page up": -_PAGE, "page down": _PAGE, "home": -rows, "end": rows}
    return found.get(key, 0)
