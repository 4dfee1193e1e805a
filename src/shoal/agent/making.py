"""A node's member for a run, made from what the run is and what the node has."""

from __future__ import annotations

from array import array
from random import Random

from shoal.agent.about import About
from shoal.broker.broker import Broker, Lane
from shoal.broker.member import Member
from shoal.broker.peers import Roster
from shoal.broker.tiers import Tiers
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile
from shoal.model.work import Work
from shoal.policy.gathering import Gathering, is_of_use
from shoal.policy.order import ORDERS, TaskColumns
from shoal.policy.throttle.regime import Regime, regime

_LEAST_CORES = 100


def make_member(here: int, about: About, work: Work, capacity: Resources, roster: Roster) -> Member:
    """The scheduler of one node. Where nodes share no files, tasks are started one by one: each waits for its own."""
    rank = work.rank if any(work.rank) else ()
    columns = TaskColumns(array("i", work.category), rank, work.weight, work.upward_length)
    throttle = regime(about.throttle)
    lanes = [_lane(profile, throttle, alone=about.managed) for profile in work.profiles]
    cores, random = max(1, capacity.get("cores") // FRACTION), Random(here)
    tiers = Tiers(lambda: ORDERS[about.order](columns, cores, random), work.weight)
    broker = Broker(capacity, columns, lanes, queue=tiers, retry_pause=about.retry_pause)
    return Member(
        here,
        broker,
        roster,
        policy=about.policy,
        look_ahead=cores if about.managed else 0,
        seed=here,
        gathering=Gathering(work) if about.managed and is_of_use(work) else None,
    )


def _lane(profile: Profile, throttle: Regime, *, alone: bool) -> Lane:
    """A task that asks for nothing takes a hundredth of a core, so that not all of them start at once."""
    request, elastic = profile.resources, throttle.limits and not profile.declares("cores")
    if elastic:
        request = request.without("cores")
    elif not request.amounts:
        request = Resources((("cores", _LEAST_CORES),))
    lane = Lane(request, profile.retries, bundled=not alone, refilled=not alone, prefers=profile.prefers)
    lane.cap, lane.elastic = throttle.cap_for(profile.category), elastic
    return lane
