"""Nodes over SSH, with a real server on loopback and a key made for the test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.cluster.nodes.remote_setup import Archive, InstalledShoal, SshPlace, arrange, carry, send_private
from shoal.cluster.nodes.ssh import Ssh, SshHost, SshStarter
from shoal.cluster.nodes.starters import Handle, NodePhase, NotAnsweringError, SshHandle, decode_handles, encode_handles

PATIENCE = 60.0
SERVER = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
WAITS = [
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit('asked to end'))\n"
    "print('ready', os.environ['SHOAL_NODE'], flush=True); signal.pause()",
]


def need_ssh() -> None:
    if SERVER is None or shutil.which("ssh") is None:
        problem = "sshd or ssh is not installed (Debian: openssh-server, openssh-client)"
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


class Server:
    """An sshd of our own, and the options with which a client finds it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for name in ("host", "user", "stranger"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True, timeout=PATIENCE)
        shutil.copy(folder / "user.pub", folder / "authorized")
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/authorized",
            f"PidFile {folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
        ]
        (folder / "config").write_text("\n".join(lines) + "\n")
        public = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port},[localhost]:{self.port} {public}")

    def client(self, key: str = "user", known: str = "known", port: int | None = None) -> Ssh:
        options = {"IdentityFile": self.folder / key, "IdentitiesOnly": "yes", "Port": port or self.port}
        options |= {"UserKnownHostsFile": self.folder / known, "StrictHostKeyChecking": "yes"}
        return Ssh(["-F", "none", *(f"-o{name}={value}" for name, value in options.items())])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need_ssh()
    if os.geteuid() == 0:
        # The server insists on this folder, which a boot script makes elsewhere.
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shoal-ssh-") as name:
        found = Server(Path(name))
        with open(found.folder / "log", "wb") as log:
            words = [str(SERVER), "-D", "-e", "-f", str(found.folder / "config")]
            process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: answers(found.port), "sshd answers")
            yield found
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def host() -> SshHost:
    return SshHost(f"{getpass.getuser()}@127.0.0.1", 4)


def test_nodes_outlive_the_connection_and_are_polled_and_stopped_later(
    server: Server, host: SshHost, tmp_path: Path
) -> None:
    logs = str(tmp_path / "log files")
    found = SshStarter([host], WAITS, logs, {"GREETING": "it's me"}, server.client()).start(6)
    handles = decode_handles(encode_handles(found.handles))
    later = SshStarter([host], WAITS, logs, ssh=server.client())
    try:
        assert found.problems == ()
        assert len(handles) == 4, "there are four slots"
        for handle in handles:
            wait_until(lambda handle=handle: handle.name in Path(handle.log).read_text(), "it is ready")  # type: ignore[misc]
        assert {standing.phase for standing in later.poll(handles).values()} == {NodePhase.RUNNING}
        assert later.start(1, beside=handles).handles == ()
    finally:
        later.stop(handles)
    standings = later.poll(handles)
    assert {standing.phase for standing in standings.values()} == {NodePhase.ENDED}
    assert all(not running(handle) for handle in handles)
    assert all("asked to end" in Path(handle.log).read_text() for handle in handles)


def running(handle: Handle) -> bool:
    assert isinstance(handle, SshHandle)
    return Path(f"/proc/{handle.pid}").exists() and b"signal.pause" in Path(f"/proc/{handle.pid}/cmdline").read_bytes()


def test_a_process_with_another_start_moment_is_not_touched(server: Server, host: SshHost, tmp_path: Path) -> None:
    starter = SshStarter([host], WAITS, str(tmp_path), ssh=server.client())
    (handle,) = starter.start(1).handles
    assert isinstance(handle, SshHandle)
    try:
        wait_until(lambda: "ready" in Path(handle.log).read_text(), "it is ready")
        other = msgspec.structs.replace(handle, name="another", ticks=handle.ticks - 100)
        assert starter.poll([other])[other].phase is NodePhase.ENDED
        starter.stop([other])
        assert starter.poll([handle])[handle].phase is NodePhase.RUNNING
    finally:
        starter.stop([handle])


