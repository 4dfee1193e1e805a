"""Which categories run together, and which wait for their turn.

Categories go together if what they are predicted to use fits. Where the dominant resource of one is used up by
another, who came first goes first. Nobody waits for ever: who has waited too long goes to the head, so that all of them
take turns of some length. How many of each run is left to the climbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

PATIENCE = 15
"""Control periods that a category waits for its turn."""
WHOLE = 0.95
"""What there is of a resource as long as nothing shows that there is less."""


class Claim(msgspec.Struct, frozen=True):
    """What a category would have."""

    category: str
    level: int
    dominant: str | None
    """None if it has none, or is not known yet: then it is in nobody's way."""
    use: Mapping[str, float]
    """Per task."""
    full: bool
    """Its tasks already slow each other down: it leaves nothing of its dominant resource."""
    waiting: bool
    """It has tasks that could start."""


class Turns:
    """The order of the categories, and who has waited how long."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._order: list[str] = []
        """All that ever were there: who comes back has its place again."""
        self._waited: dict[str, tuple[int, str]] = {}
        """How many periods each has waited, and for whom."""
        self._turn: dict[str, int] = {}
        """How many periods each has been running."""

    def grant(self, claims: Sequence[Claim]) -> dict[str, tuple[int, str | None]]:
        """For each category how many may run, and if none may, who is ahead of it."""
        known = {claim.category: claim for claim in claims}
        self._order += [category for category in known if category not in self._order]
        overdue = [category for category in self._order if self._is_overdue(category)]
        if overdue:
            self._order = overdue + [category for category in self._order if category not in overdue]
        granted: dict[str, tuple[int, str | None]] = {}
        running: list[Claim] = []
        for category in [category for category in self._order if category in known]:
            claim = known[category]
            ahead = self._in_the_way(claim, running)
            granted[category] = (claim.level if ahead is None else 0, ahead)
            if claim.waiting:
                self._note(category, ahead)
                if ahead is None:
                    running.append(claim)
        return granted

    def _note(self, category: str, ahead: str | None) -> None:
        if ahead is None:
            self._turn[category] = self._turn.get(category, 0) + 1
            self._waited.pop(category, None)
        else:
            self._turn.pop(category, None)
            self._waited[category] = (self._waited.get(category, (0, ""))[0] + 1, ahead)

    def _is_overdue(self, category: str) -> bool:
        """It has waited too long, and who is ahead of it has had a turn of the same length."""
        periods, ahead = self._waited.get(category, (0, ""))
        return periods >= self.patience and self._turn.get(ahead, self.patience) >= self.patience

    def _in_the_way(self, claim: Claim, running: Sequence[Claim]) -> str | None:
        """The first of those already admitted that leaves no room for a single task of the claim."""
        name = claim.dominant
        if name is None:
            return None
        taken = claim.use.get(name, 0.0)
        for other in running:
            taken += other.level * other.use.get(name, 0.0)
            if other.dominant == name and (other.full or taken > WHOLE):
                return other.category
        return None
