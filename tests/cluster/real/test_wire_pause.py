"""A messenger with hardly any descriptors: connected callers get replies, new ones wait, nothing dies."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shoal.cluster.messaging.access import Access, Role, make_access, narrowed, write
from shoal.cluster.messaging.caller import Caller
from support.command import PATIENCE
from support.wire import Message, Note, codec

LIMIT = 100
PROGRAM = """
import resource, sys
from shoal.cluster.messaging.access import read
from shoal.cluster.messaging.messenger import Messenger
from support.wire import Note, codec, turn

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
post = Messenger(read(sys.argv[1]), codec(), sender="echo")
print(post.address, flush=True)
while True:
    for received in turn(post):
        for message in received.messages:
            if message.text.startswith("tcp:"):
                for number in range(message.answers):
                    post.send(message.text + str(1 + number), Note("nobody is there"))
            post.answer(received.route, Note(f"{post.dropped} dropped"))
    post.flush()
"""


@contextmanager
def limited_echo(folder: Path, access: Access) -> Iterator[tuple[Access, subprocess.Popen[str]]]:
    """An agent with few descriptors that answers everything; how to reach it, and the process."""
    place = str(folder / "access.json")
    write(narrowed(access, Role.WORKER), place)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    words = [sys.executable, "-c", PROGRAM, place, str(LIMIT)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield access.at([process.stdout.readline().strip()]), process
        finally:
            process.kill()


def asking(access: Access) -> Caller[Message]:
    return Caller(narrowed(access, Role.CLIENT), codec(), patience=PATIENCE)


def said_by(process: subprocess.Popen[str]) -> str:
    """The first line that it writes to its log."""
    assert process.stderr is not None
    return process.stderr.readline()


def test_silent_connections_stop_nobody_who_is_connected_and_keep_nobody_out_for_long(tmp_path: Path) -> None:
    with (
        limited_echo(tmp_path, make_access("corals")) as (access, process),
        asking(access) as caller,
        ExitStack() as stack,
    ):
        assert caller.ask(Note("before")) == Note("0 dropped")
        host, port = access.contacts[0].removeprefix("tcp://").split(":")
        for _ in range(LIMIT):
            silent = stack.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex((host, int(port)))
        assert f"almost no file descriptors are left (limit: {LIMIT})" in said_by(process)
        assert caller.ask(Note("meanwhile"), PATIENCE) == Note("0 dropped")
        with asking(access) as late:
            assert late.ask(Note("late"), PATIENCE) == Note("0 dropped")
        assert process.poll() is None


def test_more_agents_than_descriptors_are_reported(tmp_path: Path) -> None:
    with limited_echo(tmp_path, make_access("corals")) as (access, process), asking(access) as caller:
        dropped = caller.ask(Note("tcp://127.0.0.1:", answers=3 * LIMIT), PATIENCE)
        assert isinstance(dropped, Note)
        assert int(dropped.text.split()[0]) > LIMIT
        assert "almost no file descriptors are left" in said_by(process)
        assert isinstance(caller.ask(Note("still there"), PATIENCE), Note)
