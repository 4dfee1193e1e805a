"""Nodes on other machines, started over SSH and detached from the connection that started them.

The connection must work without a password (`BatchMode`). Hosts are listed in a file, one per line: `host [slots]`,
where slots is the number of nodes that the host may run. All hosts are contacted at once, each with one connection for
all its nodes. `shoal.cluster.nodes.remote_setup` installs the program on them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.cluster.nodes.starters import (
    NODE_NAME,
    Handle,
    NodePhase,
    NodeStatus,
    NotAnsweringError,
    RemoteSetup,
    SshHandle,
    StartResult,
    new_names,
)
from shoal.errors import InputError

CONNECT_SECONDS = 10
SESSION_SECONDS = 60.0
"""Maximum seconds for one request to a host."""
GRACE = 15
MOST_SLOTS = 10_000
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_\[][A-Za-z0-9_.:\[\]-]*")
_AT_ONCE = 32
_SLOWEST_LINK = 100_000.0
"""Bytes per second below which a host counts as unreachable."""
_SSH_FAILED = 255
_STAT_OF = r"""stat_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null; }"""
"""A process's state is the first word and its start time the 20th after its name, which may contain any character."""


class SshHost(msgspec.Struct, frozen=True):
    """A machine and the number of nodes that it may run."""

    name: str
    slots: int = 1


class RemoteCommandResult(msgspec.Struct, frozen=True):
    """The result of a command on a host."""

    status: int
    output: str
    problem: str = ""
    """The error message if the host was unreachable or the command failed."""


def parse_hosts(text: str, file: str | None = None) -> list[SshHost]:
    """Parses lines of `host [slots]`; empty lines and comments after `#` are ignored."""
    hosts: dict[str, SshHost] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, slots = words[0], words[1] if len(words) > 1 else "1"
        if len(words) > 2 or not _HOST.fullmatch(name) or not re.fullmatch(r"[0-9]{1,6}", slots):
            raise InputError("a line must be 'host [slots]'", file=file, line=number, text=line)
        if not 0 < int(slots) <= MOST_SLOTS:
            raise InputError(f"slots must be from 1 to {MOST_SLOTS}", file=file, line=number, text=line)
        if name in hosts:
            raise InputError(
                f"host {name} is listed twice", file=file, line=number, remedy=f"for two nodes on it, write '{name} 2'"
            )
        hosts[name] = SshHost(name, int(slots))
    if not hosts:
        raise InputError("the list contains no host", file=file, remedy="write one 'host [slots]' per line")
    return list(hosts.values())


class Ssh:
    """Runs shell scripts on hosts, several at once; `options` go to every `ssh`."""

    def __init__(self, options: Sequence[str] = (), program: str = "ssh") -> None:
        self.prefix = [
            program,
            "-T",
            *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"),
            *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
            *options,
        ]

    def ask(self, scripts: Mapping[str, str]) -> dict[str, RemoteCommandResult]:
        """Runs one script per host, all at the same time, at most `_AT_ONCE`."""
        hosts, answers = list(scripts), {}
        for begin in range(0, len(hosts), _AT_ONCE):
            some = hosts[begin : begin + _AT_ONCE]
            deadline = time.monotonic() + SESSION_SECONDS
            running = {host: self._open(host, "sh -s", scripts[host].encode()) for host in some}
            for host, process in running.items():
                answers[host] = _finish(host, process, deadline)
        return answers

    def run(self, host: str, script: str, data: bytes = b"") -> RemoteCommandResult:
        """Runs one script on one host with `data` as its standard input; allows time for it on a slow link."""
        deadline = time.monotonic() + SESSION_SECONDS + len(data) / _SLOWEST_LINK
        return _finish(host, self._open(host, f"sh -c {shlex.quote(script)}", data), deadline)

    def _open(self, host: str, command: str, data: bytes) -> subprocess.Popen[bytes]:
        # Standard input is a file rather than a pipe: with pipes, feeding one host would delay the scripts of
        # others.
        with tempfile.TemporaryFile() as source:
            source.write(data)
            source.seek(0)
            try:
                return subprocess.Popen(
                    [*self.prefix, "--", host, command],
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise InputError("there is no ssh on this machine", remedy="install openssh-client") from None


def _finish(host: str, process: subprocess.Popen[bytes], deadline: float) -> RemoteCommandResult:
    try:
        output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return RemoteCommandResult(_SSH_FAILED, "", f"host {host} did not reply in time")
    text = output.decode(errors="replace")
    return RemoteCommandResult(
        process.returncode, text, _problem(host, process.returncode, errors.decode(errors="replace"))
    )


def _problem(host: str, status: int, errors: str) -> str:
    """Returns a message about a connection or a command that failed."""
    if status == 0:
        return ""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("Warning:")]
    said = lines[-1] if lines else f"status {status}"
    if status != _SSH_FAILED:
        return f"host {host}: {said}"
    if "Permission denied" in errors:
        return f"host {host} requires a password; copy your public key there (ssh-copy-id {host})"
    if "Host key verification failed" in errors:
        return f"host {host} is not among the known hosts; connect to it once manually (ssh {host})"
    return f"host {host} cannot be reached: {said.removeprefix('ssh: ')}"


