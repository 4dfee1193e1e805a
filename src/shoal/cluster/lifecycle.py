"""Starts, inspects, resizes and stops a cluster: the sub-commands of `shoal cluster`.

With a factory a separate process decides the number of nodes (`shoal.cluster.nodes.factory_process`). The end of the
module checks the settings of a Redis server before a cluster uses it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from shoal.cluster.agent.messages import ClusterReply, ClusterRequest, make_codec
from shoal.cluster.home import ClusterHome, ClusterRecord, GroupRecord, remove_dead
from shoal.cluster.messaging.access import make_access, read, write
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.factory import Bounds
from shoal.cluster.nodes.groups import (
    agent_command,
    agent_words,
    ask_to_end,
    clean_hosts,
    drain_nodes,
    drop_ended,
    forget_closed,
    read_cluster,
    standings_of,
    starter_of,
)
from shoal.cluster.nodes.local import LocalStarter, last_line
from shoal.cluster.nodes.starters import Handle, LocalHandle, NodePhase, NodeStatus, NotAnsweringError, Starter
from shoal.cluster.stores.redis import RedisLink, key_of, worries
from shoal.errors import InputError, RunError, ShoalError

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
_PAUSE = 0.05
_GENTLE_PAUSE = 1.0
"""Seconds between two requests to a batch system."""
_AT_ONCE = 16
_FILES_EACH = 64
"""Seconds that an agent may take to end, with a margin."""
_TAIL = 65536
"""Bytes at the end of a log in which the last message of each group is searched."""

Say = Callable[[str], None]


# ---- starting ------------------------------------------------------------------------------------------------------


def start(
    home: ClusterHome, count: int, group: GroupRecord, bounds: Bounds | None, *, store: str | None, host: str, say: Say
) -> None:
    """Starts the head, then the nodes, and waits for all nodes that do not depend on a queue."""
    with home.locked():
        before = home.read_started()
        if before.head is not None and _runs(before.head):
            raise InputError(
                f"the cluster {home.name!r} is already running",
                remedy=f"'shoal cluster scale {home.name} N' changes its size, 'cluster stop {home.name}' ends it",
            )
        for left in before.groups:
            if left.all_nodes:
                starter_of(home, left).stop(left.all_nodes)
        if store is not None:
            check_server(store, home.name, say)
        remove_dead()
        access = make_access(home.name)
        write(access.at([], store) if store else access, home.access)
        started = ClusterRecord(groups=[group])
        try:
            _start_head(home, started, f"tcp://{host}:0")
        except ShoalError:
            _clear(home, started)
            raise
        home.write_started(started)
    try:
        say(f"head at {', '.join(read(home.access).contacts)}")
        _begin(home, group, bounds, count, say)
    except ShoalError:
        stop(home)
        raise


def add(home: ClusterHome, count: int, group: GroupRecord, bounds: Bounds | None, say: Say) -> None:
    """Adds a group of nodes; restores the former state if that fails."""
    with home.locked():
        started = _known(home)
        _sweep(home, started)
        other = next((each for each in started.groups if each.name == group.name), None)
        if other is not None:
            raise InputError(
                f"the nodes of the removed group {group.name!r} have not ended yet"
                if other.closing
                else f"the cluster {home.name!r} has a group {group.name!r} already",
                remedy="choose another name with --group",
            )
        started.groups.append(group)
        home.write_started(started)
    try:
        _begin(home, group, bounds, count, say)
    except ShoalError:
        _undo(home, group.name)
        raise


def _undo(home: ClusterHome, name: str) -> None:
    """Removes a group whose start failed, with its nodes."""
    with home.locked():
        started = home.read_started()
        group = started.group(name)
        group.bounds, group.closing = None, True
        try:
            _end_nodes(starter_of(home, group), group.all_nodes)
            group.nodes, group.leaving = [], []
        except NotAnsweringError:
            pass  # nodes that are left end with the cluster, or with 'remove'
        forget_closed(started)
        home.write_started(started)


def _begin(home: ClusterHome, group: GroupRecord, bounds: Bounds | None, count: int, say: Say) -> None:
    """Starts the first nodes of a group; its factory, if it has one, continues from there."""
    if group.kind == "ssh":
        _prepare_hosts(home, group, say)
    scale(home, count, say, group.name)
    if bounds is not None:
        set_bounds(home, bounds, say, group.name)


def _start_head(home: ClusterHome, started: ClusterRecord, bind: str) -> None:
    """Starts the head and waits until it replies."""
    command = agent_command(home, "--head", "--bind", bind, "--store", home.store)
    found = LocalStarter(command, home.logs).start(1)
    if found.problems:
        raise RunError(found.problems[0])
    (head,) = found.handles
    started.head = head
    assert isinstance(head, LocalHandle)
    deadline = time.monotonic() + READY_SECONDS
    while not _answers(home):
        if not _runs(head):
            raise InputError(f"the head of the cluster has ended: {last_line(head.log).removeprefix('shoal: ')}")
        if time.monotonic() > deadline:
            raise RunError("the head of the cluster does not reply")
        time.sleep(_PAUSE)


def _answers(home: ClusterHome) -> bool:
    access = read(home.access)
    if not access.contacts:
        return False
    try:
        with Caller(access.at(access.contacts), make_codec(), patience=_GENTLE_PAUSE) as caller:
            caller.ask(ClusterRequest())
    except InputError:
        return False
    return True


def _prepare_hosts(home: ClusterHome, group: GroupRecord, say: Say) -> None:
    """Installs the program and the access file on the hosts."""
    from shoal.cluster.nodes.remote_setup import prepare_hosts
    from shoal.cluster.nodes.ssh import Ssh, parse_hosts

    problems: list[str] = []
    hosts = parse_hosts("\n".join(group.options))
    lodgings = prepare_hosts(Ssh(group.ssh), hosts, read(home.access), agent_words(group), problems.append)
    with home.locked():
        started = home.read_started()
        started.group(group.name).lodgings = lodgings
        home.write_started(started)
    if not lodgings:
        raise InputError(problems[0])
    for problem in problems:
        say(problem)


def _start_factory(home: ClusterHome) -> bool:
    """Starts the process that keeps groups within their bounds, if a group has bounds and the process does not run."""
    with home.locked():
        started = home.read_started()
        if not started.has_bounds or (started.factory is not None and _runs(started.factory)):
            return False
        command = [sys.executable, "-P", "-m", "shoal", "cluster", "factory", home.name]
        found = LocalStarter(command, home.logs).start(1)
        if found.problems:
            raise RunError(found.problems[0])
        (started.factory,) = found.handles
        home.write_started(started)
    return True


def _runs(handle: Handle) -> bool:
    return LocalStarter([], "").poll([handle]).get(handle, NodeStatus(NodePhase.ENDED)).phase is NodePhase.RUNNING


def restart(home: ClusterHome, say: Say) -> None:
    """Restarts the head at its former address if it has ended, and the factory if a group has bounds."""
    with home.locked():
        started = home.read_started()
        if started.head is None:
            raise nowhere(home)
        is_gone = not _runs(started.head)
        if is_gone:
            before = started.head
            try:
                _start_head(home, started, read(home.access).contacts[0])
            except ShoalError:
                started.head = before  # the cluster still exists, so 'restart' can be tried again
                raise
            finally:
                home.write_started(started)
    say("the head was restarted" if is_gone else "the head is running")
    is_new = _start_factory(home)
    for group in started.groups:
        if group.bounds is not None and is_new:
            say(_keeps(started, group))
    if started.has_bounds and not is_new:
        say("the factory is running")


# ---- resizing ------------------------------------------------------------------------------------------------------


def scale(home: ClusterHome, count: int, say: Say, name: str | None = None) -> None:
    """Starts or ends nodes until there are `count`. The newest end first, when their running tasks have ended."""
    with home.locked():
        started = _known(home)
        group = started.group(name)
        if group.bounds is not None and started.factory is not None and _runs(started.factory):
            raise InputError(
                f"a factory decides how many nodes {_of(home, started, group)} has",
                remedy=f"change its bounds: 'shoal cluster scale {home.name} --min A --max B'",
            )
        starter = starter_of(home, group)
        standing = starter.poll(group.all_nodes) if group.all_nodes else {}
        drop_ended(group, standing)
        alive = group.nodes
        problems: tuple[str, ...] = ()
        if len(alive) > count:
            # those that wait in the queue end first
            alive.sort(key=lambda node: standing[node].phase is not NodePhase.RUNNING)
            group.leaving += drain_nodes(read(home.access), starter, alive[count:])
            alive = alive[:count]
        elif len(alive) < count:
            found = starter.start(count - len(alive), group.all_nodes)
            alive += found.handles
            problems = found.problems
        group.nodes = alive
        home.write_started(started)
    if problems and not alive:
        raise InputError(problems[0])
    for problem in problems:
        say(problem)
    if group.kind == "slurm":
        say(f"{len(alive)} nodes requested; Slurm starts them when it can" if alive else "no nodes requested")
    else:
        _await_nodes(home, starter, alive)
        say("1 node is running" if len(alive) == 1 else f"{len(alive)} nodes are running")


def set_bounds(home: ClusterHome, bounds: Bounds, say: Say, name: str | None = None) -> None:
    """Sets the bounds of a group; starts the factory if none runs."""
    with home.locked():
        started = _known(home)
        group = started.group(name)
        is_change = group.bounds is not None
        group.bounds = bounds
        home.write_started(started)
    is_new = _start_factory(home)
    say(_keeps(started, group, is_change=is_change and not is_new))


def _keeps(started: ClusterRecord, group: GroupRecord, *, is_change: bool = False) -> str:
    assert group.bounds is not None
    where = f" in group {group.name}" if len(started.groups) > 1 else ""
    kept = f"keeps {group.bounds.minimum} to {group.bounds.maximum} nodes{where}"
    return f"the factory {kept} from now on" if is_change else f"a factory {kept}, as the work needs them"


def _of(home: ClusterHome, started: ClusterRecord, group: GroupRecord) -> str:
    """Names a group in messages; a cluster with one group is named itself."""
    return repr(home.name) if len(started.groups) == 1 else f"group {group.name!r} of {home.name!r}"


def remove(home: ClusterHome, name: str, say: Say) -> None:
    """Ends the nodes of a group when their running tasks have ended; then removes the group."""
    with home.locked():
        started = _known(home)
        group = started.group(name, even_closing=True)
        starter = starter_of(home, group)
        group.bounds, group.closing = None, True
        drop_ended(group, starter.poll(group.all_nodes) if group.all_nodes else {})
        group.leaving += drain_nodes(read(home.access), starter, group.nodes) if group.nodes else []
        group.nodes = []
        forget_closed(started)
        home.write_started(started)
    count = len(group.leaving)
    nodes = "1 node ends" if count == 1 else f"{count} nodes end"
    say(f"group {name} is removed" + (f"; {nodes} when what they have begun is done" if count else ""))


def _sweep(home: ClusterHome, started: ClusterRecord) -> None:
    """Drops removed groups whose nodes have ended."""
    closing = [group for group in started.groups if group.closing]
    standings, _ = standings_of(home, closing)
    for group in closing:
        drop_ended(group, standings)
    forget_closed(started)


def _known(home: ClusterHome) -> ClusterRecord:
    """Reads the record of an existing cluster."""
    started = home.read_started()
    if started.head is None:
        raise nowhere(home)
    return started


def _await_nodes(home: ClusterHome, starter: Starter, handles: Sequence[Handle]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    next_poll = 0.0
    with Caller(read(home.access), make_codec()) as caller:
        while True:
            there = {node.labels.get("node") for node in read_cluster(caller).nodes.values()}
            missing = [handle for handle in handles if handle.name not in there]
            if not missing:
                return
            if time.monotonic() > next_poll:
                for handle, standing in starter.poll(missing).items():
                    if standing.phase is NodePhase.ENDED:
                        raise RunError(
                            f"a node ended before it joined the cluster: {standing.reason} (see {handle.log})"
                        )
                next_poll = time.monotonic() + (_PAUSE if isinstance(starter, LocalStarter) else _GENTLE_PAUSE)
            if time.monotonic() > deadline:
                raise RunError(f"{len(missing)} nodes do not join; see {missing[0].log}")
            time.sleep(_PAUSE)


# ---- inspecting
# ----------------------------------------------------------------------------------------------------


def absent(
    home: ClusterHome, started: ClusterRecord, found: ClusterReply
) -> dict[str, list[tuple[Handle, NodeStatus]]]:
    """Returns, per group, the nodes that were started but have not joined, with the reason if the starter knows it."""
    there = {node.labels.get("node") for node in found.nodes.values()}
    missing = {
        group.name: [each for each in (group.leaving if group.closing else group.nodes) if each.name not in there]
        for group in started.groups
    }
    standings, silent = standings_of(home, started.groups, missing)
    unknown = {name: NodeStatus(NodePhase.WAITING, why) for name, why in silent.items()}
    return {
        name: [(each, unknown.get(name) or standings.get(each, NodeStatus(NodePhase.WAITING))) for each in handles]
        for name, handles in missing.items()
    }


def factory_state(home: ClusterHome, started: ClusterRecord, group: GroupRecord) -> str:
    """Describes the state of a group's factory; empty if there is none."""
    if group.bounds is None:
        return ""
    bounds = f"from {group.bounds.minimum} to {group.bounds.maximum} nodes"
    if started.factory is None or not _runs(started.factory):
        return f"the factory ({bounds}) does not run; 'shoal cluster restart {home.name}' starts it"
    said = _last_message(started.factory.log, f" group {group.name}: ")
    return f"factory {bounds}" + (f": {said}" if said else "")


