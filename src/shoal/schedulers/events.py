"""What schedulers and those who drive them say to each other: events in, commands out.

Every `Submit` is answered by exactly one of `Finished`, `Failed` and `Stopped`, also after a `Cancel`: what a task held
is free only when its processes have ended.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from shoal.flow.net.records import Task
from shoal.steward.grants import Grant
from shoal.steward.happenings import Happening


class Look(msgspec.Struct, frozen=True):
    """Something may have changed in the flow, or there is time to draw more."""


class Finished(msgspec.Struct, frozen=True):
    """An attempt gave a result."""

    task: int
    attempt: int
    result: Any = None
    seconds: float = 0.0


class Failed(msgspec.Struct, frozen=True):
    """An attempt failed."""

    task: int
    attempt: int
    message: str


class Stopped(msgspec.Struct, frozen=True):
    """An attempt that was cancelled has ended, or came to nothing because its worker is gone."""

    task: int
    attempt: int


class Told(msgspec.Struct, frozen=True):
    """What a steward says of tickets. As an event: to this scheduler; as a command: to the others that share it."""

    location: str
    happenings: tuple[Happening, ...]


class Stop(msgspec.Struct, frozen=True):
    """Nothing more is to be begun, and what runs is to be cancelled; the flow can be gone on with."""


Event: TypeAlias = Look | Finished | Failed | Stopped | Told | Stop


class Submit(msgspec.Struct, frozen=True):
    """Run this attempt on what was granted."""

    task: Task
    grant: Grant
    location: str
    way: str = ""
    """Which of several implementations."""


class Cancel(msgspec.Struct, frozen=True):
    """End this attempt."""

    task: int
    attempt: int


Command: TypeAlias = Submit | Cancel | Told
