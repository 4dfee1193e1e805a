"""What is shown, in named parts with the version at which each changed last: who comes back gets what is new to him.

Parts are kept as JSON. Whether one has changed is whether its JSON has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
GONE = b"null"


class Board:
    """Written by one thread, waited for by many."""

    def __init__(self) -> None:
        self.epoch = os.urandom(4).hex()
        """Names this board: versions of another one mean nothing here."""
        self.version = 0
        self.watchers = 0
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, parts: Mapping[str, Any], gone: tuple[str, ...] = ()) -> int:
        """Puts these parts up; of those whose name begins with a word in `gone`, the ones that are not among them are
        taken down. Returns how many have changed."""
        fresh = {name: _encoder.encode(value) for name, value in parts.items()}
        with self._changed:
            for name, (_, value) in self._parts.items():
                if name not in fresh and value != GONE and name.startswith(gone):
                    fresh[name] = GONE
            changed = {name: value for name, value in fresh.items() if self._parts.get(name, (0, b""))[1] != value}
            if changed:
                self.version += 1
                self._parts |= {name: (self.version, value) for name, value in changed.items()}
                self._changed.notify_all()
        return len(changed)

    def watch(self, more: int) -> None:
        """Somebody comes, or goes."""
        with self._changed:
            self.watchers += more

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self, version: int, patience: float) -> int:
        """The version, once it is above this one or time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version or self._closed, patience)
            return self.version

    def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def since(self, version: int) -> tuple[int, bytes]:
        """The version, and as JSON the parts that have changed since another one; all of them since 0."""
        with self._changed:
            found = [
                _encoder.encode(name) + b":" + value
                for name, (changed, value) in self._parts.items()
                if changed > version and (version or value != GONE)
            ]
            return self.version, b"{" + b",".join(found) + b"}"

    def ident(self, version: int) -> str:
        """How a version is called by those who come back."""
        return f"{self.epoch}-{version}"

    def version_of(self, ident: str) -> int:
        """The version that somebody has; 0 if it is none of ours."""
        epoch, _, number = ident.partition("-")
        return int(number) if epoch == self.epoch and number.isdecimal() and len(number) < 18 else 0
