"""Checks all invariants of a scheduler; runs after each event in tests, in the simulator and with `--paranoid`.

Invariants that need more than the scheduler's state (inputs exist, a shrunken node is not overcommitted further, one
result per task over the whole run) are checked in `shoal.sim.oracle`.
"""

from __future__ import annotations

from shoal.core.scheduler import Scheduler, TaskState


class BrokenInvariantError(AssertionError):
    """The state of the scheduler is inconsistent: an internal error of Shoal."""


def check_broker(scheduler: Scheduler) -> None:
    """Raises `BrokenInvariantError` at the first violated invariant."""
    _check_states(scheduler)
    _check_queue(scheduler)
    _check_contract(scheduler)
    _check_progress(scheduler)


def _check_states(scheduler: Scheduler) -> None:
    queued = set(scheduler.queue.waiting())
    running, attempt = scheduler.running, scheduler.attempt
    resting = {task for _, task in scheduler.resting}
    # Plain ifs, with the message built only on failure: this loop runs for every task after every event.
    for task, state in scheduler.state.items():
        if state is TaskState.ABSENT:
            raise BrokenInvariantError(f"task {task} is held although absent")
        if (task in queued) != (state is TaskState.QUEUED):
            raise BrokenInvariantError(f"task {task} is {state.name} and queued: {task in queued}")
        if (task in running) != (state is TaskState.RUNNING or state is TaskState.ENDING):
            raise BrokenInvariantError(f"task {task} is {state.name} but running: {task in running}")
        if state is not TaskState.QUEUED and attempt.get(task, 0) < 1:
            raise BrokenInvariantError(f"task {task} is {state.name} without an attempt")
        if state is TaskState.RESTING and task not in resting:
            raise BrokenInvariantError(f"task {task} rests without a timer")
    _expect(queued <= scheduler.state.keys(), "a queued task is unknown")
    _expect(running.keys() <= scheduler.state.keys(), "a running task is unknown")
    for name in ("attempt", "failures", "losses", "exhausted"):
        stale = getattr(scheduler, name).keys() - scheduler.state.keys()
        _expect(not stale, f"{name} remembers tasks that are over: {sorted(stale)[:5]}")


def _check_queue(scheduler: Scheduler) -> None:
    """The queue's count of each lane equals the number of tasks that wait in it."""
    queue, lane_of = scheduler.queue, scheduler.columns.lane
    sizes: dict[int, int] = {}
    for task in queue.waiting():
        sizes[lane_of[task]] = sizes.get(lane_of[task], 0) + 1
    _expect(sizes == {lane: queue.queued_in(lane) for lane in queue.lanes()}, "the queue has lost count of its lanes")
    _expect(sum(sizes.values()) == len(queue), "the queue has lost count of its tasks")


def _check_contract(scheduler: Scheduler) -> None:
    """The resources of all running tasks add up to what is allocated."""
    contract = scheduler.contract
    members: dict[int, int] = {}
    for bundle in scheduler.running.values():
        members[id(bundle)] = members.get(id(bundle), 0) + 1
    used = [0] * len(contract.total)
    for bundle in {id(bundle): bundle for bundle in scheduler.running.values()}.values():
        runs = members[id(bundle)]
        _expect(runs == bundle.left, f"a bundle has {bundle.left} tasks left but {runs} run")
        for at, amount in bundle.taken:
            used[at] += amount
    for at, name in enumerate(contract.names):
        _expect(used[at] + contract.free[at] == contract.total[at], f"{name}: taken and free do not add up")


def _check_progress(scheduler: Scheduler) -> None:
    """Every waiting task waits for something: a timer, a running task, a drain or an announced batch of ready tasks."""
    contract, lane_of = scheduler.contract, scheduler.columns.lane
    for number, lane in enumerate(scheduler.lanes):
        _expect(lane.passed_over <= scheduler.patience, f"lane {number} was passed over without end")
    hopeless = {lane for lane in range(len(scheduler.lanes)) if not contract.could_fit(lane)}
    if hopeless:
        for task, state in scheduler.state.items():
            if state is TaskState.QUEUED or state is TaskState.RESTING:
                _expect(lane_of[task] not in hopeless, f"task {task} waits for a node that is too small for it")
    if scheduler.draining or scheduler.awaiting_ready:
        return
    lanes = [number for number in scheduler.queue.lanes() if not contract.is_held_back(number)]
    _expect(not lanes or bool(scheduler.running), "tasks wait although the node is empty")
    urgent = [number for number in lanes if scheduler.lanes[number].passed_over >= scheduler.patience]
    for number in lanes:
        kept_back = number not in urgent and not all(contract.leaves_room(number, other) for other in urgent)
        _expect(kept_back or not contract.fits(number), f"tasks of lane {number} wait although there is room")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenInvariantError(message)
