"""A graph of a million tasks, built, planned and drained without running anything.

Arguments: the shape (`independent`, `chain` or `layers`) and the number of tasks. *Built* is the columnar graph with
edges laid out and cycles looked for. *Planned* is what `shoal run` does before it starts anything: what the target
needs, a look at every file, the verdict on every task, the ranks and the first ready tasks. *Drained* completes ready
tasks until none is left. *Brokered* does that once more through the broker of a node of two cores, two tasks at a time,
as a live run does: it stands beside the total, not in it. Prints one line of JSON.
"""

import json
import resource
import sys
import time
from collections.abc import Sequence

from shoal.core.dependencies import DagFlow
from shoal.core.graph import Graph, GraphBuilder, ancestors, ranks
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Start, TaskResult, TasksEnded, TasksReady
from shoal.execution.session import make_plan
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.history import History

LAYER = 1000


def build(shape: str, tasks: int) -> Graph:
    builder = GraphBuilder("bench")
    step = {"independent": 0, "chain": 1, "layers": LAYER}[shape]
    for number in range(tasks):
        inputs = []
        if step and number >= step:
            inputs.append(f"out/{number - step}")
            if step > 1:
                inputs.append(f"out/{number - step - number % step + (number + 1) % step}")
        builder.task("", f"simulate --seed {number} in.dat", inputs=inputs, outputs=[f"out/{number}"])
    builder.task("all", None, inputs=[f"out/{number}" for number in range(max(0, tasks - (step or tasks)), tasks)])
    return builder.build()


def drain(flow: DagFlow, ready: list[int]) -> int:
    """Completes what is ready until nothing is; returns how many tasks that were."""
    done = 0
    while ready:
        done += len(ready)
        ready = flow.complete(ready)
    return done


def drain_through_broker(graph: Graph, flow: DagFlow, first: list[int], rank: Sequence[int]) -> int:
    """Completes everything the broker starts until it starts nothing more; returns how many tasks that were."""
    lanes = [Lane(profile.resources) for profile in graph.profiles]
    broker = Scheduler(Resources.parse({"cores": 2}), TaskColumns(lane=graph.profile, rank=rank), lanes)
    commands = broker.handle(0.0, TasksReady(first))
    done = 0
    while commands:
        started = [command for command in commands if type(command) is Start]
        results = [
            TaskResult(task, attempt, AttemptOutcome.OK, 1.0)
            for command in started
            for task, attempt in zip(command.tasks, command.attempts, strict=True)
        ]
        done += len(results)
        ready = flow.complete([result.task for result in results])
        commands = broker.handle(0.0, TasksEnded(results)) if results else []
        if ready:
            commands += broker.handle(0.0, TasksReady(ready))
    return done


def main() -> None:
    shape, tasks = sys.argv[1], int(sys.argv[2])
    clock = Laps()
    graph = build(shape, tasks)
    clock.lap("built")
    target = len(graph) - 1
    plan, _ = make_plan(Workflow("bench", graph, [target], ["all"]), History(), force=False, by_content=False)
    rank = ranks(graph)
    flow = DagFlow(graph, ancestors(graph, [target]))
    ready = flow.ready(plan.up_to_date())
    clock.lap("planned")
    done = drain(flow, ready)
    clock.lap("drained")
    seconds = sum(clock.laps.values())
    peak = peak_mib()
    flow = DagFlow(graph, ancestors(graph, [target]))
    brokered = drain_through_broker(graph, flow, flow.ready(), rank)
    clock.lap("brokered")
    if done != tasks or brokered != tasks:
        raise SystemExit(f"{done} and {brokered} of {tasks} tasks came out")
    answer = {"seconds": seconds, "peak_mib": peak, "brokered_peak_mib": peak_mib()}
    print(json.dumps(answer | clock.laps), flush=True)


class Laps:
    """Seconds from lap to lap, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self.last
        self.last = now


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
