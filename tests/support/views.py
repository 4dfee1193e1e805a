"""Records of made-up runs, for what is shown of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from shoal.ledger.records import Record, RunEnded, RunStarted, TaskEnded, TasksLinked, TasksPlanned, Usage
from shoal.ledger.views.run import RunView

BEGAN = 1000.0
GIB = 1 << 30


def started(to_run: int, cores: float = 2.0, total: int | None = None, memory: int = 8 * GIB) -> RunStarted:
    node = [("cores", round(cores * 10_000)), ("memory", memory)]
    return RunStarted("abc", BEGAN, 1, 1, "boot", "here", "1.0", ["all"], node, total or to_run, to_run)


def planned(categories: Sequence[str]) -> TasksPlanned:
    """Tasks 0, 1, ... of these categories, named after their numbers."""
    numbers = list(range(len(categories)))
    return TasksPlanned(numbers, [f"t{number}" for number in numbers], list(categories))


def linked(needs: Mapping[int, Sequence[int]]) -> TasksLinked:
    """What each of some tasks needs; -1 is a file that no task makes."""
    flat = [need for row in needs.values() for need in row]
    return TasksLinked(
        array("i", needs).tobytes(), array("i", map(len, needs.values())).tobytes(), array("i", flat).tobytes()
    )


def ended(
    task: int,
    begin: float,
    end: float,
    outcome: str = "ok",
    *,
    final: bool = True,
    attempt: int = 1,
    node: int = 0,
    message: str = "",
    memory: int = 0,
    limit: int = 0,
    cpu: float | None = None,
) -> TaskEnded:
    """An attempt from one moment of the run to another."""
    used = end - begin if cpu is None else cpu
    head = (task, attempt, outcome, final, 0, BEGAN + begin, BEGAN + end, used, 0.0)
    return TaskEnded(
        *head,
        max_rss=memory,
        output_at=0,
        output_size=0,
        message=message,
        place=bytes([task % 256]),
        content=b"",
        inputs=b"",
        outputs=[],
        value=None,
        usage=Usage(),
        memory_limit=limit,
        node=node,
    )


def over(seconds: float, outcome: str = "ok") -> RunEnded:
    return RunEnded(BEGAN + seconds, outcome, 0, 0, 0)


def view_of(*records: Record) -> RunView:
    view = RunView()
    view.take_all(records)
    view.settle()
    return view


def diamond() -> RunView:
    """Two cores: 0 from 1 to 3, then 1 (to 7) and 2 (to 4), then 3 from 8 to 9, which needs both."""
    return view_of(
        started(4),
        planned(["first", "long", "short", "last"]),
        linked({0: [-1], 1: [0], 2: [0], 3: [1, 2]}),
        ended(0, 1.0, 3.0),
        ended(2, 3.0, 4.0),
        ended(1, 3.0, 7.0),
        ended(3, 8.0, 9.0),
        over(10.0),
    )
