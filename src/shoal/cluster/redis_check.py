"""A look at the Redis server that is to keep the books of a cluster, before the cluster is started."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import InputError, RunError
from shoal.store.link import Link
from shoal.store.redis import key_of, worries

FORGOTTEN_SECONDS = 60
"""How long the server keeps what was written to try it, if nobody takes it away."""


def check_server(url: str, cluster: str, say: Callable[[str], None]) -> None:
    """Says what of its settings endangers runs; a server that takes nothing is refused."""
    key = key_of(cluster, "trial")
    link = Link(url.split(","), key)
    try:
        for sentence in worries(link).values():
            say(sentence)
        link.call("SET", key, "1", "EX", FORGOTTEN_SECONDS)
        link.call("DEL", key)
    except RunError as error:
        raise InputError(str(error), remedy="the books of a cluster cannot be kept there") from None
    finally:
        link.close()
