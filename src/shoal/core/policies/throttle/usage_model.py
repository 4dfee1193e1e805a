"""Resource use of one task per category, estimated by least squares from periods without contention.

The use of a node with n tasks of each category is the sum of n times the use of one task. Each period without
contention is one equation. The weighted solution also gives the error of each estimate, so categories that always ran
together simply have large errors. No category needs to run alone. The caller decides which periods are free of
contention.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from shoal.core.policies.throttle.readings import COMPRESSIBLE, Figure

FLOOR = 0.003
"""A task that uses less than this share of every resource has no dominant one."""
KNOWN = 3.0
"""Minimum ratio of estimate to error before the estimate is used."""
PRIOR = 0.25
"""Prior standard deviation of a use."""
LEAST_ERROR = 0.003
"""Minimum error of a period, whatever its samples say."""
ROWS = 24


class UsageProfile(msgspec.Struct, frozen=True):
    """What is known about tasks of a category on one kind of node; stored between runs and shared by nodes."""

    use: dict[str, float]
    """Use of one task, as a share of the node's capacity."""
    error: dict[str, float]
    seconds: float = 0.0
    """Geometric mean duration of an undisturbed task; 0 if unknown."""
    seconds_error: float = 1.0
    """Relative error."""
    level: int = 0
    """Number of concurrent tasks at the last stable level; 0 if there was none."""

    @property
    def dominant(self) -> str | None:
        """The resource with the largest use by one task, if it is above the floor and known."""
        best = None
        for name, use in self.use.items():
            known = use >= FLOOR and use >= KNOWN * self.error.get(name, 1.0)
            if known and (best is None or use > self.use[best]):
                best = name
        return best


NOTHING_KNOWN = UsageProfile({}, {})


def merged(one: UsageProfile, other: UsageProfile) -> UsageProfile:
    """Combines the profiles of two nodes, weighting each value by its error."""
    use, error = {}, {}
    for name in [*one.use, *(name for name in other.use if name not in one.use)]:
        weights = [1 / max(1e-6, each.error.get(name, PRIOR)) ** 2 for each in (one, other)]
        values = [each.use.get(name, 0.0) for each in (one, other)]
        use[name] = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
        error[name] = 1 / math.sqrt(sum(weights))
    better = min((one, other), key=lambda each: each.seconds_error if each.seconds else math.inf)
    return UsageProfile(use, error, better.seconds, better.seconds_error, max(one.level, other.level))


class UsageModel:
    """Estimates the use of one task of each category, for all resources of a node."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[tuple[dict[str, float], float, float]]] = {
            name: deque(maxlen=ROWS) for name in COMPRESSIBLE
        }
        self._priors: dict[str, UsageProfile] = {}
        self._solved: dict[str, tuple[dict[str, float], dict[str, float]]] = {}

    def know(self, category: str, profile: UsageProfile) -> None:
        """Sets a prior from another run or node; own measurements soon weigh more."""
        self._priors[category] = profile
        self._solved.clear()

    def add(self, running: Mapping[str, float], use: Mapping[str, Figure], contended: Sequence[str] = ()) -> None:
        """Adds a period in which these tasks ran and only the resources in `contended` were short."""
        for name, rows in self._rows.items():
            if name in use and name not in contended:
                error = max(LEAST_ERROR, use[name].error)
                rows.append((dict(running), use[name].mean, error))
        self._solved.clear()

    def rescale(self, category: str, factor: float) -> None:
        """Corrects a category: one task uses `factor` times as much of everything as assumed."""
        prior = self._priors.get(category)
        if prior is not None:
            use = {name: factor * value for name, value in prior.use.items()}
            self._priors[category] = msgspec.structs.replace(prior, use=use)
        for rows in self._rows.values():
            for running, _, _ in rows:
                if category in running:
                    running[category] /= factor
        self._solved.clear()

    def use(self, resource: str, category: str) -> float:
        return self._solution(resource)[0].get(category, 0.0)

    def error(self, resource: str, category: str) -> float:
        return self._solution(resource)[1].get(category, PRIOR)

    def profile(self, category: str) -> UsageProfile:
        use = {name: self.use(name, category) for name in COMPRESSIBLE}
        return UsageProfile(use, {name: self.error(name, category) for name in COMPRESSIBLE})

    def _solution(self, resource: str) -> tuple[dict[str, float], dict[str, float]]:
        found = self._solved.get(resource)
        if found is None:
            found = self._solved[resource] = self._solve(resource)
        return found

    def _solve(self, resource: str) -> tuple[dict[str, float], dict[str, float]]:
        rows = self._rows[resource]
        names = list(dict.fromkeys([*self._priors, *(name for running, _, _ in rows for name in running)]))
        if not names:
            return {}, {}
        matrix = [[0.0] * len(names) for _ in names]
        right = [0.0] * len(names)
        for at, name in enumerate(names):
            prior = self._priors.get(name, NOTHING_KNOWN)
            # A value from another run may not apply here: its relative error is at least 10 %.
            value = prior.use.get(resource, 0.0)
            error = max(prior.error.get(resource, PRIOR), 0.1 * value, 1e-4)
            matrix[at][at] += 1 / error**2
            right[at] += value / error**2
        for running, used, error in rows:
            counts = [running.get(name, 0.0) / error for name in names]
            for at, count in enumerate(counts):
                if count:
                    right[at] += count * used / error
                    line = matrix[at]
                    for other, factor in enumerate(counts):
                        line[other] += count * factor
        inverse = _inverse(matrix)
        values = [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
        use = {name: max(0.0, value) for name, value in zip(names, values, strict=True)}
        return use, {name: math.sqrt(max(0.0, inverse[at][at])) for at, name in enumerate(names)}


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Matrix inverse by elimination; the matrices here are positive definite."""
    size = len(matrix)
    rows = [[*line, *(1.0 if at == other else 0.0 for other in range(size))] for at, line in enumerate(matrix)]
    for at in range(size):
        best = max(range(at, size), key=lambda other: abs(rows[other][at]))
        rows[at], rows[best] = rows[best], rows[at]
        pivot = rows[at][at]
        rows[at] = [value / pivot for value in rows[at]]
        for other in range(size):
            factor = rows[other][at]
            if other != at and factor:
                rows[other] = [value - factor * mine for value, mine in zip(rows[other], rows[at], strict=True)]
    return [line[size:] for line in rows]
