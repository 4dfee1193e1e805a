"""Starting, looking at, resizing and ending a cluster: what the sub-commands of `shoal cluster` do.

With a factory the number of nodes is decided by a process of its own, which is in `shoal.cluster.keeper`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from shoal.agent.messages import ClusterAsked, ClusterTold, Refused, StopAsked, WireMessage, make_codec
from shoal.cluster.factory import Bounds
from shoal.cluster.home import ClusterHome, Started
from shoal.cluster.local import LocalStarter, last_line
from shoal.cluster.starters import Handle, LocalHandle, NotAnsweringError, Phase, Standing, Starter
from shoal.errors import InputError, RunError, ShoalError
from shoal.wire.access import Access, make_access, read, write
from shoal.wire.caller import Caller

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
_PAUSE = 0.05
_GENTLE_PAUSE = 1.0
"""Between two questions to a batch system."""
_AT_ONCE = 16


def agent_command(home: ClusterHome, *words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "agent", "--access", home.access, *words]


def starter_of(home: ClusterHome, started: Started) -> Starter:
    """Whoever starts the nodes of this cluster."""
    command = agent_command(home, *started.agent)
    if started.kind == "ssh":
        from shoal.cluster.ssh import Ssh, SshStarter, parse_hosts

        hosts = parse_hosts("\n".join(started.options))
        usable = [host for host in hosts if host.name in started.lodgings]
        return SshStarter(usable, command, home.logs, ssh=Ssh(started.ssh), lodgings=started.lodgings)
    if started.kind == "slurm":
        from shoal.cluster.slurm import SlurmStarter

        return SlurmStarter(command, home.logs, started.options, job_name=f"shoal-{home.name}")
    return LocalStarter(command, home.logs)


# ---- starting ------------------------------------------------------------------------------------------------------


def start(
    home: ClusterHome,
    count: int,
    started: Started,
    *,
    store: str | None,
    host: str,
    say: Callable[[str], None],
) -> None:
    """Head first, then nodes; waits until all that can be waited for are there."""
    with home.locked():
        before = home.read_started()
        if before.head is not None and _runs(before.head):
            raise InputError(
                f"the cluster {home.name!r} runs already",
                remedy=f"'shoal cluster scale {home.name} N' changes its size, 'cluster stop {home.name}' ends it",
            )
        if before.nodes or before.leaving:
            starter_of(home, before).stop([*before.nodes, *before.leaving])
        access = make_access(home.name)
        write(access.at([], store) if store else access, home.access)
        try:
            _start_head(home, started, host)
        finally:
            home.write_started(started)
    try:
        say(f"head at {', '.join(read(home.access).contacts)}")
        if started.kind == "ssh":
            _prepare_hosts(home, started, say)
        scale(home, count, say)
        _start_factory(home, say)
    except ShoalError:
        stop(home)
        raise


def _start_head(home: ClusterHome, started: Started, host: str) -> None:
    command = agent_command(home, "--head", "--bind", f"tcp://{host}:0", "--store", home.store)
    found = LocalStarter(command, home.logs).start(1)
    if found.problems:
        raise RunError(found.problems[0])
    (head,) = found.handles
    started.head = head
    deadline = time.monotonic() + READY_SECONDS
    while not read(home.access).contacts:
        if not _runs(head):
            assert isinstance(head, LocalHandle)
            raise RunError(f"the head of the cluster has ended: {last_line(head.log)}")
        if time.monotonic() > deadline:
            raise RunError("the head of the cluster does not get ready")
        time.sleep(_PAUSE)


def _prepare_hosts(home: ClusterHome, started: Started, say: Callable[[str], None]) -> None:
    """Brings program and access file to the hosts."""
    from shoal.cluster.lodging import prepare_hosts
    from shoal.cluster.ssh import Ssh, parse_hosts

    problems: list[str] = []
    hosts = parse_hosts("\n".join(started.options))
    started.lodgings = prepare_hosts(Ssh(started.ssh), hosts, read(home.access), started.agent, problems.append)
    with home.locked():
        home.write_started(started)
    if not started.lodgings:
        raise InputError(problems[0])
    for problem in problems:
        say(problem)


def _start_factory(home: ClusterHome, say: Callable[[str], None]) -> bool:
    """Starts the process that keeps the cluster within its bounds, if it has any and it does not run."""
    with home.locked():
        started = home.read_started()
        if started.bounds is None or (started.factory is not None and _runs(started.factory)):
            return False
        command = [sys.executable, "-m", "shoal", "cluster", "factory", home.name]
        found = LocalStarter(command, home.logs).start(1)
        if found.problems:
            raise RunError(found.problems[0])
        (started.factory,) = found.handles
        home.write_started(started)
    say(f"a factory keeps {started.bounds.minimum} to {started.bounds.maximum} nodes, as the work needs them")
    return True


def _runs(handle: Handle) -> bool:
    return LocalStarter([], "").poll([handle]).get(handle, Standing(Phase.ENDED)).phase is Phase.RUNNING


def restart(home: ClusterHome, say: Callable[[str], None]) -> None:
    """Starts the head anew if it is gone, at the address it had, and the factory if there is to be one."""
    with home.locked():
        started = home.read_started()
        if started.head is None:
            raise nowhere(home)
        is_gone = not _runs(started.head)
        if is_gone:
            contact = read(home.access).contacts[0]
            command = agent_command(home, "--head", "--bind", contact, "--store", home.store)
            found = LocalStarter(command, home.logs).start(1)
            if found.problems:
                raise RunError(found.problems[0])
            (started.head,) = found.handles
            home.write_started(started)
    say("the head was started anew" if is_gone else "the head runs")
    if not _start_factory(home, say) and started.bounds is not None:
        say("the factory runs")


# ---- resizing ------------------------------------------------------------------------------------------------------


def scale(home: ClusterHome, count: int, say: Callable[[str], None]) -> None:
    """As many nodes as asked for; the newest go first, when they have done what they have begun."""
    with home.locked():
        started = home.read_started()
        if started.head is None:
            raise nowhere(home)
        if started.factory is not None and _runs(started.factory):
            raise InputError(
                f"a factory decides how many nodes {home.name!r} has",
                remedy=f"change its bounds: 'shoal cluster scale {home.name} --min A --max B'",
            )
        starter = starter_of(home, started)
        standing = starter.poll([*started.nodes, *started.leaving])
        alive = [node for node in started.nodes if standing[node].phase is not Phase.ENDED]
        started.leaving = [node for node in started.leaving if standing[node].phase is not Phase.ENDED]
        problems: tuple[str, ...] = ()
        if len(alive) > count:
            alive.sort(key=lambda node: standing[node].phase is not Phase.RUNNING)  # those that only wait go first
            started.leaving += let_go(read(home.access), starter, alive[count:])
            alive = alive[:count]
        elif len(alive) < count:
            found = starter.start(count - len(alive), [*alive, *started.leaving])
            alive += found.handles
            problems = found.problems
        started.nodes = alive
        home.write_started(started)
    if problems and not alive:
        raise InputError(problems[0])
    for problem in problems:
        say(problem)
    if started.kind == "slurm":
        say(f"{len(alive)} nodes asked for; Slurm starts them when it can" if alive else "no node is asked for")
    else:
        _await_nodes(home, starter, alive)
        say(f"{len(alive)} nodes are there")


def set_bounds(home: ClusterHome, bounds: Bounds, say: Callable[[str], None]) -> None:
    """The factory goes by these from now on; if there was none there is one now."""
    with home.locked():
        started = home.read_started()
        if started.head is None:
            raise nowhere(home)
        started.bounds = bounds
        home.write_started(started)
    if not _start_factory(home, say):
        say(f"the factory keeps {bounds.minimum} to {bounds.maximum} nodes from now on")


def let_go(access: Access, starter: Starter, handles: Sequence[Handle]) -> list[Handle]:
    """Asks nodes to end when they have done what they have begun; those that nobody has heard of are ended at once."""
    try:
        with Caller(access, make_codec()) as caller:
            nodes = told(caller).nodes
    except InputError:
        nodes = {}
    address_of = {node.labels.get("node", ""): node.address for node in nodes.values()}
    leaving: list[Handle] = []
    deaf: list[Handle] = []
    for handle in handles:
        address = address_of.get(handle.name)
        heard = address is not None and ask_to_end(access, address, at_once=False)
        (leaving if heard else deaf).append(handle)
    if deaf:
        starter.stop(deaf)
    return leaving


def ask_to_end(access: Access, address: str, *, at_once: bool) -> bool:
    """Tells one agent that it is to end; whether it has heard."""
    try:
        with Caller(msgspec.structs.replace(access, contacts=[address]), make_codec(), patience=2.0) as caller:
            return not isinstance(caller.ask(StopAsked(at_once), 5.0), Refused)
    except InputError:
        return False


def _await_nodes(home: ClusterHome, starter: Starter, handles: Sequence[Handle]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    next_poll = 0.0
    with Caller(read(home.access), make_codec()) as caller:
        while True:
            there = {node.labels.get("node") for node in told(caller).nodes.values()}
            missing = [handle for handle in handles if handle.name not in there]
            if not missing:
                return
            if time.monotonic() > next_poll:
                for handle, standing in starter.poll(missing).items():
                    if standing.phase is Phase.ENDED:
                        raise RunError(f"a node has ended before it joined: {standing.reason} (see {handle.log})")
                next_poll = time.monotonic() + (_PAUSE if isinstance(starter, LocalStarter) else _GENTLE_PAUSE)
            if time.monotonic() > deadline:
                raise RunError(f"{len(missing)} nodes do not join; see {missing[0].log}")
            time.sleep(_PAUSE)


# ---- looking and ending --------------------------------------------------------------------------------------------


def told(caller: Caller[WireMessage]) -> ClusterTold:
    """Who is there and what is run."""
    answer = caller.ask(ClusterAsked())
    if isinstance(answer, Refused):
        raise InputError(f"the cluster refuses: {answer.why}")
    assert isinstance(answer, ClusterTold)
    return answer


def absent(home: ClusterHome, found: ClusterTold) -> list[tuple[Handle, Standing]]:
    """Nodes that were started and are not there, with the reason as far as whoever starts them knows it."""
    started = home.read_started()
    there = {node.labels.get("node") for node in found.nodes.values()}
    missing = [handle for handle in started.nodes if handle.name not in there]
    if not missing:
        return []
    try:
        return list(starter_of(home, started).poll(missing).items())
    except NotAnsweringError as error:
        return [(handle, Standing(Phase.WAITING, str(error))) for handle in missing]


def factory_says(home: ClusterHome) -> str:
    """How the factory is doing, in words; nothing if there is none."""
    started = home.read_started()
    if started.bounds is None:
        return ""
    bounds = f"from {started.bounds.minimum} to {started.bounds.maximum} nodes"
    if started.factory is None or not _runs(started.factory):
        return f"the factory ({bounds}) does not run; 'shoal cluster restart {home.name}' starts it"
    said = last_line(started.factory.log)
    return f"factory {bounds}" + (f": {said}" if said else "")


def stop(home: ClusterHome) -> int:
    """Ends the factory, the nodes, then the head; how many nodes there were."""
    started = home.read_started()
    if started.head is None and not started.nodes:
        raise nowhere(home)
    if started.factory is not None:
        LocalStarter([], home.logs).stop([started.factory])
    with home.locked():
        started = home.read_started()
        nodes = [*started.nodes, *started.leaving]
        if nodes:
            _tell_all_to_end(home)
            _end_nodes(starter_of(home, started), nodes)
        if started.head is not None:
            LocalStarter([], home.logs).stop([started.head])
        if started.lodgings:
            from shoal.cluster.lodging import clear_hosts
            from shoal.cluster.ssh import Ssh

            clear_hosts(Ssh(started.ssh), started.lodgings)
        home.write_started(Started())
        try:
            os.unlink(home.access)
        except FileNotFoundError:
            pass
    return len(started.nodes)


def _tell_all_to_end(home: ClusterHome) -> None:
    """Agents that hear it give back what they have and are gone soon; the others are ended from outside."""
    try:
        access = read(home.access)
        with Caller(access, make_codec()) as caller:
            addresses = [node.address for node in told(caller).nodes.values()]
    except InputError:
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda address: ask_to_end(access, address, at_once=True), addresses))


def _end_nodes(starter: Starter, nodes: Sequence[Handle]) -> None:
    """From outside, and until they have ended; a batch system takes its time for that."""
    starter.stop(nodes)
    deadline = time.monotonic() + STOP_SECONDS
    while any(standing.phase is not Phase.ENDED for standing in starter.poll(nodes).values()):
        if time.monotonic() > deadline:
            return
        time.sleep(_GENTLE_PAUSE)


def nowhere(home: ClusterHome) -> InputError:
    return InputError(f"there is no cluster {home.name!r} here", remedy="'shoal cluster list' names those there are")


def names() -> list[str]:
    """The clusters that were started from here."""
    folder = os.path.dirname(ClusterHome("x").folder)
    try:
        found = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in found if os.path.exists(os.path.join(folder, name, "access.json"))]
