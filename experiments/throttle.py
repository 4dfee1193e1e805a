"""How many tasks together: the throttle's controllers against the best fixed numbers, on a modelled node.

`python experiments/throttle.py [--quick]`. Each scenario has a best fixed number of tasks, found by trying them all in
the same model. The bars are for `adaptive`, for its worst seed; `weasel` and 16 slots stand beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from common import Bar, Report, main, percent, run_all
from plots import Line, Panel

from shoal.core.policies.throttle.controller import Controller
from shoal.core.policies.throttle.registry import controller
from shoal.sim.throttle_measurement import BestLimits, Score, Sharing, ThrottleSimulation, best_limits, score, sharing
from shoal.sim.throttled_node import AFTER, CORES, ThrottleScenario, further, scenarios, shared

SEEDS = {"tiny": 3, "quick": 3, "default": 20, "full": 40}
REFERENCE_SEEDS = (1, 2, 3)
CONTROLLERS = ("adaptive", "weasel", f"slots={CORES}")
FOLLOW = 8


def maker(name: str) -> Callable[[], Controller]:
    return lambda: controller(name, CORES)


def all_scenarios() -> dict[str, ThrottleScenario]:
    return {one.name: one for one in (*scenarios(), *further())}


def sharings() -> dict[str, ThrottleScenario]:
    cases = [(seen, capacity, later) for seen in (False, True) for capacity in (10, 20) for later in (0, 12, 40)]
    return {
        f"{'seen' if seen else 'unseen'}, knee at {capacity}, second after {later}": shared(
            seen, capacity=capacity, later=later, periods=later + 120
        )
        for seen, capacity, later in cases
    }


def measure(scenario: str, size: str) -> BestLimits:
    if size == "tiny":
        return best_limits(all_scenarios()[scenario], (1, 2), fine=6)
    return best_limits(all_scenarios()[scenario], REFERENCE_SEEDS)


def run(scenario: str, name: str, seed: int, stick: BestLimits) -> Score:
    return score(all_scenarios()[scenario], maker(name), seed, stick, FOLLOW)


def share(case: str, seed: int) -> Sharing:
    return sharing(sharings()[case], maker("adaptive"), seed)


def make(size: str, nodes: Sequence[int]) -> Report:
    seeds = range(1, SEEDS[size] + 1)
    report = Report("throttle", f"How many tasks together: {len(seeds)} seeds, worst seed in brackets")
    report.say(
        f"""A control period has 8 samples, 4 seconds. "Work" is what was done from period {AFTER} to the end, in
        seconds of undisturbed tasks per second, as a part of what the best fixed numbers do; after a change of
        capacity it counts from the {FOLLOW}th period on. "Right after" is the same from period {AFTER} to {2 * AFTER}.
        "Changes" is the share of these periods in which the number of tasks of a category changed, of the category
        that changed most. "Followed" is the number of periods after the slower change of capacity until 95 % of the
        new best is done with at most a quarter, or three, more tasks than that takes. The best fixed numbers are means
        of several seeds; in brackets the least number that does 99 % of the best."""
    )
    barred = [one.name for one in scenarios()]
    _table(report, barred, seeds, size, bars=True)
    if size != "tiny":
        report.blocks.append("## Beyond the bars")
        names = [one.name for one in further() if size != "quick" or "10 ms" not in one.name]
        _table(report, names, seeds, size, bars=False)
        _shares(report, seeds)
    _draw(report)
    return report


def _table(report: Report, names: Sequence[str], seeds: Sequence[int], size: str, bars: bool) -> None:
    sticks = dict(zip(names, run_all(measure, [(name, size) for name in names]), strict=True))
    jobs = [(name, how, seed, sticks[name]) for name in names for how in CONTROLLERS for seed in seeds]
    scores = run_all(run, jobs)
    rows = []
    for at, (name, how) in enumerate((name, how) for name in names for how in CONTROLLERS):
        found = scores[at * len(seeds) : (at + 1) * len(seeds)]
        rows.append([f"{name}; {how}", *_cells(found, sticks[name])])
        if bars and how == "adaptive":
            _bars(report, name, found)
    report.table(
        ["scenario; controller", "best fixed", "held", "work", "right after", "changes", "followed"],
        rows,
    )


def _cells(found: Sequence[Score], stick: BestLimits) -> list[str]:
    count = len(found)
    best = " / ".join(
        ", ".join(f"{cap} ({knee})" for cap, knee in zip(one.caps, one.knees, strict=True)) for one in stick.bests
    )
    held = ", ".join(f"{sum(levels) / count:.1f}" for levels in zip(*(one.levels for one in found), strict=True))
    works, early, changes = ([getattr(one, name) for one in found] for name in ("work", "early", "changes"))
    followed = [one.followed for one in found if one.followed is not None]
    took = "" if not followed else "not" if min(followed) < 0 else str(max(followed))
    return [
        best,
        held,
        f"{percent(sum(works) / count)} ({percent(min(works))})",
        f"{percent(sum(early) / count)} ({percent(min(early))})",
        f"{percent(sum(changes) / count)} ({percent(max(changes))})",
        took,
    ]


def _bars(report: Report, name: str, found: Sequence[Score]) -> None:
    report.bars.append(Bar(f"{name}: work after {AFTER} periods, worst seed", min(one.work for one in found), 0.95))
    report.bars.append(Bar(f"{name}: changes, worst seed", max(one.changes for one in found), most=0.10))
    followed = [one.followed for one in found if one.followed is not None]
    if followed:
        slowest = 1000 if min(followed) < 0 else max(followed)
        report.bars.append(Bar(f"{name}: periods until followed, worst seed", slowest, most=FOLLOW, form="{:.0f}"))


def _shares(report: Report, seeds: Sequence[int]) -> None:
    """Two runs that share a server: what the first has of it, and how slow it is."""
    cases = list(sharings())
    found = run_all(share, [(case, seed) for case in cases for seed in seeds])
    rows = []
    for at, case in enumerate(cases):
        some = found[at * len(seeds) : (at + 1) * len(seeds)]
        shares = [one.first for one in some]
        fair = sum(0.4 <= value <= 0.6 for value in shares)
        rows.append(
            [
                case,
                f"{percent(sum(shares) / len(some))} ({percent(min(shares))} to {percent(max(shares))})",
                f"{fair} of {len(some)}",
                f"{sum(one.latency for one in some) / len(some):.2f} ({max(one.latency for one in some):.2f})",
                f"{percent(sum(one.used for one in some) / len(some))}",
            ]
        )
    report.blocks.append("## Two runs that share one server")
    report.say(
        """Each run sees only its own tasks. From 30 periods after the second has come: the first's share of the work,
        how many seeds have both within 40 to 60 %, tasks' time in multiples of an undisturbed one, and how much of the
        server is used. "Seen" means that the server shows as a plateau of the link."""
    )
    report.table(["server", "share of the first", "fair", "time", "used"], rows)


def _draw(report: Report) -> None:
    """The number of tasks over time in three scenarios."""
    for name in ("capacity 60-30-60 %", "tiny tasks of 0.6 %", "bursty, duty 0.5"):
        scenario = all_scenarios()[name]
        lines = []
        for how in CONTROLLERS[:2]:
            steps = ThrottleSimulation(scenario, maker(how), 1).execute()
            lines.append(Line(how, [(float(at), float(step.caps[0])) for at, step in enumerate(steps)]))
        report.panels.append(Panel(f"tasks together: {name}", "control period", lines))


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