def _last_message(log: str, of: str) -> str:
    """Returns the factory's last log message about a group, with its time."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.replace(of, " ", 1) for line in reversed(lines) if of in line), "")


# ---- stopping
# ------------------------------------------------------------------------------------------------------


def stop(home: ClusterHome) -> int:
    """Stops the factory, the nodes, then the head; returns the number of nodes that were still running."""
    started = home.read_started()
    if started.head is None and not started.handles:
        raise nowhere(home)
    if started.factory is not None:
        LocalStarter([], home.logs).stop([started.factory])
    with home.locked():
        started = home.read_started()
        standings, _ = standings_of(home, started.groups)
        ended_before = sum(standing.phase is NodePhase.ENDED for standing in standings.values())
        if started.handles:
            _ask_all_to_end(home)
        problems = []
        for group in started.groups:
            try:
                _end_nodes(starter_of(home, group), group.all_nodes)
            except NotAnsweringError as error:
                problems.append(str(error))
        if problems:  # another 'stop' can end the rest
            raise RunError(problems[0])
        for group in started.groups:
            clean_hosts(group)
        _clear(home, started)
    return sum(len(group.all_nodes) for group in started.groups) - ended_before


def _clear(home: ClusterHome, started: ClusterRecord) -> None:
    """Stops the head and removes the record of the cluster."""
    if started.head is not None:
        LocalStarter([], home.logs).stop([started.head])
    remove_dead()
    home.write_started(ClusterRecord())
    try:
        os.unlink(home.access)
    except FileNotFoundError:
        pass


def _ask_all_to_end(home: ClusterHome) -> None:
    """Asks all agents to end. Those that receive it return their tasks and end soon; the starter kills the others."""
    try:
        access = read(home.access)
        with Caller(access, make_codec()) as caller:
            addresses = [node.address for node in read_cluster(caller).nodes.values()]
    except InputError:
        return
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, files // _FILES_EACH))) as pool:
        list(pool.map(lambda address: ask_to_end(access, address, at_once=True), addresses))


def _end_nodes(starter: Starter, nodes: Sequence[Handle]) -> None:
    """Ends nodes through their starter and waits until they have ended; a batch system needs some time."""
    if not nodes:
        return
    starter.stop(nodes)
    deadline = time.monotonic() + STOP_SECONDS
    while any(standing.phase is not NodePhase.ENDED for standing in starter.poll(nodes).values()):
        if time.monotonic() > deadline:
            return
        time.sleep(_GENTLE_PAUSE)


def nowhere(home: ClusterHome) -> InputError:
    return InputError(f"there is no cluster {home.name!r} here", remedy="'shoal cluster list' names those there are")


def names() -> list[str]:
    """Returns the names of the clusters that were started on this machine."""
    folder = os.path.dirname(ClusterHome("x").folder)
    try:
        found = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in found if os.path.exists(os.path.join(folder, name, "access.json"))]


FORGOTTEN_SECONDS = 60
"""Seconds after which the server drops the test key if it is not deleted."""


def check_server(url: str, cluster: str, say: Callable[[str], None]) -> None:
    """Warns about settings of a Redis server that endanger runs; rejects a server that accepts no writes."""
    key = key_of(cluster, "trial")
    link = RedisLink(url.split(","), key)
    try:
        for sentence in worries(link).values():
            say(sentence)
        link.call("SET", key, "1", "EX", FORGOTTEN_SECONDS)
        link.call("DEL", key)
    except RunError as error:
        raise InputError(str(error), remedy="use another server: this one cannot hold the store of a cluster") from None
    finally:
        link.close()
