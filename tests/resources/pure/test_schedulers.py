"""The GSPC schedulers over simulated workers: placement, waiting, and lost resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.graph import GraphBuilder
from shoal.core.resources import Resources
from shoal.core.task import Profile
from shoal.petri import Net, NetFlow, each, net_of_graph, take
from shoal.resources.machine import MachinePart, machine
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import require
from shoal.resources.scheduler_interface import (
    CancelAttemptCommand,
    CoAllocation,
    FinishedEvent,
    LookEvent,
    ManagerEvents,
    StopEvent,
    StoppedEvent,
    SubmitTaskCommand,
)
from shoal.schedulers import (
    DagWork,
    Flow,
    LookAhead,
    Rescheduling,
    Scheduler,
    base,
    co_allocation,
    look_ahead,
    performance_model,
    rescheduling,
    several_locations,
    transfer_costs,
)
from shoal.sim.worker_pool import AttemptLog, MachineLoss, Pool

ALL = [base, rescheduling, look_ahead, co_allocation, performance_model]


def net_of(count: int, **asked: Any) -> Net:
    """So many independent tasks; each gives its number."""
    net = Net("work")
    todo, done = net.place("todo", range(count)), net.place("done")
    net.task(number=take(todo), put=done, name="work", **asked)(lambda number: number)
    return net


def own_number(submit: SubmitTaskCommand) -> object:
    return submit.task.arguments["number"]


def done_of(pool: Pool) -> list[AttemptLog]:
    return [ran for ran in pool.ran if ran.outcome == "done"]


def two_machines() -> ResourceManager:
    return ResourceManager([machine("a", cores=4), machine("b", cores=4)])


# ---- flows -----------------------------------------------------------------------------------------------------------


def diamond() -> tuple[Flow, Flow]:
    builder = GraphBuilder("diamond")
    builder.task("top", "true", outputs=["t"])
    builder.task("left", "true", inputs=["t"], outputs=["l"])
    builder.task("right", "true", inputs=["t"], outputs=["r"])
    builder.task("bottom", "true", inputs=["l", "r"])
    graph = builder.build()
    return DagWork(graph), NetFlow(net_of_graph(graph), 1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_graph_and_its_net_are_the_same_flow_to_a_scheduler(which: int) -> None:
    scheduler = base(diamond()[which], two_machines())
    pool = Pool(scheduler)
    pool.run()
    names = [ran.name.split()[1] for ran in pool.ran]
    assert names[0] == "top" and names[-1] == "bottom" and sorted(names[1:3]) == ["left", "right"]
    assert scheduler.is_idle


def test_what_follows_a_failed_task_of_a_graph_never_runs() -> None:
    flow = diamond()[0]
    scheduler = base(flow, two_machines())
    Pool(scheduler, failing=1.0).run()
    assert isinstance(flow, DagWork) and flow.is_finished
    assert flow.state().failed == 1 and flow.state().doomed == 3
    assert list(scheduler.failures.values()) == ["it failed by chance"]


# ---- all schedulers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_every_task_is_done_once_and_nothing_stays_held(make: Callable[..., Scheduler]) -> None:
    flow, steward = NetFlow(net_of(40, cores=2), 1), two_machines()
    pool = Pool(make(flow, steward), gives=own_number)
    pool.run()
    assert sorted(flow.tokens("done")) == list(range(40))
    assert len(pool.ran) == 40 and not steward.held and not steward.waiting


def test_a_request_that_no_machine_can_meet_fails_with_the_reason_and_the_rest_goes_on() -> None:
    net = net_of(3)
    wide = net.place("wide", [0])
    net.task(number=take(wide), put=wide, name="wide", cores=9)(lambda number: number)
    flow = NetFlow(net, 1)
    scheduler = look_ahead(flow, two_machines())
    Pool(scheduler, gives=own_number).run()
    assert scheduler.done == 3
    assert list(scheduler.failures.values()) == [
        "9 core on one node can never be granted: the largest number of core on one node is 4"
    ]


def test_stopping_cancels_what_runs_and_leaves_the_flow_to_be_gone_on_with() -> None:
    flow, steward = NetFlow(net_of(20, cores=4), 1), two_machines()
    scheduler = look_ahead(flow, steward)
    began = [command for command in scheduler.handle(LookEvent()) if isinstance(command, SubmitTaskCommand)]
    cancelled = scheduler.handle(StopEvent())
    assert cancelled == [CancelAttemptCommand(each.task.id, each.task.attempt) for each in began]
    for each_one in began:
        assert scheduler.handle(StoppedEvent(each_one.task.id, each_one.task.attempt)) == []
    assert scheduler.is_idle and not steward.held and not steward.waiting
    again = NetFlow.resume(flow.net, flow.state())
    Pool(look_ahead(again, two_machines()), gives=own_number).run()
    assert sorted(again.tokens("done")) == list(range(20))


def test_a_result_that_makes_others_superfluous_ends_them_before_their_machines_are_used_again() -> None:
    net = Net("search")
    todo = net.place("todo", range(6))
    net.task(number=take(todo), name="search", group="search", cores=2)(lambda number: net.eureka("search"))
    flow, steward = NetFlow(net, 1), two_machines()
    scheduler = look_ahead(flow, steward)
    began = [command for command in scheduler.handle(LookEvent()) if isinstance(command, SubmitTaskCommand)]
    assert len(began) == 4
    commands = scheduler.handle(FinishedEvent(began[0].task.id, 1, net.eureka("search")))
    assert sorted(each.task for each in commands if isinstance(each, CancelAttemptCommand)) == sorted(
        b.task.id for b in began[1:]
    )
    assert len(steward.held) == 3 and not steward.waiting
    for each_one in began[1:]:
        scheduler.handle(StoppedEvent(each_one.task.id, 1))
    assert not steward.held and flow.is_finished


def test_two_schedulers_share_one_resource_manager() -> None:
    steward = ResourceManager([machine("a", cores=1)])
    one, other = (look_ahead(NetFlow(net_of(1), 1), steward, run) for run in ("one", "other"))
    (began,) = one.handle(LookEvent())
    assert isinstance(began, SubmitTaskCommand) and other.handle(LookEvent()) == []
    (told,) = one.handle(FinishedEvent(began.task.id, 1, 0))
    assert isinstance(told, ManagerEvents) and told.happenings[0].run == "other"
    (begun,) = other.handle(told)
    assert isinstance(begun, SubmitTaskCommand)


# ---- rescheduling ----------------------------------------------------------------------------------------------------


def test_a_task_whose_machine_is_lost_is_done_elsewhere() -> None:
    flow, steward = NetFlow(net_of(8, cores=2), 1), two_machines()
    pool = Pool(rescheduling(flow, steward), gives=own_number, seconds=lambda _: 5.0, losses=[MachineLoss(1.0, "b")])
    pool.run()
    assert sorted(flow.tokens("done")) == list(range(8))
    assert {ran.nodes for ran in done_of(pool)} == {("a",)}
    assert sum(ran.outcome == "stopped" for ran in pool.ran) == 2


def test_the_base_scheduler_gives_a_lost_task_up() -> None:
    flow = NetFlow(net_of(8, cores=2), 1)
    scheduler = base(flow, two_machines())
    Pool(scheduler, gives=own_number, seconds=lambda _: 5.0, losses=[MachineLoss(1.0, "b")]).run()
    assert scheduler.done == 6 and len(scheduler.failures) == 2


def test_a_task_that_always_fails_is_tried_a_bounded_number_of_times_each_time_elsewhere() -> None:
    steward = ResourceManager([machine(name, cores=4) for name in "abcd"])
    scheduler = rescheduling(NetFlow(net_of(1), 1), steward, again=Rescheduling(attempts=4))
    pool = Pool(scheduler, failing=1.0)
    pool.run()
    assert len(pool.ran) == 4 and len({ran.nodes for ran in pool.ran}) == 4
    assert len(scheduler.failures) == 1


# ---- looking ahead ---------------------------------------------------------------------------------------------------


def hidden(count: int) -> NetFlow:
    """So many tasks for a GPU, and behind them one for a core."""
    net = Net("hidden")
    gpu, core, done = net.place("gpu", range(count)), net.place("core", [0]), net.place("done")
    net.task(number=take(gpu), put=done, name="gpu", gpus=1, priority=1)(lambda number: number)
    net.task(number=take(core), put=done, name="core")(lambda number: number)
    return NetFlow(net, 1)


def test_the_base_scheduler_is_stuck_behind_a_class_of_which_there_is_nothing() -> None:
    scheduler = base(hidden(5), ResourceManager([machine("a", cores=4)], may_grow=True))
    Pool(scheduler).run()
    assert scheduler.done == 0 and len(scheduler.status()) == 1


@pytest.mark.parametrize("count", [3, 50, 600])
def test_looking_ahead_finds_the_task_behind_any_number_of_others(count: int) -> None:
    steward = ResourceManager([machine("a", cores=4)], may_grow=True)
    scheduler = look_ahead(hidden(count), steward, drawing=LookAhead(ahead=2, most=4))
    Pool(scheduler).run()
    assert scheduler.done == 1 and len(scheduler.status()) == count
    assert scheduler.waiting_for() == {"1 core and 1 gpu on one node": count}


def test_looking_ahead_draws_no_more_than_its_bound_while_everything_is_in_use() -> None:
    steward = ResourceManager([machine("a", cores=4)])
    pool = Pool(look_ahead(NetFlow(net_of(500), 1), steward, drawing=LookAhead(ahead=10)), gives=own_number)
    pool.run()
    assert pool.scheduler.done == 500 and pool.most_waiting == 10


def test_input_and_computing_overlap_when_a_scheduler_looks_ahead() -> None:
    def run(make: Callable[..., Scheduler]) -> float:
        net = Net("stages")
        files, read, done = net.place("files", range(20)), net.place("read"), net.place("done")
        net.task(number=take(files), put=read, name="load", disks=1, cores=0, priority=1)(lambda number: number)
        net.task(number=take(read), put=done, name="calc")(lambda number: number)
        node = machine("a", cores=1)
        steward = ResourceManager([node, MachinePart("node", "io", (MachinePart("disks", "d0"),))])
        pool = Pool(make(NetFlow(net, 1), steward), gives=own_number, seconds=lambda _: 1.0)
        seconds = pool.run()
        assert pool.scheduler.done == 40
        return seconds

    assert run(look_ahead) == 21.0
    assert run(base) >= 25.0


# ---- co-allocation ---------------------------------------------------------------------------------------------------


def test_tasks_that_need_several_machines_get_all_of_them_or_none() -> None:
    net = net_of(10, nodes=2, cores=3)
    single, done = net.place("single", range(10)), net.place("singly done")
    net.task(number=take(single), put=done, name="single", cores=1)(lambda number: number)
    steward = ResourceManager([machine(name, cores=4) for name in "abc"])
    pool = Pool(co_allocation(NetFlow(net, 1), steward), gives=own_number)
    pool.run()
    assert pool.scheduler.done == 20
    wide = [ran for ran in pool.ran if ran.name == "work"]
    assert all(len(set(ran.nodes)) == 2 for ran in wide) and len(wide) == 10


def test_when_one_of_two_machines_is_lost_the_task_ends_on_the_other_and_begins_anew() -> None:
    steward = ResourceManager([machine(name, cores=1) for name in "abc"])
    flow = NetFlow(net_of(1, nodes=2), 1)
    pool = Pool(co_allocation(flow, steward), gives=own_number, seconds=lambda _: 5.0, losses=[MachineLoss(1.0, "a")])
    pool.run()
    assert [(ran.outcome, ran.nodes) for ran in pool.ran] == [("stopped", ("a", "b")), ("done", ("b", "c"))]


def test_requirements_in_different_classes_are_met_together() -> None:
    def beside(task: Any) -> list[Any]:
        return [require("gpu")]

    steward = ResourceManager([machine("a", cores=2), machine("g", cores=1, gpus=1)])
    scheduler = Scheduler(NetFlow(net_of(3, cores=2), 1), steward, asking=CoAllocation(beside))
    pool = Pool(scheduler, gives=own_number)
    pool.run()
    assert scheduler.done == 3 and {ran.nodes for ran in pool.ran} == {("a", "g")}


def test_a_scheduler_without_co_allocation_says_that_it_has_none() -> None:
    scheduler = base(NetFlow(net_of(1, nodes=2), 1), two_machines())
    Pool(scheduler).run()
    (message,) = scheduler.failures.values()
    assert message.startswith("'work' asks for 2 nodes at once")


# ---- several locations -----------------------------------------------------------------------------------------------


def at_locations(*places: str) -> DagWork:
    """A task for each of these locations; an empty one is any."""
    builder = GraphBuilder("places")
    for number, place in enumerate(places):
        asked = {"cores": 10_000} | ({f"location={place}": 1} if place else {})
        builder.task(f"{place or 'any'}{number}", "true", profile=Profile(resources=Resources.of(asked)))
    return DagWork(builder.build())


def test_tasks_choose_their_location_by_label_and_others_go_where_fewest_wait() -> None:
    stewards = {"alpha": ResourceManager([machine("a", cores=1)]), "beta": ResourceManager([machine("a", cores=1)])}
    flow = at_locations("alpha", "alpha", "alpha", "beta", "", "")
    pool = Pool(several_locations(flow, stewards))
    pool.run()
    where = {ran.name.split()[1]: ran.location for ran in done_of(pool)}
    assert all(where[name] == name[:-1] for name in where if not name.startswith("any"))
    assert len(where) == 6 and where["any4"] == "beta"


def test_an_unknown_location_is_one_sentence() -> None:
    scheduler = several_locations(at_locations("gamma", "alpha"), {"alpha": two_machines()})
    Pool(scheduler).run()
    (message,) = scheduler.failures.values()
    assert message == "'0 gamma0' cannot run at location=gamma: there are alpha" and scheduler.done == 1


def test_a_task_goes_to_the_location_that_can_run_it() -> None:
    stewards = {"small": ResourceManager([machine("a", cores=1)]), "large": ResourceManager([machine("b", cores=8)])}
    pool = Pool(several_locations(NetFlow(net_of(4, cores=4), 1), stewards), gives=own_number)
    pool.run()
    assert [ran.location for ran in done_of(pool)] == ["large"] * 4


# ---- performance model -----------------------------------------------------------------------------------------------


def two_ways(count: int) -> NetFlow:
    net = Net("ways")
    todo, done = net.place("todo", range(count)), net.place("done")
    ways = {"cpu": lambda number: number, "gpu": lambda number: number}
    net.task(number=take(todo), put=done, name="solve", implementations=ways)
    return NetFlow(net, 1)


def one_gpu() -> ResourceManager:
    return ResourceManager([machine("a", cores=4, gpus=1)])


@pytest.mark.parametrize(("fast", "slow"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_the_performance_model_learns_which_implementation_is_faster(fast: str, slow: str) -> None:
    pool = Pool(
        performance_model(two_ways(60), one_gpu()),
        gives=own_number,
        seconds=lambda submit: 0.1 if submit.way == fast else 5.0,
    )
    pool.run()
    ways = Counter(ran.way for ran in done_of(pool))
    assert ways[fast] >= 50 and ways[slow] >= 1


def test_the_performance_model_follows_a_change_while_the_run_goes_on() -> None:
    pool = Pool(performance_model(two_ways(400), one_gpu()), gives=own_number)
    pool._seconds = lambda submit: (
        (0.1 if submit.way == "gpu" else 1.0) if pool.now < 8.0 else 0.3 + 2.0 * (submit.way == "gpu")
    )
    pool.run()
    early = Counter(ran.way for ran in pool.ran if 1.0 < ran.began < 8.0)
    late = Counter(ran.way for ran in pool.ran if 12.0 < ran.began < 30.0)
    assert early["gpu"] > early["cpu"] and late["cpu"] > 10 * late["gpu"]


def test_without_a_model_the_first_implementation_whose_class_is_free_is_run() -> None:
    pool = Pool(base(two_ways(20), one_gpu()), gives=own_number)
    pool.run()
    assert {ran.way for ran in pool.ran} == {"cpu"}


# ---- transfer costs --------------------------------------------------------------------------------------------------

BLOCK = 1000


def moved(pool: Pool, partition: dict[str, list[tuple[int, int]]]) -> int:
    """Bytes that tasks read from other machines: each reads the block of its number."""
    return sum(
        BLOCK
        for ran in done_of(pool)
        if not any(begin <= ran.task % 64 * BLOCK < end for begin, end in partition[ran.nodes[0]])
    )


def test_with_transfer_costs_fewer_bytes_move_than_with_the_base_scheduler() -> None:
    hosts = ["h0", "h1", "h2", "h3"]
    partition = {host: [(n * BLOCK, (n + 1) * BLOCK) for n in range(at, 64, 4)] for at, host in enumerate(hosts)}
    steward = [ResourceManager([machine(host, cores=2) for host in hosts]) for _ in range(2)]
    builder = GraphBuilder("blocks")
    for number in range(192):
        builder.task(f"t{number}", "true")
    graph = builder.build()

    def needs(task: Any) -> dict[str, list[tuple[int, int]]]:
        at = task.id % 64 * BLOCK
        return {"matrix": [(at, at + BLOCK)]}

    near = Pool(transfer_costs(DagWork(graph), steward[0], {"matrix": partition}.__getitem__, needs=needs), 3)
    blind = Pool(base(DagWork(graph), steward[1]), 3)
    near.run(), blind.run()
    assert len(done_of(near)) == len(done_of(blind)) == 192
    assert moved(near, partition) <= 0.2 * moved(blind, partition)


def test_hosts_are_translated_to_the_resources_that_the_run_time_system_names() -> None:
    steward = ResourceManager([machine("m0", cores=1), machine("m1", cores=1)])
    builder = GraphBuilder("one")
    builder.task("t", "true")
    scheduler = transfer_costs(
        DagWork(builder.build()),
        steward,
        lambda allocation: {"host7": [(0, 10)]},
        needs=lambda task: {"x": [(0, 10)]},
        resources={"host7": ["m1/socket0", "m1/socket0/core0"]},
    )
    pool = Pool(scheduler)
    pool.run()
    assert pool.ran[0].nodes == ("m1",)


def test_a_whole_tree_that_grows_as_it_runs_is_done() -> None:
    net = Net("tree")
    todo, leaves = net.place("todo", [5]), net.place("leaves")
    net.task(number=take(todo), name="grow")(lambda number: {todo: each([number - 1] * 2)} if number else {leaves: 1})
    flow = NetFlow(net, 1)

    def grow(submit: SubmitTaskCommand) -> object:
        number = submit.task.arguments["number"]
        return {todo: each([number - 1] * 2)} if number else {leaves: 1}

    scheduler = Scheduler(flow, two_machines(), drawing=LookAhead(), rescheduling=Rescheduling(attempts=10))
    Pool(scheduler, 5, gives=grow, failing=0.1).run()
    assert len(flow.tokens("leaves")) == 32 and flow.is_finished
