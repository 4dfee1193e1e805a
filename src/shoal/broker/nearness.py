"""What a member does because of the files that its node has: whole batches are divided by what they read, what comes
next is chosen by what is here, and a thief gets what goes with what it has.

A task whose data lies mostly on one node is no matter for this: `shoal.policy.placement` sends it there. How tasks are
divided and chosen is in `shoal.policy.division` and `shoal.policy.gathering`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from shoal.broker.broker import Broker
from shoal.broker.messages import Start
from shoal.broker.peers import TasksAsked, TasksPlaced, Ticket
from shoal.broker.tiers import Tiers
from shoal.policy.division import divide, is_worth_dividing
from shoal.policy.gathering import Gathering
from shoal.policy.placement import ANYWHERE, SHORTEST_TASK, Placement

MOST_COMPARED = 1024
"""Tasks that are looked at for one choice."""
SMALLEST_SHARE = 1 / 16
"""Of what a victim has: a thief that is given what goes with its files comes back for more, so it need not be half."""


class Nearness:
    """Files and tasks of one member."""

    def __init__(self, here: int, broker: Broker, gathering: Gathering) -> None:
        assert isinstance(broker.queue, Tiers)
        self._here, self._broker, self._tiers = here, broker, broker.queue
        self.gathering = gathering

    def divided(self, event: TasksPlaced, nodes: Sequence[int], placement: Placement) -> dict[int, list[Ticket]] | None:
        """The tasks of each node; None: there is no need to see them together."""
        if not event.holdings:
            return None
        gathering, tickets = self.gathering, {ticket.task: ticket for ticket in event.tickets}
        tasks = list(tickets)
        if len(tasks) < len(event.tickets) or not is_worth_dividing(event.holdings, len(nodes)):
            return None
        most = max(range(len(tasks)), key=lambda at: sum([amount for _, amount in event.holdings[at]]))
        if not self._takes_long(tasks[most], sum([amount for _, amount in event.holdings[most]]), placement):
            return None
        shares = divide(gathering.work, tasks, event.holdings, nodes, gathering.size)
        return {node: [tickets[task] for task in share] for node, share in shares.items()}

    def _counts(self, task: int, placement: Placement) -> bool:
        return self._takes_long(task, self.gathering.weight(task), placement)

    def _takes_long(self, task: int, weight: int, placement: Placement) -> bool:
        """Whether moving so much takes long beside the task; yes, as long as nobody knows how long that takes."""
        seconds = self._broker.lanes[self._broker.columns.lane[task]].mean_duration or SHORTEST_TASK
        return placement.choose(self._here, ((self._here, weight),), seconds) != ANYWHERE

    def started(self, commands: Sequence[object]) -> None:
        """Remembers what comes here with what starts."""
        for command in commands:
            if type(command) is Start:
                for task in command.tasks:
                    self.gathering.started(task)

    def choose_next(self, cores: int, placement: Placement) -> None:
        """Nothing waits here because its data is here: what comes next is chosen by what it reads."""
        tiers = self._tiers
        if tiers.local or not tiers.shared_tasks or not self._counts(next(iter(tiers.shared_tasks)), placement):
            return
        some = islice(tiers.shared_tasks, MOST_COMPARED)
        tiers.claim(self.gathering.choose(some, self.gathering.near, 2 * cores))

    def part(self, asked: TasksAsked, nodes: int, placement: Placement) -> float | None:
        """Which part of the Shared queue goes to a thief; None: its data is no matter."""
        shared = self._tiers.shared_tasks
        if not asked.near or not shared or not self._counts(next(iter(shared)), placement):
            return None
        return max(1 / nodes, SMALLEST_SHARE)

    def share_of(self, asked: TasksAsked, count: int, without: Collection[int], bandwidth: float) -> list[int]:
        """So many tasks that go with what the thief has, or none if it would have them too late.

        Those of the lanes in `without` stay.
        """
        lane_of = self._broker.columns.lane
        some = islice(self._tiers.shared_tasks, max(MOST_COMPARED, count))
        tasks = [task for task in some if lane_of[task] not in without] if without else some
        near = frozenset(asked.near)
        chosen = self.gathering.choose(tasks, near, count)
        return chosen if chosen and self._is_worth_moving(chosen[0], near, bandwidth) else []

    def _is_worth_moving(self, task: int, near: Collection[int], bandwidth: float) -> bool:
        """Whether a thief could begin before we had done everything ourselves."""
        gathering, broker = self.gathering, self._broker
        missing = sum(gathering.size(file) for file in gathering.work.inputs_of(task) if file not in near)
        lanes = {broker.columns.lane[task], *(bundle.lane for bundle in broker.running.values())}
        known = [broker.lanes[lane].mean_duration for lane in lanes]
        longest = max((seconds for seconds in known if seconds is not None), default=0.0)
        if None in known:
            return True
        return missing / bandwidth < (len(self._tiers) + len(broker.running)) * longest / broker.contract.whole_cores()
