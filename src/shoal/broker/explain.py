"""The broker's answer to "why is this task not running?" in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.broker.broker import Broker
from shoal.broker.states import State
from shoal.model.resources import is_label, show_amount


def explain(broker: Broker, task: int, reasons: Mapping[str, str] | None = None) -> str:
    """What the task waits for, as far as this node knows; `reasons` has a sentence for each cap of the throttle."""
    state = broker.state.get(task, State.ABSENT)
    if state is State.ABSENT:
        return "it is not with this node's broker: either over, or something it needs is not done"
    if state is State.RUNNING:
        return f"it is running (attempt {broker.attempt[task]})"
    if state is State.ENDING:
        return "it was cancelled and is being ended"
    if state is State.RESTING:
        when = min(when for when, other in broker.resting if other == task)
        return f"attempt {broker.attempt[task]} failed; the next one starts at {when:.1f}"
    if broker.draining:
        return "it is ready, but the run is stopping and starts nothing more"
    contract, lane = broker.contract, broker.columns.lane[task]
    cap = contract.cap_of(lane)
    if cap is not None and contract.is_held_back(lane):
        count, free = cap
        why = (reasons or {}).get(broker.lanes[lane].cap, f"{count} may run together")
        return f"it is ready, but the throttle holds it back while {count - free} run: {why}"
    for at, amount in contract.needs[lane]:
        if contract.free[at] < amount:
            name = contract.names[at]
            if is_label(name):
                return f"it is ready, but this node has not the label {name}"
            return (
                f"it is ready and waits for {name}: it needs {show_amount(name, amount)}, "
                f"{show_amount(name, max(0, contract.free[at]))} of {show_amount(name, contract.total[at])} are free"
            )
    if broker.lanes[lane].passed_over < broker.patience:
        for other in broker.queue.lanes():
            if broker.lanes[other].passed_over >= broker.patience and not contract.leaves_room(lane, other):
                asked = broker.lanes[other].resources
                return f"it is ready, but larger tasks ({asked}) were passed over too often and go first"
    others = len(broker.queue) - 1
    return f"it is ready; {others} other {'task is' if others == 1 else 'tasks are'} queued with it"