class SshStarter:
    """Starts a command on hosts with free slots, the least loaded first."""

    def __init__(
        self,
        hosts: Sequence[SshHost],
        command: Sequence[str],
        logs: str,
        environment: Mapping[str, str] | None = None,
        ssh: Ssh | None = None,
        lodgings: Mapping[str, RemoteSetup] | None = None,
    ) -> None:
        """For hosts in `lodgings`, the setup there replaces command, environment and logs."""
        self.hosts = list(hosts)
        self.command = list(command)
        self.logs = logs
        self.environment = dict(environment or {})
        self.ssh = ssh or Ssh()
        self._lodgings = dict(lodgings or {})
        self._here = RemoteSetup(self.command, self.environment, logs, "")

    def _setup_of(self, host: str) -> RemoteSetup:
        return self._lodgings.get(host, self._here)

    @property
    def room(self) -> int:
        """Number of nodes that all hosts together may run."""
        return sum(host.slots for host in self.hosts)

    def start(self, count: int, beside: Iterable[Handle] = ()) -> StartResult:
        names: dict[str, list[str]] = {}
        for name, host in zip(new_names(count), self._places(count, beside), strict=False):
            names.setdefault(host, []).append(name)
        answers = self.ssh.ask({host: self._start_script(self._setup_of(host), ours) for host, ours in names.items()})
        handles, problems = [], []
        for host, answer in answers.items():
            for line in answer.output.splitlines():
                words = line.split()
                if len(words) == 5 and words[0] == "started":
                    log = f"{self._setup_of(host).logs}/{words[1]}.log"
                    handles.append(SshHandle(words[1], host, int(words[2]), int(words[3]), words[4], log))
            if answer.problem:
                problems.append(answer.problem)
        return StartResult(tuple(handles), tuple(problems))

    def _places(self, count: int, beside: Iterable[Handle]) -> list[str]:
        """Chooses hosts for new nodes, always the one with the smallest fraction of its slots in use."""
        taken = Counter(handle.host for handle in beside if isinstance(handle, SshHandle))
        places: list[str] = []
        while len(places) < count:
            free = [host for host in self.hosts if taken[host.name] < host.slots]
            if not free:
                break
            # Among equals, the first one: the user chose the order of the list.
            best = min(free, key=lambda host: taken[host.name] / host.slots)
            taken[best.name] += 1
            places.append(best.name)
        return places

    def _start_script(self, setup: RemoteSetup, names: Sequence[str]) -> str:
        logs = shlex.quote(setup.logs)
        lines = [_STAT_OF, "umask 077", f"mkdir -p {logs} || exit 1", "read -r boot < /proc/sys/kernel/random/boot_id"]
        given = [f"{key}={value}" for key, value in setup.environment.items()]
        for name in names:
            words = shlex.join(["setsid", "env", *given, f"{NODE_NAME}={name}", *setup.command])
            lines.append(f"{words} >> {logs}/{name}.log 2>&1 < /dev/null &")
            lines.append(f'set -- $! $(stat_of $!); echo "started {name} $1 ${{21:-0}} $boot"')
        return "\n".join(lines) + "\n"

    def poll(self, handles: Iterable[Handle]) -> dict[Handle, NodeStatus]:
        """Returns the status of nodes. Nodes of an unreachable host count as running, with the reason."""
        by_host = _by_host(handles)
        answers = self.ssh.ask({host: _poll_script(ours) for host, ours in by_host.items()})
        if answers and all(answer.problem for answer in answers.values()):
            raise NotAnsweringError(next(iter(answers.values())).problem)
        standings: dict[Handle, NodeStatus] = {}
        for host, ours in by_host.items():
            alive = set(answers[host].output.split())
            for handle in ours:
                if answers[host].problem:
                    standings[handle] = NodeStatus(NodePhase.RUNNING, answers[host].problem)
                elif handle.name in alive:
                    standings[handle] = NodeStatus(NodePhase.RUNNING)
                else:
                    standings[handle] = NodeStatus(NodePhase.ENDED, f"ended; see {handle.log} on {host}")
        return standings

    def stop(self, handles: Iterable[Handle]) -> None:
        by_host = _by_host(handles)
        answers = self.ssh.ask({host: _stop_script(ours) for host, ours in by_host.items()})
        problems = [answer.problem for answer in answers.values() if answer.problem]
        if problems:
            raise NotAnsweringError("; ".join(problems))


