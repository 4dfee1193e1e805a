"""Where the servers of a store are, told without what their addresses keep secret. Pure: nothing is looked up."""

from __future__ import annotations

import re

UNSHOWN = "a place that cannot be shown"
_NEXT = re.compile(r",(?=[a-z]+://)")
"""A comma may also be part of a password."""
_SERVER = re.compile(
    r"(?P<scheme>rediss?://)(?:[^/?#\[\]]*@)?(?P<place>(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?)(?:/[0-9]*)?(?:\?[^@]*)?"
)
_SOCKET = re.compile(r"(?P<scheme>unix://)(?:[^/?#\[\]]*@)?(?P<place>/[^@?#]*)(?:\?[^@]*)?")


def places_of(url: str, *, schemes: bool = False) -> str:
    """The hosts and ports of addresses, without the names, passwords and options that they may hold.

    What is not written as it should be is not shown at all: an `@` further on may end a password that begins before.
    """
    addresses = _NEXT.split(url)
    found = []
    for number, address in enumerate(addresses):
        parts = _SERVER.fullmatch(address) or _SOCKET.fullmatch(address)
        torn = "@" not in address and any("@" in later for later in addresses[number + 1 :])
        found.append(UNSHOWN if parts is None or torn else parts["scheme"] * schemes + parts["place"])
    return ", ".join(found)
