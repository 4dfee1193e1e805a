"""Ends what agents still run for a client that is gone, so that somebody else may run the same.

Each agent that is listed has to say that it knows nothing of the client any more, which it does when the workers are
dead; one that is killed meanwhile is struck off the list. An agent that the note names and the cluster does not list is
asked, too: a head that has just come back may not have heard of it yet. If that one does not answer it is gone.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import msgspec

from shoal.engine.farmed import Farmed, drop_farmed, read_farmed, way_out
from shoal.engine.workspace import Holder, Workspace
from shoal.errors import InputError

PATIENCE_SECONDS = 40.0
"""Longer than a cluster lists an agent that was killed."""
ANSWER_SECONDS = 15.0
CONNECT_SECONDS = 2.0
PAUSE_SECONDS = 0.2


def end_farmed(workspace: Workspace) -> str:
    """Ends the tasks of a net whose client is gone, and returns the name of the cluster; nothing if there are none.

    The caller has the lock. Raises `InputError`, and leaves the note, if it cannot be known that they have ended.
    """
    note = read_farmed(workspace)
    if note is None:
        return ""
    try:
        _end_calls(note)
    except InputError as error:
        name = os.path.basename(workspace.workflow)
        where = f"the cluster {note.cluster!r}, which may still run tasks of {name}, cannot be asked to end them"
        remedy = f"try again when it answers; if it is gone for good, {way_out(workspace)}"
        raise InputError(f"{where}: {error.message}", remedy=remedy) from None
    drop_farmed(workspace)
    return note.cluster


def end_by_command(workspace: Workspace, *, forget: bool) -> str:
    """The same for who only wants that; to `forget` is to give up what cannot be ended."""
    workspace.acquire(Holder(os.getpid(), os.uname().nodename, "", time.time()), ending=True)
    try:
        return end_farmed(workspace)
    except InputError:
        if not forget:
            raise
        drop_farmed(workspace)
        return ""
    finally:
        workspace.release()


def _end_calls(note: Farmed) -> None:
    if find_spec("zmq") is None:
        raise InputError("clusters need pyzmq, which is not installed", remedy="pip install 'shoal[cluster]'")
    from shoal.futures.farming import UNKNOWN, CallsTold, CallsUnwanted, FarmsAsked, FarmsTold
    from shoal.futures.line import make_codec
    from shoal.wire.access import Role, read
    from shoal.wire.caller import Caller
    from shoal.wire.places import access_path

    access = read(access_path(note.cluster))

    def has_ended(address: str) -> bool:
        only = msgspec.structs.replace(access, contacts=[address], spare=[])
        try:
            with Caller(only, make_codec(), role=Role.CLIENT, patience=CONNECT_SECONDS) as caller:
                answer = caller.ask(CallsUnwanted(note.client), ANSWER_SECONDS)
        except InputError:
            return False
        return isinstance(answer, CallsTold) and answer.heard == UNKNOWN

    deadline = time.monotonic() + PATIENCE_SECONDS
    ended: set[str] = set()
    with Caller(access, make_codec(), role=Role.CLIENT) as caller:
        while True:
            told = caller.ask(FarmsAsked())
            if not isinstance(told, FarmsTold):
                raise InputError("it does not say which nodes it has")
            listed = {node.address: node.name for node in told.nodes.values()}
            ended |= {each for each in dict.fromkeys([*listed, *note.agents]) if each not in ended and has_ended(each)}
            silent = [name for address, name in listed.items() if address not in ended]
            if not silent:
                return
            if time.monotonic() >= deadline:
                raise InputError(f"its node {silent[0]} does not answer")
            time.sleep(PAUSE_SECONDS)
