"""How a net stands, in words and as data, and why nothing of it runs; from what its ledger tells. `now` is an argument.

The ledger has the counts only: tokens on each place, and of each transition how many tasks run and are done.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.cli.netshow import numbered
from shoal.cli.standing import damage_line, show_moment
from shoal.cli.text import table
from shoal.engine.follow import Follower, Phase, RunState
from shoal.errors import InputError
from shoal.flow.net.drawing import Arc, NetShown, TransitionShown
from shoal.ledger.records import NetMarked, printable, printable_parts
from shoal.model.quantities import count, show_seconds
from shoal.nets.run import problems_in_words

MOST_SHOWN = 10
_NEEDED = ("take", "read")
"""Arcs of which each wants a token."""
NO_MARK = NetMarked(0.0, {}, {}, {}, [])


def net_headline(name: str, follower: Follower, phase: Phase, now: float) -> str:
    """One line: which net, and what has become of its last run."""
    state = follower.state
    mark = state.mark or NO_MARK
    what = f"{name}: net {state.net.name!r}" if state.net is not None else name
    done = f"{count(sum(mark.done.values()), 'task')} done"
    began = state.start.time if state.start is not None else now
    if phase is Phase.RUNNING:
        who = follower.holder
        by = f" by process {who.pid} on {who.host}" if who and who.pid else ""
        return f"{what} running for {show_seconds(max(now, state.last_time) - began)}{by}, {done}"
    if state.end is None:
        return f"{what} killed at about {show_moment(state.last_time, now)}, {done}; 'shoal run' goes on from there"
    how = {"ok": "came to its end", "failed": "failed"}.get(state.end.outcome)
    if how is None:
        how = f"stopped ({state.end.outcome})"
        done += "; 'shoal run' goes on from there"
    took = show_seconds(state.last_time - began)
    return f"{what} {how} at {show_moment(state.last_time, now)} after {took}, {done}"


def describe_net(follower: Follower, phase: Phase, now: float, *, every: bool = False) -> list[str]:
    """The whole picture, as lines: tokens by place, tasks by transition, problems."""
    state = follower.state
    mark = state.mark or NO_MARK
    lines = [net_headline(follower.workspace.workflow.rsplit("/", 1)[-1], follower, phase, now)]
    lines += damage_line(follower)
    if state.start is not None and state.start.targets:
        lines.append(f"asked for: {' '.join(map(printable, state.start.targets))}")
    lines += table([("place", "tokens"), *((name, f"{number:,}") for name, number in mark.tokens.items())])
    running = mark.running if phase is Phase.RUNNING else {}
    names = list(dict.fromkeys([*mark.done, *running]))
    rows = [(name, f"{running.get(name, 0):,}", f"{mark.done.get(name, 0):,}") for name in names]
    if rows:
        lines += table([("task", "under way", "done"), *rows])
    problems = problems_in_words(mark.problems)
    most = len(problems) if every else MOST_SHOWN
    if problems:
        lines += ["problems:", *(f"  {problem}" for problem in problems[:most])]
    if len(problems) > most:
        lines.append(f"  and {len(problems) - most:,} more ('shoal status --verbose' lists them)")
    return lines


def net_as_data(follower: Follower, phase: Phase) -> dict[str, Any]:
    """The same for programs; times are seconds since the epoch."""
    state = follower.state
    mark, start, end = state.mark or NO_MARK, state.start, state.end
    return {
        "workflow": follower.workspace.workflow,
        "net": state.net.name if state.net is not None else None,
        "state": phase.value,
        "run": start.run if start else None,
        "pid": start.pid if start else None,
        "host": start.host if start else None,
        "started": start.time if start else None,
        "ended": state.last_time if end else None,
        "outcome": end.outcome if end else None,
        "targets": printable_parts(start.targets) if start else [],
        "damaged_bytes": follower.damaged_bytes(),
        "marked": mark.time,
        "tokens": mark.tokens,
        "running": mark.running if phase is Phase.RUNNING else {},
        "done": mark.done,
        "problems": mark.problems,
    }


def why_nothing_runs(net: NetShown, state: RunState, phase: Phase, wanted: str | None) -> list[str]:
    """Why transitions do not fire: all of them, or the one that is named `wanted`."""
    known = [transition.name for transition in net.transitions]
    if wanted is not None and wanted not in known:
        raise InputError(
            f"the net {net.name!r} has no transition {wanted!r}", remedy=f"its transitions are {', '.join(known)}"
        )
    tokens = state.mark.tokens if state.mark is not None else {place.name: place.tokens for place in net.places}
    lines = []
    if wanted is None:
        lines.append(_of_the_whole(net, state, phase))
    for transition in net.transitions:
        if wanted in (None, transition.name):
            lines.append(f"{transition.name}: {_held_by(net, transition, state, phase, tokens)}")
    return lines


def _of_the_whole(net: NetShown, state: RunState, phase: Phase) -> str:
    if phase is Phase.NEVER:
        return f"the net {net.name!r} has not run yet; this is its initial marking"
    if _is_over(state, phase):
        failed = state.end is not None and state.end.outcome == "failed"
        how = "failed, and 'shoal run' retries it" if failed else "has ended"
        return f"the net {net.name!r} {how}; this is its last marking"
    if phase is not Phase.RUNNING:
        return f"the net {net.name!r} is not running; this is its last marking"
    running = state.mark.running if state.mark is not None else {}
    return f"the net {net.name!r} is running; tasks: {numbered(running, 'none')}"


def _is_over(state: RunState, phase: Phase) -> bool:
    """Whether the net has ended, so that `shoal run` does not continue it."""
    return phase is Phase.ENDED and state.end is not None and state.end.outcome in ("ok", "failed")


def _left_with(transition: TransitionShown, net: NetShown, state: RunState, tokens: dict[str, int]) -> str:
    """Of a net that has ended: how many tasks a transition has done, and which tokens it left."""
    done = (state.mark or NO_MARK).done.get(transition.name)
    words = [f"{count(done, 'task')} done"] if done is not None else []
    places = dict.fromkeys(arc.place for arc in net.arcs if arc.transition == transition.name and arc.kind in _NEEDED)
    left = [f"{count(tokens[place], 'token')} on {place!r}" for place in places if tokens.get(place)]
    words.append(f"{' and '.join(left)} left" if left else "no token left")
    return f"has ended: {', '.join(words)}"


def _held_by(net: NetShown, transition: TransitionShown, state: RunState, phase: Phase, tokens: dict[str, int]) -> str:
    mark = state.mark or NO_MARK
    running = mark.running.get(transition.name, 0) if phase is Phase.RUNNING else 0
    runs = f"{count(running, 'task')} running; " if running else ""
    aside = [problem for problem in mark.problems if f"the {transition.kind} {transition.name!r}" in problem]
    lacking = _lacking(transition.name, net.arcs, tokens)
    if _is_over(state, phase):
        why = _left_with(transition, net, state, tokens)
    elif lacking:
        why = f"waits for {' and '.join(lacking)}"
    elif transition.guards:
        why = "has tokens on all its places; its guards and keys accept none of them yet"
    else:
        why = "has tokens on all its places; it waits for its turn or for equal keys, or may no longer fire"
    return runs + why + (f"; {aside[0]}" if aside else "")


def _lacking(name: str, arcs: list[Arc], tokens: dict[str, int]) -> list[str]:
    wanted = Counter(arc.place for arc in arcs if arc.transition == name and arc.kind in _NEEDED)
    return [
        f"{count(number - tokens.get(place, 0), 'token')} on {place!r}"
        for place, number in wanted.items()
        if tokens.get(place, 0) < number
    ]
