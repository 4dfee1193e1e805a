"""Every invariant of a broker, in one walk; called after each event in tests, in the simulator and under `--paranoid`."""

from __future__ import annotations

from shoal.broker.broker import PASSED_OVER_LIMIT, Broker
from shoal.broker.states import State


class BrokenInvariant(AssertionError):
    """The broker contradicts itself: a defect of Shoal."""


def check_broker(broker: Broker) -> None:
    """Raises `BrokenInvariant` at the first contradiction."""
    _check_states(broker)
    _check_contract(broker)
    _check_progress(broker)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenInvariant(message)


def _check_states(broker: Broker) -> None:
    queued = set(broker.queue.waiting())
    for task, state in broker.state.items():
        _expect(state is not State.ABSENT, f"task {task} is held although absent")
        _expect((task in queued) == (state is State.QUEUED), f"task {task} is {state.name} and queued: {task in queued}")
        runs = state in (State.RUNNING, State.ENDING)
        _expect((task in broker.running) == runs, f"task {task} is {state.name} but running: {task in broker.running}")
        if state is not State.QUEUED:
            _expect(broker.attempt.get(task, 0) >= 1, f"task {task} is {state.name} without an attempt")
    _expect(queued <= broker.state.keys(), "a queued task is unknown")
    _expect(broker.running.keys() <= broker.state.keys(), "a running task is unknown")
    for name in ("attempt", "failures", "losses"):
        stale = getattr(broker, name).keys() - broker.state.keys()
        _expect(not stale, f"{name} remembers tasks that are over: {sorted(stale)[:5]}")
    resting = {task for _, task in broker.resting}
    for task, state in broker.state.items():
        if state is State.RESTING:
            _expect(task in resting, f"task {task} rests without a timer")


def _check_contract(broker: Broker) -> None:
    """What runs, added up, is what is taken; nothing is committed beyond the node unless the node shrank."""
    contract = broker.contract
    bundles = {id(bundle): bundle for bundle in broker.running.values()}
    used = [0] * len(contract.total)
    for bundle in bundles.values():
        members = sum(1 for other in broker.running.values() if other is bundle)
        _expect(members == bundle.left, f"a bundle has {bundle.left} tasks left but {members} run")
        for at, amount in contract.needs[bundle.lane]:
            used[at] += amount
    for at, name in enumerate(contract.names):
        _expect(used[at] + contract.free[at] == contract.total[at], f"{name}: taken and free do not add up")


def _check_progress(broker: Broker) -> None:
    """Every wait is resolved by something: a timer, a running task, or a drain that was asked for."""
    if broker.draining or broker.running:
        return
    for task in broker.queue.waiting():
        lane = broker.columns.lane[task]
        _expect(not broker.contract.could_fit(lane), f"task {task} waits although the node is empty")
    for lane in broker.lanes:
        _expect(lane.passed_over <= PASSED_OVER_LIMIT + len(broker.lanes), "a lane was passed over without end")
