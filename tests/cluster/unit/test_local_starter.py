"""Nodes as processes of this machine: real ones, ended by the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.cluster.nodes.local import LocalStarter, is_alive
from shoal.cluster.nodes.starters import Handle, LocalHandle, NodePhase, decode_handles, encode_handles
from shoal.errors import InputError

WAITS = [sys.executable, "-c", "import signal; print('ready', flush=True); signal.pause()"]
DEAF = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()",
]


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def only(handles: tuple[Handle, ...]) -> LocalHandle:
    (handle,) = handles
    assert isinstance(handle, LocalHandle)
    return handle


def ready(handle: Handle) -> bool:
    return "ready" in Path(handle.log).read_text()


@pytest.fixture
def starters() -> Iterator[list[tuple[LocalStarter, Handle]]]:
    started: list[tuple[LocalStarter, Handle]] = []
    yield started
    for starter, handle in started:
        starter.stop([handle], grace=0)


Noted = list[tuple[LocalStarter, Handle]]


def started(starters: Noted, tmp_path: Path, command: list[str], count: int = 1) -> tuple[LocalStarter, list[Handle]]:
    starter = LocalStarter(command, str(tmp_path / "logs"))
    found = starter.start(count)
    assert found.problems == ()
    starters += [(starter, handle) for handle in found.handles]
    return starter, list(found.handles)


def test_started_nodes_run_in_sessions_of_their_own_and_write_logs(starters: Noted, tmp_path: Path) -> None:
    starter, handles = started(starters, tmp_path, WAITS, 3)
    assert len({handle.name for handle in handles}) == 3
    for handle in handles:
        assert isinstance(handle, LocalHandle)
        wait_until(lambda handle=handle: ready(handle), "the node says that it is there")  # type: ignore[misc]
        assert os.getsid(handle.pid) == handle.pid
    assert {standing.phase for standing in starter.poll(handles).values()} == {NodePhase.RUNNING}


def test_a_node_knows_its_name(starters: Noted, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['SHOAL_NODE'])"]
    starter, (handle,) = started(starters, tmp_path, command)
    wait_until(lambda: starter.poll([handle])[handle].phase is NodePhase.ENDED, "the node has ended")
    assert Path(handle.log).read_text().strip() == handle.name


def test_a_stopped_node_is_ended_and_reported(starters: Noted, tmp_path: Path) -> None:
    starter, handles = started(starters, tmp_path, WAITS, 2)
    starter.stop(handles[:1])
    standings = starter.poll(handles)
    assert standings[handles[0]].phase is NodePhase.ENDED
    assert "signal 15" in standings[handles[0]].reason
    assert standings[handles[1]].phase is NodePhase.RUNNING


def test_a_node_that_ignores_the_request_is_ended_by_force(starters: Noted, tmp_path: Path) -> None:
    starter, (handle,) = started(starters, tmp_path, DEAF)
    wait_until(lambda: ready(handle), "the node ignores the signal")
    starter.stop([handle], grace=0.1)
    assert "signal 9" in starter.poll([handle])[handle].reason


def test_a_failed_node_is_reported_with_the_last_line_of_its_log(starters: Noted, tmp_path: Path) -> None:
    starter, (handle,) = started(starters, tmp_path, [sys.executable, "-c", "import sys; sys.exit('no such store')"])
    wait_until(lambda: starter.poll([handle])[handle].phase is NodePhase.ENDED, "the node has ended")
    assert starter.poll([handle])[handle].reason == "ended with status 1: no such store"


def test_a_later_process_polls_and_stops_what_an_earlier_one_started(tmp_path: Path) -> None:
    program = (
        "import sys; from shoal.cluster.nodes.local import LocalStarter\n"
        "from shoal.cluster.nodes.starters import encode_handles\n"
        f"started = LocalStarter({WAITS!r}, {str(tmp_path)!r}).start(2)\n"
        "sys.stdout.buffer.write(encode_handles(started.handles))"
    )
    data = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout
    handles = decode_handles(data)
    later = LocalStarter(WAITS, str(tmp_path))
    try:
        assert [standing.phase for standing in later.poll(handles).values()] == [NodePhase.RUNNING, NodePhase.RUNNING]
    finally:
        later.stop(handles)
    assert [standing.phase for standing in later.poll(handles).values()] == [NodePhase.ENDED, NodePhase.ENDED]


def test_a_process_that_has_the_pid_of_an_ended_node_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(WAITS, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        starter = LocalStarter(WAITS, str(tmp_path))
        known = only(starter.start(1).handles)
        starter.stop([known])
        taken = msgspec.structs.replace(known, pid=stranger.pid, ticks=known.ticks - 100)
        assert not is_alive(taken)
        assert starter.poll([taken])[taken].phase is NodePhase.ENDED
        starter.stop([taken], grace=0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_node_of_an_earlier_boot_has_ended(starters: Noted, tmp_path: Path) -> None:
    starter, (handle,) = started(starters, tmp_path, WAITS)
    assert isinstance(handle, LocalHandle)
    earlier = msgspec.structs.replace(handle, boot="another")
    assert starter.poll([earlier])[earlier].phase is NodePhase.ENDED
    starter.stop([earlier])
    assert starter.poll([handle])[handle].phase is NodePhase.RUNNING


def test_what_a_killed_node_left_behind_ends_with_the_stop(starters: Noted, tmp_path: Path) -> None:
    orphan = (
        "import os, signal\nif os.fork() == 0: os.setsid()\nprint('ready', os.getpid(), flush=True); signal.pause()"
    )
    starter, (handle,) = started(starters, tmp_path, [sys.executable, "-c", orphan])
    assert isinstance(handle, LocalHandle)
    wait_until(lambda: Path(handle.log).read_text().count("ready") == 2, "both processes run")
    pids = [int(line.split()[1]) for line in Path(handle.log).read_text().splitlines()]
    child = next(pid for pid in pids if pid != handle.pid)
    os.kill(handle.pid, signal.SIGKILL)
    wait_until(lambda: starter.poll([handle])[handle].phase is NodePhase.ENDED, "the node has ended")
    starter.stop([handle])
    wait_until(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text(), "gone")


def test_a_command_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    found = LocalStarter(["/no/such/program"], str(tmp_path)).start(2)
    assert found.handles == ()
    assert found.problems == ("a node cannot be started here: No such file or directory: /no/such/program",)


def test_handles_survive_being_written_down(starters: Noted, tmp_path: Path) -> None:
    _, handles = started(starters, tmp_path, WAITS, 2)
    assert decode_handles(encode_handles(handles)) == handles


def test_a_damaged_list_of_nodes_is_one_sentence() -> None:
    for data in (b"", b"\xff\xfe", b"[{}]", b'[{"type": "local", "name": 3}]'):
        with pytest.raises(InputError, match="cannot be read"):
            decode_handles(data, "nodes.json")
