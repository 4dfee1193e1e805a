"""What `shoal why` says of a net: what its transitions wait for, and that nothing is when it is over."""

from __future__ import annotations

import pytest

from shoal import Net, take
from shoal.ledger.records import NetBegun, NetMarked, RunEnded
from shoal.ledger.status import RunPhase, RunStatus
from shoal.petri.net import NetShown
from shoal.ui.cli.nets import why_nothing_runs
from support.views import started

PROBLEM = "net 'loop': the run of the task 'work' failed with ValueError: no"


def loop() -> NetShown:
    net = Net("loop")
    todo, done, fin = net.place("todo", [1, 2]), net.place("done"), net.place("fin")

    @net.task(x=take(todo))
    def work(x: int) -> object:
        return {done: x}

    @net.step(xs=take(done))
    def collect(xs: int) -> object:
        return {fin: xs}

    return net.describe()


def state_with(outcome: str | None, *problems: str) -> RunStatus:
    state = RunStatus()
    state.take(started(0))
    state.take(NetBegun("loop", "digest", None))
    state.take(NetMarked(1.0, {"todo": 1, "done": 0, "fin": 1}, {"work": 1}, {"work": 1}, list(problems)))
    if outcome is not None:
        state.take(RunEnded(2.0, outcome, 1, 0, 0))
    return state


@pytest.mark.parametrize(("outcome", "how"), [("ok", "has ended"), ("failed", "failed, and 'shoal run' retries it")])
def test_a_net_that_is_over_waits_for_nothing(outcome: str, how: str) -> None:
    lines = why_nothing_runs(loop(), state_with(outcome, PROBLEM), RunPhase.ENDED, None)
    assert lines == [
        f"the net 'loop' {how}; this is its last marking",
        f"work: has ended: 1 task done, 1 token on 'todo' left; {PROBLEM}",
        "collect: has ended: no token left",
    ]
    assert why_nothing_runs(loop(), state_with(outcome), RunPhase.ENDED, "collect") == lines[2:]


def test_a_net_that_was_stopped_or_goes_on_waits_for_tokens() -> None:
    for outcome, phase in (("received SIGINT", RunPhase.ENDED), (None, RunPhase.KILLED), (None, RunPhase.RUNNING)):
        lines = why_nothing_runs(loop(), state_with(outcome), phase, None)
        assert lines[2] == "collect: waits for 1 token on 'done'"
        assert "has tokens on all its places" in lines[1]
