"""The file cache of one node, with its data listener and its fetches, and the token of all data listeners.

All data listeners of a cluster have the same token, derived from the secret that its agents share. Clients receive it
over the wire, viewers do not.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Collection

from shoal.cluster.agent.run_store import PATIENCE, IncompleteError
from shoal.cluster.messaging.access import Access
from shoal.data.cache import Cache
from shoal.data.fetch import Fetcher
from shoal.data.listener import DataListener, ObjectServer
from shoal.data.transfer_messages import DataGrant
from shoal.errors import ShoalError


def token_of(access: Access) -> bytes:
    """Returns the token of the data listeners of a cluster; only agents can derive it."""
    _, secret = access.server_pair()
    return hmac.digest(secret, b"depot " + access.cluster.encode(), "sha256")


def grant_at(address: str, token: bytes, encrypted: bool) -> DataGrant | None:
    """Returns the grant for a data address `host:port`; None if it is empty."""
    host, _, port = address.rpartition(":")
    return DataGrant(host, int(port), token, encrypted) if port.isdigit() else None


class NodeCache:
    """The objects that a process keeps for others and fetches from them."""

    def __init__(
        self,
        folder: str,
        access: Access,
        host: str,
        *,
        port: int = 0,
        limit_bytes: int | None = None,
        encrypted: bool = True,
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self.cache = Cache(os.path.join(folder, "cache"), limit_bytes)
        self.fetcher = Fetcher(self.cache)
        self.listener = DataListener(token_of(access), host=host, port=port, encrypted=encrypted)
        self._server = ObjectServer(self.cache, self.listener)
        self.address = self.listener.address
        self._partial: dict[str, tuple[str, float]] = {}
        """Objects that are being uploaded: their file, and when the last part arrived."""
        self.origin_address = ""
        """Data address of the head, which keeps the clients' input files."""

    @property
    def token(self) -> bytes:
        return self.listener.token

    @property
    def encrypted(self) -> bool:
        return self.listener.encrypted

    def take(self, name: str, at: int, data: bytes, size: int, checksum: int, executable: bool) -> None:
        """Takes a part of an uploaded object. Parts come in order; a part that came before may come again."""
        if self.cache.has(name):
            return
        path, _ = self._partial.get(name, ("", 0.0))
        if not path and at == 0:
            path = self.cache.begin(name, size)
        if not path:
            raise IncompleteError(f"a part of {name} is missing", remedy="send it again")
        self._partial[name] = (path, time.monotonic())
        with open(path, "wb" if at == 0 else "r+b") as file:
            file.seek(at)
            file.write(data)
        if at + len(data) == size:
            try:
                self.cache.commit(name, size, checksum, executable=executable, precious=True)
            except (OSError, ShoalError):
                self.cache.leave(name, keep=False)
                raise
            finally:
                del self._partial[name]

    def keep_only(self, runs: Collection[str], patience: float = PATIENCE) -> None:
        """Drops objects of other runs, and uploads that do not continue."""
        for name in self.cache.names():
            if name.partition("/")[0] not in runs:
                self.cache.drop(name)
        now = time.monotonic()
        for name, (_, touched) in list(self._partial.items()):
            if name.partition("/")[0] not in runs and now - touched > patience:
                del self._partial[name]
                self.cache.leave(name, keep=False)
        if not runs:  # then there is nothing that could be resumed
            self.cache.drop_partial()

    def grant(self, address: str) -> DataGrant | None:
        return grant_at(address, self.token, self.encrypted)

    def origin(self) -> DataGrant | None:
        return self.grant(self.origin_address)

    def close(self) -> None:
        self.fetcher.close()
        self._server.close()
        self.listener.close()
        self.cache.close()
