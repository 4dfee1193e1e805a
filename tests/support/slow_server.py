"""A remote file server of limited capacity, as a process on this machine that tasks call over loopback.

It does so many requests' worth of work a second. One request alone cannot have all of that: it takes a set time, and
only a set number together (the knee) keep the server busy. More than these share what there is, so each takes longer;
with `--thrash` there is also less to share. Every answer is a line in a log: moment, tag, size, seconds, and how many
were being served when the request came.

    python slow_server.py PORT_FILE LOG --capacity 40 --knee 8 [--thrash 0.5]

A request is a line `TAG SIZE`, answered with `ok`; `capacity NUMBER` changes the capacity. Only the standard library is
needed. `slow_client.c` is the client; without a compiler it is bash.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Generic, NamedTuple, TypeVar

PATIENCE = 60.0
LONGEST_LINE = 200
Job = TypeVar("Job")


class Capacity(Generic[Job]):
    """Jobs that share a server, by its own clock: it advances at the pace at which each job is being served.

    All jobs are served at the same pace, so one of size s is over when this clock has advanced by s.
    """

    def __init__(self, capacity: float, knee: int, thrash: float = 0.0) -> None:
        self.capacity = capacity
        self.knee = knee
        self.thrash = thrash
        self._clock = 0.0
        self._at = 0.0
        self._serial = 0
        self._jobs: list[tuple[float, int, Job]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def pace(self) -> float:
        """Requests' worth of work a second that each job gets."""
        count = len(self._jobs)
        if count <= self.knee:
            return self.capacity / self.knee
        return self.capacity / count / (1 + self.thrash * (count - self.knee) / self.knee)

    def add(self, now: float, size: float, job: Job) -> None:
        self._advance(now)
        self._serial += 1
        heapq.heappush(self._jobs, (self._clock + size, self._serial, job))

    def change(self, now: float, capacity: float) -> None:
        self._advance(now)
        self.capacity = capacity

    def due(self) -> float:
        """When the next job is over, if no other comes."""
        return self._at + max(0.0, self._jobs[0][0] - self._clock) / self.pace if self._jobs else math.inf

    def done(self, now: float) -> list[Job]:
        """The jobs that are over by now, in the order in which they ended."""
        over = []
        while self._jobs and self.due() <= now:
            end = self._jobs[0][0]
            self._at = max(self._at, self.due())
            self._clock = end
            over.append(heapq.heappop(self._jobs)[2])
        self._advance(now)
        return over

    def _advance(self, now: float) -> None:
        """To a moment before which no job ends."""
        if now > self._at:
            self._clock += (now - self._at) * self.pace
            self._at = now


class Request(NamedTuple):
    """One that is being served."""

    connection: socket.socket
    tag: str
    size: float
    came: float
    beside: int


class Server:
    """Connections around a capacity: one request each."""

    def __init__(self, capacity: Capacity[Request], log: IO[str]) -> None:
        self.capacity = capacity
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Until it is ended from outside."""
        while True:
            due = self.capacity.due()
            ready = self._selector.select(None if due == math.inf else max(0.0, due - time.monotonic()))
            now = time.monotonic()
            for request in self.capacity.done(now):
                self._answer(request, now)
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._take(key.fileobj, now)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        self._selector.register(connection, selectors.EVENT_READ)

    def _take(self, connection: socket.socket, now: float) -> None:
        """A request; our clients send it as one packet."""
        self._selector.unregister(connection)
        try:
            words = connection.recv(LONGEST_LINE).decode(errors="replace").split()
            tag, size = words[0], float(words[1])
        except (OSError, ValueError, IndexError):
            connection.close()
            return
        if tag == "capacity":
            self.capacity.change(now, size)
            _send_and_close(connection)
        else:
            self.capacity.add(now, size, Request(connection, tag, size, now, len(self.capacity)))

    def _answer(self, request: Request, now: float) -> None:
        _send_and_close(request.connection)
        seconds = now - request.came
        self._log.write(f"{time.time():.6f} {request.tag} {request.size:g} {seconds:.6f} {request.beside}\n")
        self._log.flush()


def _send_and_close(connection: socket.socket) -> None:
    try:
        connection.sendall(b"ok\n")
    except OSError:  # the task has been ended meanwhile
        pass
    connection.close()


class Answer(NamedTuple):
    """A line of the log."""

    at: float
    """By the clock of the wall."""
    tag: str
    size: float
    seconds: float
    beside: int


def read_log(path: Path, begin: float = 0.0, end: float = math.inf) -> list[Answer]:
    """What was answered between two moments; a line that is just being written is left out."""
    found = []
    for line in path.read_text().split("\n")[:-1]:
        at, tag, size, seconds, beside = line.split(" ")
        if begin <= float(at) < end:
            found.append(Answer(float(at), tag, float(size), float(seconds), int(beside)))
    return found


class Running(NamedTuple):
    """A server that was started."""

    port: int
    log: Path
    capacity: float
    knee: int
    process: subprocess.Popen[bytes]

    @property
    def unloaded(self) -> float:
        """Seconds of a request of size 1 as long as no more than the knee are served."""
        return self.knee / self.capacity

    def change(self, capacity: float) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(f"capacity {capacity}\n".encode())
            connection.recv(16)


@contextmanager
def serving(folder: Path, capacity: float, knee: int, thrash: float = 0.0) -> Iterator[Running]:
    """A server process with its files in a folder."""
    port_file, log = folder / "server.port", folder / "server.log"
    for path in (port_file, log):
        path.unlink(missing_ok=True)
    numbers = ["--capacity", str(capacity), "--knee", str(knee), "--thrash", str(thrash)]
    process = subprocess.Popen([sys.executable, "-S", __file__, str(port_file), str(log), *numbers])
    try:
        deadline = time.monotonic() + PATIENCE
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the slow server did not start"
            time.sleep(0.01)
        yield Running(int(port_file.read_text()), log, capacity, knee, process)
    finally:
        process.kill()
        process.wait()


def client(folder: Path) -> str:
    """A command that calls the server when PORT TAG SIZE are put after it; it costs next to no processor time."""
    compiler = shutil.which("cc")
    if compiler is not None:
        program = folder / "slow_client"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name("slow_client.c")], check=True)
        return str(program)
    script = folder / "slow_client.sh"
    script.write_text('exec 3<>"/dev/tcp/127.0.0.1/$1"\necho "$2 $3" >&3\nread -r answer <&3\n[ "$answer" = ok ]\n')
    return f"bash {script}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("port_file", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--capacity", type=float, default=40.0)
    parser.add_argument("--knee", type=int, default=8)
    parser.add_argument("--thrash", type=float, default=0.0)
    options = parser.parse_args(arguments)
    with options.log.open("a") as log:
        server = Server(Capacity(options.capacity, options.knee, options.thrash), log)
        written = options.port_file.with_suffix(".new")
        written.write_text(str(server.port))
        os.replace(written, options.port_file)
        server.run()


if __name__ == "__main__":
    main()
