"""The run-time system and its job servers on real agents: grants are obeyed, ranks meet, what dies is noticed."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import shoal.memory
from cluster.real.test_ssh_starter import Server, server
from shoal.cluster.nodes.starters import LocalHandle
from shoal.core.graph import GraphBuilder
from shoal.errors import InputError, RunError
from shoal.petri import Net, NetFlow, net_of_graph, take
from shoal.resources.machine import MachinePart
from shoal.resources.scheduler_interface import CoAllocation
from shoal.runtime import JobServer, RuntimeSystem, Strategy, call, meet, several_locations, simple, with_transfer_costs
from shoal.schedulers import DagWork, Flow, Rescheduling, Scheduler, look_ahead, performance_model
from support.command import wait_until

__all__ = ["server"]

PATIENCE = 60.0
ONE_CORE = Strategy("local", agent=("--cores=1",))
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "nets"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeSystem]:
    """A cluster of two agents with a core each; every test adds what it needs of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path_factory.mktemp("home")))
        with RuntimeSystem("lab") as runtime:
            runtime.bootstrap(["localhost", "localhost"], ONE_CORE)
            yield runtime


@pytest.fixture
def runtime(lab: RuntimeSystem) -> Iterator[RuntimeSystem]:
    """The two agents, of which the steward of this test knows nothing yet."""
    found = RuntimeSystem("lab")
    found.adopt()
    yield found
    assert not found.steward.held and not found.steward.waiting


def described(name: str, cpu: int) -> MachinePart:
    return MachinePart("node", name, (MachinePart("core", "core0", cpu=cpu),))


def pid_of(runtime: RuntimeSystem, node: str) -> int:
    handle = next(each for each in runtime.home.read_started().handles if each.name == node)
    assert isinstance(handle, LocalHandle)
    return handle.pid


def net_of(count: int, function: Any, **asked: Any) -> NetFlow:
    net = Net("work")
    todo, done = net.place("todo", range(count)), net.place("done")
    net.task(number=take(todo), put=done, name="work", **asked)(function)
    return NetFlow(net, 1)