def _by_host(handles: Iterable[Handle]) -> dict[str, list[SshHandle]]:
    found: dict[str, list[SshHandle]] = {}
    for handle in handles:
        if isinstance(handle, SshHandle):
            found.setdefault(handle.host, []).append(handle)
    return found


def _alive_function() -> str:
    """Shell function: `alive PID TICKS BOOT` is true if that very process runs; false for a zombie."""
    return (
        f"{_STAT_OF}\nread -r boot < /proc/sys/kernel/random/boot_id\n"
        'alive() { p=$1 t=$2 b=$3; set -- $(stat_of "$p"); '
        '[ "$b" = "$boot" ] && [ "${20:-}" = "$t" ] && [ "$1" != Z ] && [ "$1" != X ]; }'
    )


def _poll_script(handles: Sequence[SshHandle]) -> str:
    lines = [_alive_function()]
    lines += [f"alive {_identity(handle)} && echo {shlex.quote(handle.name)}" for handle in handles]
    return "\n".join([*lines, "exit 0"]) + "\n"


def _stop_script(handles: Sequence[SshHandle]) -> str:
    """Returns the script that asks all nodes to end, waits, and kills the rest and all processes with a node's name in
    their environment."""
    tests = [f"alive {_identity(handle)} && kill -s {{}} -- -{handle.pid} 2>/dev/null" for handle in handles]
    still = " || ".join(f"alive {_identity(handle)}" for handle in handles)
    lines = [_alive_function(), *(test.format("TERM") for test in tests)]
    lines.append(f"n=0; while [ $n -lt {GRACE * 10} ] && {{ {still}; }}; do n=$((n+1)); sleep 0.1; done")
    lines += [test.format("KILL") for test in tests]
    names = "|".join(re.escape(handle.name) for handle in handles)
    lines.append(f"for e in $(grep -lzsE '^{NODE_NAME}=({names})$' /proc/[0-9]*/environ); do")
    lines.append('p=${e#/proc/}; kill -s KILL "${p%/environ}" 2>/dev/null; done')
    return "\n".join([*lines, "exit 0"]) + "\n"


def _identity(handle: SshHandle) -> str:
    return f"{handle.pid} {handle.ticks} {shlex.quote(handle.boot)}"
