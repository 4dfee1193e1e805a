"""The chain of sizes with the least expected cost: a first size, and after each exhaustion the next.

A task of duration t that is tried at sizes s1 < s2 < ... until one holds it costs (cost(s1) + cost(s2) + ...) * t. Let
`tail(j)` be the expected duration of tasks that need candidate j or a larger one. The least cost of those is
`least(j) = min over k >= j of cost(k) * tail(j) + least(k + 1)`: for each k a straight line in `tail(j)`. From the
largest candidate down lines get flatter and tails longer, so a stack of lines answers all in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence


def best_choices(costs: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """For each candidate j the position of the best size for tasks known to need j or a larger one.

    `costs` ascend with the candidates' sizes; `seconds` are the expected durations of the tasks that need just that
    candidate.
    """
    last = len(costs) - 1
    choices = [last] * (last + 1)
    lines: list[tuple[float, float, int]] = []
    least = tail = 0.0
    at = 0
    for j in range(last, -1, -1):
        _push(lines, (costs[j], least, j))
        at = min(at, len(lines) - 1)
        tail += seconds[j]
        while at + 1 < len(lines) and _value(lines[at + 1], tail) <= _value(lines[at], tail):
            at += 1
        least = _value(lines[at], tail)
        choices[j] = lines[at][2]
    return choices


def best_chain(costs: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """The positions of the sizes to try, in order; the last candidate always ends the chain."""
    choices = best_choices(costs, seconds)
    chain = [choices[0]]
    while chain[-1] + 1 < len(choices):
        chain.append(choices[chain[-1] + 1])
    return chain


def _value(line: tuple[float, float, int], tail: float) -> float:
    return line[0] * tail + line[1]


def _push(lines: list[tuple[float, float, int]], new: tuple[float, float, int]) -> None:
    """Adds a flatter line and drops those it makes superfluous; of equally steep ones the larger size is safer."""
    if lines and lines[-1][0] <= new[0] and lines[-1][1] <= new[1]:
        return
    while len(lines) >= 2:
        (slope1, base1, _), (slope2, base2, _) = lines[-2], lines[-1]
        if (new[1] - base1) * (slope1 - slope2) > (base2 - base1) * (slope1 - new[0]):
            break
        lines.pop()
    lines.append(new)