def test_a_host_where_nobody_listens_is_one_sentence(server: Server, host: SshHost, tmp_path: Path) -> None:
    starter = SshStarter([host], WAITS, str(tmp_path), ssh=server.client(port=free_port()))
    found = starter.start(1)
    assert found.handles == ()
    (problem,) = found.problems
    assert problem.startswith(f"host {host.name} cannot be reached: ")
    assert "Connection refused" in problem
    assert "\n" not in problem


def test_a_host_without_a_name_is_one_sentence(server: Server, tmp_path: Path) -> None:
    found = SshStarter([SshHost("no-such-host.invalid")], WAITS, str(tmp_path), ssh=server.client()).start(1)
    assert "host no-such-host.invalid cannot be reached" in found.problems[0]


def test_a_wrong_key_and_an_unknown_host_say_what_to_do(server: Server, host: SshHost, tmp_path: Path) -> None:
    stranger = SshStarter([host], WAITS, str(tmp_path), ssh=server.client(key="stranger")).start(1)
    assert "ssh-copy-id" in stranger.problems[0]
    unknown = SshStarter([host], WAITS, str(tmp_path), ssh=server.client(known="nobody")).start(1)
    assert "known hosts" in unknown.problems[0]


def test_silence_of_the_only_host_is_not_taken_for_the_end_of_its_nodes(
    server: Server, host: SshHost, tmp_path: Path
) -> None:
    handle = SshHandle("n", host.name, 1, 1, "boot", "log")
    starter = SshStarter([host], WAITS, str(tmp_path), ssh=server.client(port=free_port()))
    with pytest.raises(NotAnsweringError, match="cannot be reached"):
        starter.poll([handle])


def test_one_unreachable_host_does_not_hide_the_others(server: Server, host: SshHost, tmp_path: Path) -> None:
    away = SshHost("no-such-host.invalid", 1)
    starter = SshStarter([host, away], WAITS, str(tmp_path), ssh=server.client())
    found = starter.start(2)
    try:
        assert [handle.host for handle in found.handles if isinstance(handle, SshHandle)] == [host.name]
        assert len(found.problems) == 1
        lost = SshHandle("lost", away.name, 1, 1, "boot", "log")
        standings = starter.poll([*found.handles, lost])
        assert standings[found.handles[0]].phase is NodePhase.RUNNING
        assert standings[lost].phase is NodePhase.RUNNING
        assert "cannot be reached" in standings[lost].reason
    finally:
        starter.stop(found.handles)


def test_shoal_is_found_over_the_connection_or_carried_over_it(server: Server, host: SshHost, tmp_path: Path) -> None:
    place = SshPlace(server.client(), host.name)
    assert arrange(place) == InstalledShoal(sys.executable)
    archive = Archive()
    path = carry(place, archive, str(tmp_path / "cache"))
    assert (Path(path) / "shoal" / "__init__.py").exists()
    assert carry(place, archive, str(tmp_path / "cache")) == path
    private = send_private(place, b"key", "access", str(tmp_path / "private"))
    assert Path(private).read_bytes() == b"key"


def test_all_hosts_are_asked_at_the_same_time(server: Server, tmp_path: Path) -> None:
    """Each script ends only once the other one runs."""
    meet = "touch {0}/{1}; n=0; until [ -e {0}/{2} ]; do n=$((n+1)); [ $n -lt 400 ] || exit 3; sleep 0.05; done\n"
    user = getpass.getuser()
    scripts = {
        f"{user}@127.0.0.1": meet.format(tmp_path, "a", "b"),
        f"{user}@localhost": meet.format(tmp_path, "b", "a"),
    }
    answers = server.client().ask(scripts)
    assert [answer.problem for answer in answers.values()] == ["", ""]


def test_logs_that_cannot_be_written_are_one_sentence(server: Server, host: SshHost) -> None:
    found = SshStarter([host], WAITS, "/proc/nowhere", ssh=server.client()).start(1)
    assert found.handles == ()
    assert "/proc/nowhere" in found.problems[0]
