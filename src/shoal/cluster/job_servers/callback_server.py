"""The driver's side of calls from tasks: one thread that listens, some that run the registered functions.

Only tasks of this job server have the keys to be heard. A function that raises is a sentence for the task that called
it, and nothing else happens.
"""

from __future__ import annotations

import os
import pickle
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.cluster.job_servers.task_calls import (
    AT_ONCE,
    CallbackReply,
    CallRequestMessage,
    DriverAddress,
    MeetRequest,
    Message,
    make_codec,
)
from shoal.cluster.messaging.access import Role, make_access, narrowed
from shoal.cluster.messaging.envelope import BadFrame
from shoal.cluster.messaging.messenger import Messenger, Route
from shoal.execution.calls.pickling import dumps_by_value
from shoal.petri.transition import told

_TURN_SECONDS = 1.0


class CallbackServer:
    """Answers the tasks of one job server."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], host: str) -> None:
        self._functions = dict(functions)
        self._access = make_access("driver")
        self._post: Messenger[Message] = Messenger(self._access, make_codec(), bind=f"tcp://{host}:0", sender="driver")
        self._for_tasks = narrowed(self._access.at([self._post.address]), Role.CLIENT)
        self._meetings: dict[tuple[str, int], dict[int, tuple[Route, bytes]]] = {}
        """By task and turn: who has come, and with what."""
        self._done: deque[tuple[Route, CallbackReply]] = deque()
        self._gone: deque[str] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        """Of the bell."""
        self._is_closed = False
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="shoal-driver-call")
        self._thread = threading.Thread(target=self._run, name="shoal-driver-desk", daemon=True)
        self._thread.start()

    def driver_for(self, task: str) -> bytes:
        """What a task needs to call here, a pickled `DriverAddress`."""
        return pickle.dumps(DriverAddress(self._for_tasks, task), 5)

    def forget(self, task: str) -> None:
        """A task is over: nobody will come to its meetings any more."""
        self._gone.append(task)

    def close(self) -> None:
        self._is_closed = True
        self._ring()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._post.close()
        with self._lock:  # a function that still runs must not ring a bell of somebody else with this number
            os.close(self._bell)
            self._bell = -1

    def _ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (*self._post.fds(), self._bell):
            poll.register(descriptor, select.POLLIN)
        while not self._is_closed:
            poll.poll(1000 * _TURN_SECONDS)
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass
            for received in self._post.receive():
                for message in received.messages:
                    self._take(received.route, message)
            while self._done:
                self._answer(*self._done.popleft())
            while self._gone:
                task = self._gone.popleft()
                self._meetings = {key: there for key, there in self._meetings.items() if key[0] != task}
            self._post.flush()

    def _take(self, route: Route, message: Message) -> None:
        match message:
            case CallRequestMessage():
                self._pool.submit(self._perform, route, message)
            case MeetRequest():
                self._meet(route, message)
            case CallbackReply():
                pass  # nothing was asked

    def _meet(self, route: Route, message: MeetRequest) -> None:
        there = self._meetings.setdefault((message.task, message.turn), {})
        there[message.rank] = (route, message.value)
        if len(there) == message.ranks:
            del self._meetings[message.task, message.turn]
            values = pickle.dumps([there[rank][1] for rank in sorted(there)], 5)
            for each, _ in there.values():
                self._answer(each, CallbackReply(values))

    def _answer(self, route: Route, answer: CallbackReply) -> None:
        try:
            self._post.answer(route, answer)
        except BadFrame as error:
            self._post.answer(route, CallbackReply(problem=f"the answer of the driver cannot be sent: {error}"))

    # ---- other threads ---------------------------------------------------------------------------------------------

    def _perform(self, route: Route, message: CallRequestMessage) -> None:
        self._done.append((route, self._outcome(message)))
        self._ring()

    def _outcome(self, message: CallRequestMessage) -> CallbackReply:
        function = self._functions.get(message.name)
        if function is None:
            known = ", ".join(self._functions) or "nothing"
            return CallbackReply(problem=f"the driver has no function {message.name!r}; it has {known}")
        try:
            arguments, keywords = pickle.loads(message.arguments)
            return CallbackReply(dumps_by_value(function(*arguments, **keywords)))
        except BaseException as error:  # whatever the user's function raises, even an exit, is told to the task
            return CallbackReply(problem=f"the driver's function {message.name!r} failed with {told(error)}")
