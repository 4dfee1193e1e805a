"""Starting, looking at, resizing and ending a cluster: what the sub-commands of `shoal cluster` do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from shoal.agent.messages import ClusterAsked, ClusterTold, Refused, WireMessage, make_codec
from shoal.cluster.home import ClusterHome, Started
from shoal.cluster.local import LocalStarter, last_line
from shoal.cluster.starters import Handle, LocalHandle, Phase, Standing, Starter
from shoal.errors import InputError, RunError
from shoal.wire.access import Access, make_access, read, write
from shoal.wire.caller import Caller

READY_SECONDS = 60.0
LOOPBACK = "127.0.0.1"
_PAUSE = 0.05


def agent_command(home: ClusterHome, *words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "agent", "--access", home.access, *words]


def starter_of(home: ClusterHome, started: Started) -> Starter:
    """Whoever starts the nodes of this cluster."""
    command = agent_command(home, *started.agent)
    if started.kind == "ssh":
        from shoal.cluster.ssh import SshStarter, parse_hosts

        return SshStarter(parse_hosts("\n".join(started.options)), command, home.logs)
    if started.kind == "slurm":
        from shoal.cluster.slurm import SlurmStarter

        return SlurmStarter(command, home.logs, started.options, job_name=f"shoal-{home.name}")
    return LocalStarter(command, home.logs)


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
    before = home.read_started()
    if before.head is not None and _runs(before.head):
        raise InputError(
            f"the cluster {home.name!r} runs already",
            remedy=f"'shoal cluster scale {home.name} N' changes its size, 'shoal cluster stop {home.name}' ends it",
        )
    if before.nodes:
        starter_of(home, before).stop(before.nodes)
    home.make()
    access = make_access(home.name)
    write(access.at([], store) if store else access, home.access)
    _start_head(home, started, host)
    home.write_started(started)
    say(f"head at {', '.join(read(home.access).contacts)}")
    scale(home, count, say)


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


def _runs(handle: Handle) -> bool:
    return LocalStarter([], "").poll([handle]).get(handle, Standing(Phase.ENDED)).phase is Phase.RUNNING


def restart_head(home: ClusterHome) -> bool:
    """Starts the head anew if it is gone, at the address it had; whether it was gone."""
    started = home.read_started()
    if started.head is None or _runs(started.head):
        return False
    contact = read(home.access).contacts[0]
    command = agent_command(home, "--head", "--bind", contact, "--store", home.store)
    found = LocalStarter(command, home.logs).start(1)
    if found.problems:
        raise RunError(found.problems[0])
    (started.head,) = found.handles
    home.write_started(started)
    return True


def scale(home: ClusterHome, count: int, say: Callable[[str], None]) -> None:
    """As many nodes as asked for; the newest go first."""
    started = home.read_started()
    starter = starter_of(home, started)
    standing = starter.poll(started.nodes)
    alive = [node for node in started.nodes if standing[node].phase is not Phase.ENDED]
    if len(alive) > count:
        starter.stop(alive[count:])
        alive = alive[:count]
    elif len(alive) < count:
        found = starter.start(count - len(alive), alive)
        alive += found.handles
        for problem in found.problems:
            say(problem)
    started.nodes = alive
    home.write_started(started)
    if started.kind == "slurm":
        say(f"{count} nodes asked for; Slurm starts them when it can")
    else:
        _await_nodes(home, starter, alive)
        say(f"{len(alive)} nodes are there")


def _await_nodes(home: ClusterHome, starter: Starter, handles: Sequence[Handle]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with Caller(read(home.access), make_codec()) as caller:
        while True:
            there = {node.labels.get("node") for node in told(caller).nodes.values()}
            missing = [handle for handle in handles if handle.name not in there]
            if not missing:
                return
            for handle, standing in starter.poll(missing).items():
                if standing.phase is Phase.ENDED:
                    raise RunError(f"a node has ended before it joined: {standing.reason} (see {handle.log})")
            if time.monotonic() > deadline:
                raise RunError(f"{len(missing)} nodes do not join; see {missing[0].log}")
            time.sleep(_PAUSE)


def told(caller: Caller[WireMessage]) -> ClusterTold:
    """Who is there and what is run."""
    answer = caller.ask(ClusterAsked())
    if isinstance(answer, Refused):
        raise InputError(f"the cluster refuses: {answer.why}")
    assert isinstance(answer, ClusterTold)
    return answer


def stop(home: ClusterHome) -> int:
    """Ends the nodes, then the head; how many nodes there were."""
    started = home.read_started()
    if started.head is None and not started.nodes:
        raise InputError(f"there is no cluster {home.name!r} here", remedy="'shoal cluster list' names those there are")
    starter_of(home, started).stop(started.nodes)
    if started.head is not None:
        LocalStarter([], home.logs).stop([started.head])
    count = len(started.nodes)
    started.head, started.nodes = None, []
    home.write_started(started)
    try:
        os.unlink(home.access)
    except FileNotFoundError:
        pass
    return count


def names() -> list[str]:
    """The clusters that were started from here."""
    folder = os.path.dirname(ClusterHome("x").folder)
    try:
        found = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in found if os.path.exists(os.path.join(folder, name, "access.json"))]


def access_of(home: ClusterHome) -> Access:
    return read(home.access)
