"""The shapes of work and how each tool is told about them: Makefile, build.ninja, Makeflow, rules file, list.

Every task is `/bin/true`, every tool gets the same graph, written out task by task in its own language. What is
written here is only text; who runs it is the matter of `processes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAM = "/bin/true"


@dataclass(frozen=True)
class Shape:
    """A graph: for each task the numbers of the tasks it needs, all of them smaller than its own."""

    name: str
    needs: list[list[int]]

    def __len__(self) -> int:
        return len(self.needs)

    @property
    def flat(self) -> bool:
        return not any(self.needs)

    def last(self) -> list[int]:
        """Tasks that no other task needs: what a tool has to be asked for."""
        needed = {parent for parents in self.needs for parent in parents}
        return [task for task in range(len(self)) if task not in needed]


def independent(tasks: int) -> Shape:
    return Shape(f"{tasks:,} independent", [[] for _ in range(tasks)])


def chains(width: int, length: int) -> Shape:
    needs: list[list[int]] = []
    for step in range(length):
        needs += [[(step - 1) * width + chain] if step else [] for chain in range(width)]
    return Shape(f"{width} chains of {length}", needs)


def fan(width: int) -> Shape:
    return Shape(f"1 → {width:,} → 1", [[], *([0] for _ in range(width)), list(range(1, width + 1))])


def write_makefile(shape: Shape, path: Path) -> None:
    """Phony targets with a plain command: GNU make then neither looks for files nor starts a shell."""
    lines = [".SUFFIXES:", "all: " + words(shape.last()), ".PHONY: all " + words(range(len(shape)))]
    for task, parents in enumerate(shape.needs):
        lines += [f"t{task}: {words(parents)}".rstrip(), f"\t{PROGRAM}"]
    path.write_text("\n".join(lines) + "\n")


def write_ninja(shape: Shape, path: Path) -> None:
    lines = ["rule r", f"  command = {PROGRAM}"]
    lines += [f"build t{task}: r {words(parents)}".rstrip() for task, parents in enumerate(shape.needs)]
    lines += ["build all: phony " + words(shape.last()), "default all"]
    path.write_text("\n".join(lines) + "\n")


def write_makeflow(shape: Shape, path: Path) -> None:
    """Rules without a target where nothing depends on anything; else each task has to make its file."""
    lines = []
    for task, parents in enumerate(shape.needs):
        if shape.flat:
            lines += [":", f"\t{PROGRAM} {task}", ""]
        else:
            lines += [f"t{task}: {words(parents)}".rstrip(), f"\t{PROGRAM} > t{task}", ""]
    path.write_text("\n".join(lines) + "\n")


def write_rules(shape: Shape, path: Path) -> None:
    lines = ["from shoal import task", ""]
    for task, parents in enumerate(shape.needs):
        needs = f", needs={quoted(parents)}" if parents else ""
        lines.append(f'task("t{task}", run="{PROGRAM}"{needs})')
    lines.append(f'task("all", needs={quoted(shape.last())})')
    path.write_text("\n".join(lines) + "\n")


def write_needs(shape: Shape, path: Path) -> None:
    """One JSON list per task, for the programs that build the graph themselves."""
    path.write_text("".join(f"{parents}\n" for parents in shape.needs))


def write_numbers(shape: Shape, path: Path) -> None:
    path.write_text("".join(f"{task}\n" for task in range(len(shape))))


def words(tasks: list[int] | range) -> str:
    return " ".join(f"t{task}" for task in tasks)


def quoted(tasks: list[int]) -> str:
    return "[" + ", ".join(f'"t{task}"' for task in tasks) + "]"
