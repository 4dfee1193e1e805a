"""The order example of Pwrake's deck on the real engine: how many tasks start between A_i and the B_i that reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.core.scheduler_messages import Command, Event, Start, TasksEnded
from support.command import shoal

CHAINS = 8
LENGTH = 0.06
"""Seconds of a task. Shorter ones would be handed over in bundles (`BUNDLE_SECONDS`), one behind another."""


def started_between(directory: Path, order: str, jobs: int) -> list[int]:
    """For each chain the tasks that were started after A_i had ended and before B_i was started."""
    rules = [f"a{i}:\n\tsleep {LENGTH}; echo {i} > a{i}\n" for i in range(CHAINS)]
    rules += [f"b{i}: a{i}\n\tsleep {LENGTH}; cp a{i} b{i}\n" for i in range(CHAINS)]
    (directory / "Makeflow").write_text("\n".join(rules))
    shoal(directory, "run", "--order", order, f"-j{jobs}", "--trace", "trace", "--quiet")
    starts = 0
    ended: dict[int, int] = {}
    began: dict[int, int] = {}
    for line in (directory / "trace").read_bytes().splitlines():
        _, event, commands = msgspec.json.decode(line, type=tuple[float, Event, list[Command]])
        if isinstance(event, TasksEnded):
            ended.update((result.task, starts) for result in event.results)
        for command in commands:
            if isinstance(command, Start):
                for task in command.tasks:
                    began[task] = starts
                    starts += 1
    assert starts == 2 * CHAINS
    return [began[CHAINS + chain] - ended[chain] for chain in range(CHAINS)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_fifo_starts_half_of_the_others_on_each_core_before_the_consumer(tmp_path: Path, jobs: int) -> None:
    """One fewer for each further core that was busy when A_i ended."""
    between = started_between(tmp_path, "fifo", jobs)
    assert all(CHAINS - jobs <= each <= CHAINS - 1 for each in between), between


def test_lifo_starts_nothing_before_the_consumer_on_one_core(tmp_path: Path) -> None:
    assert started_between(tmp_path, "lifo", 1) == [0] * CHAINS


def test_lifo_starts_at_most_what_the_other_of_two_cores_takes_at_the_same_moment(tmp_path: Path) -> None:
    between = started_between(tmp_path, "lifo", 2)
    assert max(between) <= 1, between
