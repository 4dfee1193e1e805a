"""Where somebody is in `shoal top`: the view, the chosen row, the order, one task. Keys in, state out; pure."""

from __future__ import annotations

import msgspec

from shoal.cli.toptables import VIEWS, Opens, Row, Table

_PAGE = 10


class Place(msgspec.Struct):
    """What is looked at."""

    view: str = "c"
    row: int = 0
    """The chosen row of the table, as it is sorted."""
    task: int | None = None
    """The task that is shown instead of the table."""
    scrolled: int = 0
    """Lines of what is told of that task that are above the window."""
    category: str = ""
    state: str = ""
    """Of the tasks that are listed."""
    order: dict[str, int] = msgspec.field(default_factory=dict)
    """By view: the column that its table is sorted by."""
    help: bool = False
    over: bool = False

    def press(self, key: str, table: Table) -> None:
        """Takes one key; `table` is what is shown, sorted."""
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

    def _open(self, row: Row) -> None:
        opens = row.opens or Opens()
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
