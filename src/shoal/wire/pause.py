"""Keeps new connections waiting while this process has hardly any descriptors left.

libzmq accepts whatever comes. With no descriptor left it tries again and again, at the cost of a processor, and nothing
else in this process can open a file. The socket on which it listens is therefore told in time, by a filter, to take no
more: whoever connects is not answered, and tries again after a second or more. Connections that exist are not
concerned. Ending the listening itself (`unbind`) would end them, too.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import struct
import time

from shoal.descriptors import is_scarce, most_left, reserve, shortage

LOOK_SECONDS = 0.5
SAY_SECONDS = 60.0
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_TAKE_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
"""One instruction of the Berkeley packet filter: return 0, of each packet nothing is taken."""
_FILTER = struct.pack("@HP", 1, ctypes.addressof(_TAKE_NOTHING))

_log = logging.getLogger(__name__)


class Pause:
    """Looks after one listening socket of libzmq."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is where it listens, as libzmq tells."""
        self.is_on = False
        """Whether new connections wait."""
        self._listener = _listener_at(endpoint)
        self._any = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Copied to see how many descriptors are left."""
        self._look_at = 0.0
        self._say_at = 0.0

    def fd(self) -> int:
        """What to wait at, for changes only: somebody connects. -1: that cannot be seen."""
        return self._listener.fileno() if self._listener is not None else -1

    def look(self, *, at_once: bool) -> None:
        """To be called often, and at once when somebody connects."""
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + LOOK_SECONDS
        if is_scarce(self._any):
            self._begin(now)
        elif self.is_on and most_left(self._any) > 2 * reserve():
            self._end()

    def _begin(self, now: float) -> None:
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            _log.warning("%s", shortage())
        self.is_on = True
        if self._listener is None:
            return
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _FILTER)
        except OSError:
            pass  # not permitted here: libzmq goes on

    def _end(self) -> None:
        self.is_on = False
        if self._listener is not None:
            try:
                self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            except OSError:
                pass  # there is none

    def close(self) -> None:
        os.close(self._any)
        if self._listener is not None:
            self._listener.close()


def _listener_at(endpoint: str) -> socket.socket | None:
    """The socket of this process that listens at `tcp://HOST:PORT`; None if the system does not show it."""
    port = endpoint.rpartition(":")[2]
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return None
    for number in numbers:
        try:
            copy = os.dup(number)
        except OSError:
            continue  # that of the listing itself
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        try:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and str(found.getsockname()[1]) == port:
                found.setblocking(False)
                return found
        except (OSError, IndexError):
            pass  # a socket of another kind
        found.close()
    return None
