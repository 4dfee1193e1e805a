"""A private Slurm for tests: its own munge key, controller and several nodes on this machine, all ended by pid.

Everything is in one folder and runs in the foreground as a child of the test, so nothing needs systemd, nothing of the
machine's own Slurm is touched, and nothing is left behind. Slurm's daemons need root.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shoal.execution.processes.process_table import read_small
from support import command

PATIENCE = 60.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
CPUS = 2
MOST_ELEMENTS = 10
"""How many jobs an array may have here."""


def need_slurm() -> None:
    """Without Slurm or root a laptop skips the test; where everything must be tested it fails."""
    missing = [name for name in PROGRAMS if find(name) is None]
    problem = f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)" if missing else ""
    if not problem and os.geteuid() != 0:
        problem = "a private Slurm needs root"
    if problem:
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)


def find(program: str) -> str | None:
    """Where a program is; daemons are often not on a user's path."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    command.wait_until(lambda: bool(condition()), what, seconds)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def processes_with(entry: str) -> list[int]:
    """Pids whose environment holds this entry: whatever was started in a job of this Slurm carries its SLURM_CONF."""
    wanted, found = entry.encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and wanted in read_small(f"/proc/{name}/environ").split(b"\0"):
            found.append(int(name))
    return found


class Slurm:
    """The running system: where its configuration is, and how to ask it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.conf = folder / "slurm.conf"
        self.environment = os.environ | {"SLURM_CONF": str(self.conf)}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def ask(self, *words: str) -> str:
        program = find(words[0])
        assert program is not None
        done = subprocess.run(
            [program, *words[1:]], env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout

    def idle_nodes(self) -> int:
        return len(self.ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())

    def leftovers(self) -> list[int]:
        """Processes of jobs, without the daemons themselves and the helper that the controller keeps."""
        own = {daemon.pid for daemon in self.daemons}
        return [
            pid
            for pid in processes_with(f"SLURM_CONF={self.conf}")
            if pid not in own and b"slurmscriptd" not in read_small(f"/proc/{pid}/cmdline")
        ]

    def launch(self, program: str, *words: str) -> None:
        path = find(program)
        assert path is not None
        with open(self.folder / f"{program}.out", "ab") as output:
            daemon = subprocess.Popen(
                [path, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.daemons.append(daemon)

    def restart_controller(self) -> None:
        """Starts the controller again, from the state it left behind."""
        self.launch("slurmctld", "-D", "-f", str(self.conf))
        self.daemons.insert(1, self.daemons.pop())
        wait_until(lambda: self.ask("sinfo", "--noheader"), "the controller answers")

    def end(self) -> None:
        """Cancels every job, then ends the daemons, nodes first, then whatever a job may have left."""
        self.ask("scancel", "--state=PENDING")
        self.ask("scancel", "--full", "--signal=KILL", "--state=RUNNING")
        self.ask("scancel", "--user=root")
        deadline = time.monotonic() + PATIENCE
        while self.ask("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.05)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(PATIENCE)
        for pid in self.leftovers():
            os.kill(pid, signal.SIGKILL)

    def report(self) -> str:
        """The last lines of every log, for a system that did not come up."""
        logs = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"== {log.name}\n" + log.read_text(errors="replace")[-1500:] for log in logs)


def write_configuration(slurm: Slurm) -> None:
    folder, host = slurm.folder, socket.gethostname().split(".")[0]
    controller, *ports = free_ports(1 + len(slurm.nodes))
    lines = [
        "ClusterName=shoaltest",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={controller}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0",
        "ReturnToService=2",
        f"MaxArraySize={MOST_ELEMENTS}",
        "MinJobAge=30",
        "MessageTimeout=5",
        "KillWait=5",
        "MpiDefault=none",
        "SlurmdParameters=config_overrides",
    ]
    lines += [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000 State=UNKNOWN"
        for name, port in zip(slurm.nodes, ports, strict=True)
    ]
    lines.append("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    slurm.conf.write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for name in ("state", *(f"spool-{node}" for node in slurm.nodes)):
        (folder / name).mkdir()


@contextmanager
def private_slurm(nodes: int = 4) -> Iterator[Slurm]:
    """A Slurm whose nodes are all idle. The folder is short-named: a socket's path has little room."""
    need_slurm()
    with tempfile.TemporaryDirectory(prefix="shoal-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        slurm = Slurm(folder, nodes)
        write_configuration(slurm)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid"}
        places |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
        try:
            slurm.launch(
                "munged", "--foreground", "--force", *(f"--{option}={path}" for option, path in places.items())
            )
            wait_until((folder / "munge.socket").exists, "munge listens")
            slurm.launch("slurmctld", "-D", "-c", "-f", str(slurm.conf))
            for node in slurm.nodes:
                slurm.launch("slurmd", "-D", "-N", node, "-f", str(slurm.conf))
            try:
                wait_until(lambda: slurm.idle_nodes() == nodes, f"{nodes} nodes are idle")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{slurm.report()}") from None
            yield slurm
        finally:
            slurm.end()
