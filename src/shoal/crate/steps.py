"""The order of a workflow's steps, where its tasks are taken together by category."""

from __future__ import annotations

from collections.abc import Sequence


def positions(count: int, needs: Sequence[tuple[int, int]]) -> list[int] | None:
    """For each of `count` steps a number above those of all steps that it needs, by pairs of (needed, needing).

    None if steps need each other in a circle, as categories may where tasks do not. A step that needs itself has tasks
    that come one after another, which says nothing about its place among the others.
    """
    later: list[list[int]] = [[] for _ in range(count)]
    pending = [0] * count
    for needed, needing in dict.fromkeys(needs):
        if needed != needing:
            later[needed].append(needing)
            pending[needing] += 1
    found = [0] * count
    ready = [step for step in range(count) if not pending[step]]
    for step in ready:
        for needing in later[step]:
            found[needing] = max(found[needing], found[step] + 1)
            pending[needing] -= 1
            if not pending[needing]:
                ready.append(needing)
    return found if len(ready) == count else None