def where(number: int) -> dict[str, Any]:
    begin = time.monotonic()
    time.sleep(0.05)  # what it is: a task that takes a while
    told = {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}
    return told | {"affinity": os.sched_getaffinity(0), "begin": begin, "end": time.monotonic(), "pid": os.getpid()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


where.__module__ = is_running.__module__ = "__main__"  # sent by value: no worker has to load all that this file loads


# ---- agents and resources --------------------------------------------------------------------------------------------


def test_what_agents_offer_becomes_resources_of_their_hosts(runtime: RuntimeSystem) -> None:
    one, other = sorted(runtime.nodes)
    report = runtime.add(one)
    assert list(report) == [one, f"{one}/socket0", f"{one}/socket0/core0"]
    assert all(address.startswith("tcp://") for address in report.values())
    runtime.add(other, described("described", 0))
    resources = runtime.host_to_resource()
    assert sorted(map(tuple, resources.values())) == sorted([tuple(report), ("described", "described/core0")])
    assert runtime.remove(other, "described/core0") == ["described/core0"]
    assert runtime.remove(one) == list(report)
    assert list(runtime.host_to_resource().values()) == [["described"]]


def test_the_machine_of_an_agent_is_discovered_by_asking_it(runtime: RuntimeSystem) -> None:
    node = runtime.nodes[0]
    part = runtime.discover(node)
    runtime.add(node, part)
    cpus = {unit.cpu for unit in runtime.steward.forest.units.values() if unit.cpu is not None}
    assert part.name == node and cpus == os.sched_getaffinity(0) and f"node={node}" in part.labels
    runtime.remove(node)


def test_what_cannot_be_meant_is_one_sentence(runtime: RuntimeSystem) -> None:
    node = runtime.nodes[0]
    with pytest.raises(InputError, match="unknown strategy 'magic'"):
        runtime.bootstrap(1, "magic")
    with pytest.raises(InputError, match="no agent to start"):
        runtime.bootstrap(0)
    with pytest.raises(InputError, match="there is no agent 'nobody' here"):
        runtime.add("nobody")
    with pytest.raises(InputError, match="has no resource 'elsewhere/core0'"):
        runtime.remove(node, "elsewhere/core0")
    with pytest.raises(InputError, match="it has no driver"):
        call("anything")


def test_an_agent_is_bootstrapped_by_ssh_and_torn_down(server: Server, tmp_path: Path) -> None:
    words = server.client().prefix
    strategy = Strategy("ssh", ssh=tuple(words[words.index("-F") :]), agent=("--cores=1",), labels=("site=far",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path))
        with RuntimeSystem("far") as runtime:
            (node,) = runtime.bootstrap([f"{getpass.getuser()}@127.0.0.1"], strategy)
            try:
                runtime.add(node)
                flow = net_of(2, where, **{"site=far": 1})
                simple(flow, runtime).run()
                assert [told["SHOAL_NODE"] for told in flow.tokens("done")] == [node, node]
                assert runtime.teardown([node]) == [node]
            finally:
                lodgings = runtime.home.read_started().groups[0].lodgings
    for lodging in lodgings.values():
        shutil.rmtree(lodging.logs, ignore_errors=True)


# ---- job servers -----------------------------------------------------------------------------------------------------


def test_tasks_run_where_they_were_granted_a_place_and_never_two_at_one(runtime: RuntimeSystem) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    homes = {}
    for at, node in enumerate(sorted(runtime.nodes)):
        homes[f"m{at}"] = node
        runtime.add(node, described(f"m{at}", cpus[at % len(cpus)]))
    flow = net_of(12, where)
    simple(flow, runtime).run()
    ran = flow.tokens("done")
    assert len(ran) == 12
    for told in ran:
        machine = told["SHOAL_HOSTS"]
        assert told["SHOAL_NODE"] == homes[machine]
        assert told["affinity"] == {int(told["SHOAL_CPUS"])} and told["SHOAL_RANKS"] == told["SHOAL_CORES"] == "1"
    for machine in homes:
        times = sorted((told["begin"], told["end"]) for told in ran if told["SHOAL_HOSTS"] == machine)
        assert times, f"nothing ran on {machine}"
        assert all(before[1] <= after[0] for before, after in pairwise(times))


@pytest.mark.parametrize("as_net", [False, True])
def test_a_graph_of_commands_runs_by_a_job_server(runtime: RuntimeSystem, tmp_path: Path, as_net: bool) -> None:
    for node in runtime.nodes:
        runtime.add(node)
    builder = GraphBuilder("files")
    builder.task("a", "echo a > a", outputs=["a"])
    builder.task("b", "echo $SHOAL_HOSTS > b", outputs=["b"])
    builder.task("c", "cat a b > c", inputs=["a", "b"], outputs=["c"])
    graph = builder.build()
    flow: Flow = NetFlow(net_of_graph(graph), 1) if as_net else DagWork(graph)
    JobServer(look_ahead(flow, runtime.steward), runtime, directory=str(tmp_path)).run()
    first, second = (tmp_path / "c").read_text().split()
    assert first == "a" and second in runtime.nodes


def test_a_failure_is_a_sentence_and_the_rest_is_done(runtime: RuntimeSystem) -> None:
    runtime.add(runtime.nodes[0])

    def halve(number: int) -> float:
        return 6 / number

    flow = net_of(4, halve)
    with pytest.raises(RunError, match="the run of the task 'work' failed with ZeroDivisionError: division by zero"):
        simple(flow, runtime).run()
    assert sorted(flow.tokens("done")) == [2.0, 3.0, 6.0]


def test_two_job_servers_share_the_agents_of_one_run_time_system(runtime: RuntimeSystem) -> None:
    runtime.add(runtime.nodes[0])
    flows = [net_of(4, where), net_of(4, where)]
    servers = [simple(flow, runtime, run) for flow, run in zip(flows, ("one", "other"), strict=True)]
    threads = [threading.Thread(target=each.run) for each in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    ran = sorted((told["begin"], told["end"]) for flow in flows for told in flow.tokens("done"))
    assert len(ran) == 8 and all(before[1] <= after[0] for before, after in pairwise(ran))


def test_the_implementation_that_was_chosen_runs_on_the_class_it_needs(runtime: RuntimeSystem) -> None:
    one, other = runtime.nodes
    runtime.add(one, MachinePart("node", "plain", (MachinePart("core", "core0"),)))
    runtime.add(other, MachinePart("node", "quick", (MachinePart("core", "core0"), MachinePart("turbo", "turbo0"))))
    net = Net("ways")
    todo, done = net.place("todo", range(10)), net.place("done")
    ways = {
        "cpu": lambda number: (where(number), "cpu", os.environ["SHOAL_HOSTS"]),
        "turbo": lambda number: (number, "turbo", os.environ["SHOAL_HOSTS"]),
    }
    net.task(number=take(todo), put=done, name="solve", implementations=ways)
    flow = NetFlow(net, 1)
    JobServer(performance_model(flow, runtime.steward), runtime).run()
    ran = [(way, host) for _, way, host in flow.tokens("done")]
    assert len(ran) == 10 and {host for way, host in ran if way == "turbo"} == {"quick"} and ("turbo", "quick") in ran


def test_several_locations_have_agents_of_their_own(runtime: RuntimeSystem) -> None:
    places = {}
    for location, node in zip(("alpha", "beta"), sorted(runtime.nodes), strict=True):
        places[location] = RuntimeSystem("lab")
        places[location].adopt()
        places[location].add(node)
    net = Net("places")
    done = net.place("done")
    for location in ("alpha", "beta", "beta"):
        todo = net.place(f"for {location} {len(net.transitions)}", [location])
        name = f"work {len(net.transitions)}"
        extra = {f"location={location}": 1}
        net.task(place=take(todo), put=done, name=name, **extra)(lambda place: (place, os.environ["SHOAL_NODE"]))
    flow = NetFlow(net, 1)
    several_locations(flow, places).run()
    alpha, beta = sorted(runtime.nodes)
    assert sorted(flow.tokens("done")) == [("alpha", alpha), ("beta", beta), ("beta", beta)]


def test_with_transfer_costs_tasks_run_where_their_bytes_lie(runtime: RuntimeSystem, tmp_path: Path) -> None:
    for node in runtime.nodes:
        runtime.add(node)
    memory = shoal.memory.connect("lab")
    try:
        matrix = memory.alloc(8 * 4096, bytes(range(8)) * 4096, block_bytes=4096, spread="turns")
        holders = memory.partition(matrix)

        def block(task: Any) -> dict[str, list[tuple[int, int]]]:
            at = task.arguments["number"] * 4096
            return {matrix.id: [(at, at + 4096)]}

        def use(number: int) -> tuple[int, str]:
            """Waits until the other node has begun as many, so that neither runs out of tasks of its own first."""
            here, seen = os.environ["SHOAL_HOSTS"], tmp_path / "seen"
            (seen / f"{here}.{number}").touch()
            mine = len([*seen.glob(f"{here}.*")])
            while len([*seen.iterdir()]) - len([*seen.glob(f"{here}.*")]) < mine:
                time.sleep(0.01)  # polls until the other one comes
            return number, here

        (tmp_path / "seen").mkdir()

        hosts = runtime.host_to_resource()
        flow = net_of(8, use)
        with_transfer_costs(flow, runtime, [matrix], needs=block).run()
    finally:
        memory.close()
    near = 0
    for number, node in flow.tokens("done"):
        host = next(host for host, resources in hosts.items() if node in resources)
        near += any(begin <= number * 4096 < end for begin, end in holders[host])
    assert len(holders) == 2 and near >= 6


# ---- calls to the driver ---------------------------------------------------------------------------------------------


def test_a_task_calls_functions_of_its_driver(runtime: RuntimeSystem) -> None:
    runtime.add(runtime.nodes[0])
    asked: list[int] = []

    def ask(number: int, *, twice: bool) -> int:
        asked.append(number)
        return number * (2 if twice else 1)

    def work(number: int) -> Any:
        problems = []
        for name in ("unknown", "raises"):
            try:
                call(name)
            except RunError as error:
                problems.append(str(error))
        return call("ask", number, twice=True), problems

    flow = net_of(3, work)
    simple(flow, runtime, functions={"ask": ask, "raises": lambda: [][0]}).run()
    problems = [
        "the driver has no function 'unknown'; it has ask, raises",
        "the driver's function 'raises' failed with IndexError: list index out of range",
    ]
    assert sorted(flow.tokens("done")) == [(0, problems), (2, problems), (4, problems)]
    assert sorted(asked) == [0, 1, 2]


def test_a_call_to_the_driver_may_feed_the_net_and_fails_only_its_task_if_it_cannot(runtime: RuntimeSystem) -> None:
    runtime.add(runtime.nodes[0])
    net = Net("fed")
    todo, done = net.place("todo", [3]), net.place("done")

    def count_down(number: int) -> int:
        call("put", "todo" if number else "nowhere", number - 1)
        return number

    net.task(number=take(todo), put=done)(count_down)
    flow = NetFlow(net, 1)
    fed = simple(flow, runtime, functions={"put": lambda place, number: fed.do(lambda: flow.put(place, number))})
    fed.do(lambda: flow.put("elsewhere", 1))
    with pytest.raises(RunError, match="the place 'elsewhere', which the net does not have"):
        fed.run()
    _, problem = fed.problems()
    assert sorted(flow.tokens("done")) == [1, 2, 3]
    assert "the driver's function 'put' failed with net 'fed' is asked for the place 'nowhere'" in problem


# ---- several nodes at once -------------------------------------------------------------------------------------------


def test_a_task_on_two_nodes_is_two_ranks_that_talk_to_each_other(runtime: RuntimeSystem) -> None:
    for node in runtime.nodes:
        runtime.add(node)
    spec = importlib.util.spec_from_file_location("two_nodes", EXAMPLES / "two_nodes.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    net = example.build(1000)
    net.transitions["sum_of_squares"].function.__module__ = "__main__"  # the agents have no such module
    assert simple(NetFlow(net), runtime).run() == sum(number * number for number in range(1000))


def test_ranks_get_hosts_and_rank_and_run_on_different_nodes(runtime: RuntimeSystem) -> None:
    for node in runtime.nodes:
        runtime.add(node)

    def gather(number: int) -> list[Any]:
        names = ("SHOAL_RANK", "SHOAL_RANKS", "SHOAL_HOSTS", "SHOAL_HOST_RANKS", "SHOAL_NODE")
        return meet([os.environ[name] for name in names])

    flow = net_of(2, gather, nodes=2, cores=1)
    simple(flow, runtime).run()
    for ranks in flow.tokens("done"):
        hosts = ranks[0][2]
        assert sorted(hosts.split(",")) == sorted(runtime.nodes)
        assert [rank[:4] for rank in ranks] == [[str(at), "2", hosts, "1,1"] for at in range(2)]
        assert [rank[4] for rank in ranks] == hosts.split(",")


def test_when_one_rank_fails_the_other_has_ended_before_the_task_is_tried_again(
    runtime: RuntimeSystem, tmp_path: Path
) -> None:
    for node in runtime.nodes:
        runtime.add(node)
    log = str(tmp_path / "log")

    def fail_on_one(number: int) -> str:
        rank = os.environ["SHOAL_RANK"]
        with open(log, "a+") as file:
            file.seek(0)
            alive = [line for line in file.read().split() if is_running(int(line))]
            if alive and rank == "0":
                return f"{alive} of an earlier attempt still run"
            meet()
            if rank == "0":
                file.write(f"{os.getpid()}\n")
        meet()
        if rank == "1":
            raise ValueError("no more")
        time.sleep(600)  # it is ended with the other
        return "it went on alone"

    flow = net_of(1, fail_on_one, nodes=2, cores=1)
    twice = Scheduler(flow, runtime.steward, asking=CoAllocation(), rescheduling=Rescheduling(attempts=2))
    with pytest.raises(RunError, match="ValueError: no more"):
        JobServer(twice, runtime).run()
    assert len(set(Path(log).read_text().split())) == 2 and flow.tokens("done") == []


def test_a_task_that_needs_more_nodes_than_there_are_fails_at_once(runtime: RuntimeSystem) -> None:
    runtime.add(runtime.nodes[0])
    with pytest.raises(RunError, match="1 core on each of 2 nodes can never be granted"):
        simple(net_of(1, where, nodes=2, cores=1), runtime).run()


# ---- what is ended ---------------------------------------------------------------------------------------------------


def test_a_server_that_is_stopped_cancels_what_runs_and_can_be_gone_on_with(
    runtime: RuntimeSystem, tmp_path: Path
) -> None:
    runtime.add(runtime.nodes[0])
    mark = str(tmp_path / "begun")

    def wait_once(number: int) -> int:
        if not os.path.exists(mark):
            Path(mark).write_text("begun")
            time.sleep(600)  # it is cancelled by the test
        return number

    flow = net_of(3, wait_once)
    server = simple(flow, runtime)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: os.path.exists(mark), "the task has begun", PATIENCE)
    server.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive() and flow.tokens("done") == []
    again = NetFlow.resume(flow.net, flow.state())
    simple(again, runtime).run()
    assert sorted(again.tokens("done")) == [0, 1, 2]


def test_ctrl_c_ends_what_runs_at_once(runtime: RuntimeSystem, tmp_path: Path) -> None:
    runtime.add(runtime.nodes[0])
    mark = str(tmp_path / "begun")

    def last_long(number: int) -> None:
        Path(mark).write_text(str(os.getpid()))
        time.sleep(600)  # it is ended by the test

    def interrupt() -> None:
        raise KeyboardInterrupt

    server = simple(net_of(1, last_long), runtime)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except KeyboardInterrupt as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: os.path.exists(mark) and bool(Path(mark).read_text()), "the task has begun", PATIENCE)
    with pytest.raises(RunError, match="the job server ended before it handled this request"):
        server.do(interrupt)
    thread.join(PATIENCE)
    assert not thread.is_alive() and len(caught) == 1
    pid = int(Path(mark).read_text())
    wait_until(lambda: not is_running(pid), "the task has ended", PATIENCE)


# ---- what dies: these use up the agents of the lab, so they are the last ---------------------------------------------


def test_a_task_whose_agent_is_killed_is_done_by_another_one(lab: RuntimeSystem, tmp_path: Path) -> None:
    runtime = RuntimeSystem("lab")
    doomed, other = runtime.adopt()
    runtime.add(doomed)
    mark = str(tmp_path / "begun")

    def last_long(number: int) -> str:
        node = os.environ["SHOAL_NODE"]
        if not os.path.exists(mark):
            Path(mark).write_text(node)
            time.sleep(600)  # its agent is killed by the test
        return node

    flow = net_of(1, last_long)
    server = simple(flow, runtime)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: os.path.exists(mark), "the task has begun", PATIENCE)
    runtime.add(other)
    os.kill(pid_of(runtime, doomed), signal.SIGKILL)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert flow.tokens("done") == [other]
    assert doomed not in runtime.steward.forest.machines
    lab.look()


def test_an_agent_that_is_torn_down_is_no_longer_there(lab: RuntimeSystem) -> None:
    node = lab.nodes[-1]
    lab.add(node)
    assert lab.teardown([node]) == [node] and node not in lab.nodes
    assert node not in lab.steward.forest.machines
    wait_until(lambda: node not in lab._present(), f"{node} has left", PATIENCE)
