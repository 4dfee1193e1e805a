"""A connection to Redis or Valkey that outlives their restarts: one command at a time, sent again until it is answered.

Everything that goes through here may be carried out more than once, or is told apart by the scripts (`perform.lua`).
In cluster mode all keys of a run lie in one slot, so one plain connection to the master that has it is enough: the
cluster client of redis-py costs several times more. When the slot moves or its master changes, the servers say where to
go, or one of the given addresses is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha1
from random import random
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry

from shoal.errors import InputError, RunError
from shoal.store.base import GoneError
from shoal.store.places import places_of

FIRST_DELAY = 0.02
LONGEST_DELAY = 1.0
ANSWER_SECONDS = 30.0
"""A server that does not answer for so long is connected to anew."""

GONE = "the Redis server does not know this run any more: it was started anew without its data"
_REFUSALS = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
)
"""What passes by itself: outages, restarts, fail-overs, slots on their way."""


class Script:
    """A server-side script and the name under which the server knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode()).hexdigest()


class Link:
    """One connection at a time, to whichever server has the slot of `key`."""

    def __init__(self, addresses: Sequence[str], key: str, *, patience: float = 60.0) -> None:
        """`addresses` are URLs (`redis://`, `rediss://`, `unix://`); after `patience` seconds of outage a run stops."""
        self._addresses = [self._parsed(address) for address in addresses]
        self._key = key
        self._patience = patience
        self._turn = 0
        self._moved_to: tuple[str, int] | None = None
        self._client: redis.Redis | None = None
        self.breaks = 0
        """How often the connection was lost."""
        self._call_first(addresses)

    @staticmethod
    def _parsed(address: str) -> dict[str, Any]:
        try:
            return dict(parse_url(address))  # type: ignore[no-untyped-call]
        except ValueError:  # what it says may have a part of a password in it
            remedy = "write it as redis://:PASSWORD@HOST:PORT, with % codes for signs in the password"
            raise InputError("what is given is not the address of a Redis server", remedy=remedy) from None

    def _call_first(self, addresses: Sequence[str]) -> None:
        """Whoever gives a wrong address is told at once."""
        shown = places_of(",".join(addresses), schemes=True)
        patience, self._patience = self._patience, min(self._patience, 5.0)
        try:
            self.call("PING")
            if self.info("cluster").get("cluster_enabled"):
                self.call("EXISTS", self._key)
        except RunError as error:
            raise InputError(f"no Redis server answers at {shown}", remedy=str(error.__cause__)) from None
        self._patience = patience

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    def _connected(self) -> redis.Redis:
        if self._client is None:
            options = dict(self._addresses[self._turn % len(self._addresses)])
            if self._moved_to is not None:
                options.pop("path", None)
                if options.get("connection_class") is redis.UnixDomainSocketConnection:
                    del options["connection_class"]
                options["host"], options["port"] = self._moved_to
            options.update(retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_SECONDS, socket_connect_timeout=5.0)
            self._client = redis.Redis(connection_pool=ConnectionPool(**options), single_connection_client=True)
        return self._client

    def _persist(self, action: Any) -> Any:
        """Does something with a client until it succeeds, or patience is over."""
        delay, since = FIRST_DELAY, 0.0
        while True:
            try:
                return action(self._connected())
            except redis.exceptions.MovedError as error:
                self.close()
                self._moved_to = (error.host or self._host(), error.port)
                cause: Exception = error
            except _REFUSALS as error:
                raise InputError(f"the Redis server does not let us in: {error}") from None
            except _PASSING as error:
                self.close()
                self._moved_to = None
                self._turn += 1
                self.breaks += 1
                cause = error
            now = time.monotonic()
            since = since or now
            if now - since > self._patience:
                raise RunError(f"the store has not answered for {self._patience:g} s") from cause
            if not isinstance(cause, redis.exceptions.MovedError) or delay > FIRST_DELAY:
                time.sleep(delay * (0.5 + random()))
            delay = min(delay * 2, LONGEST_DELAY)

    def _host(self) -> str:
        return str(self._addresses[self._turn % len(self._addresses)].get("host", "127.0.0.1"))

    def call(self, *words: str | bytes | int) -> Any:
        """One command."""
        try:
            return self._persist(lambda client: client.execute_command(*words))
        except redis.ResponseError as error:
            raise _explained(error) from None

    def run(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> bytes:
        """A script, by its name if the server knows it."""
        rest = (len(keys), *keys, *arguments)
        try:
            return bytes(self._persist(lambda client: client.execute_command("EVALSHA", script.sha, *rest)))
        except redis.exceptions.NoScriptError:
            return bytes(self.call("EVAL", script.text, *rest))
        except redis.ResponseError as error:
            raise _explained(error) from None

    def info(self, section: str) -> dict[str, Any]:
        """What the server says of itself."""
        return dict(self._persist(lambda client: client.info(section)))

    def setting(self, name: str) -> str | None:
        """One of the server's settings; None if it does not tell."""
        try:
            return str(self._persist(lambda client: client.config_get(name)).get(name))
        except (redis.ResponseError, InputError):
            return None


def _explained(error: redis.ResponseError) -> RunError:
    """What the server refused to do, in a sentence."""
    if isinstance(error, redis.OutOfMemoryError):
        return RunError("the Redis server is out of memory (maxmemory): nothing more can be recorded")
    text = str(error)
    if text.startswith("NORUN"):
        return GoneError(GONE)
    if text.startswith("MISCONF"):
        return RunError(f"the Redis server cannot write to its disk: {text}")
    return RunError(f"the Redis server refused: {text}")
