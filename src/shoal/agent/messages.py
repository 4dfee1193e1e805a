"""What agents, clients and viewers say to each other. Everything may be lost and asked for again.

Who may say what follows from the role of the sender's key (`MAY_ASK`); what an agent does with it is in `agent`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.broker.peers import Message, Ticket
from shoal.explain.answer import Answer, RunAnswer
from shoal.futures.farming import CallsAsked, CallsTold, CallsUnwanted, FarmsAsked, FarmsTold
from shoal.memory.asking import MemoryAsked, MemoryTold
from shoal.store.directory import NodeInfo
from shoal.wire.access import Role
from shoal.wire.envelope import Codec

# ---- between agents ------------------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True, tag=True):
    """A broker to another."""

    run: str
    sender: int
    message: Message


class Promised(msgspec.Struct, frozen=True, tag=True):
    """To the owner of tasks that were on their way from a node which is lost: it claims those it has not got."""

    run: str
    tickets: list[Ticket]


class LookAround(msgspec.Struct, frozen=True, tag=True):
    """There are tasks that nobody has; whoever hears this may take them."""

    run: str


class TasksUnwanted(msgspec.Struct, frozen=True, tag=True):
    """Tasks were cancelled that some broker has."""

    run: str
    tasks: list[int]


class RunsChanged(msgspec.Struct, frozen=True, tag=True):
    """There is another run, or one less: worth a look before the next beat."""


class StoreAsked(msgspec.Struct, frozen=True, tag=True):
    """A request to the store that the head holds."""

    request: bytes


class StoreTold(msgspec.Struct, frozen=True, tag=True):
    answer: bytes


# ---- from clients --------------------------------------------------------------------------------------------------


class Piece(msgspec.Struct, frozen=True, tag=True):
    """A part of a run that is being brought: a column of its work, or what its tasks do."""

    run: str
    name: str
    at: int
    data: bytes


class SourcePart(msgspec.Struct, frozen=True, tag=True):
    """A part of a file that no task makes, for the head to keep; with size and checksum of the whole."""

    run: str
    file: int
    at: int
    data: bytes
    size: int
    checksum: int
    executable: bool = False


class FilesAsked(msgspec.Struct, frozen=True, tag=True):
    """Where are these files of a run?"""

    run: str
    files: list[int]


class FileTold(msgspec.Struct, frozen=True):
    """A version of a file, and the data addresses of those who have it; nothing: it does not exist."""

    made: bytes = b""
    places: list[str] = []


class FilesTold(msgspec.Struct, frozen=True, tag=True):
    files: list[FileTold]
    token: bytes
    """The token of the listeners at those addresses."""
    encrypted: bool


class Bring(msgspec.Struct, frozen=True, tag=True):
    """All pieces have been sent: begin."""

    run: str
    about: bytes


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """These tasks are not wanted any more, nor what needs them; none named: the whole run."""

    run: str
    tasks: list[int]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """All is known of the run that its client wants to know."""

    run: str


class StopAsked(msgspec.Struct, frozen=True, tag=True):
    """This agent is to end; tasks that run may finish unless it is to end at once."""

    at_once: bool = False


# ---- from anybody --------------------------------------------------------------------------------------------------


class Follow(msgspec.Struct, frozen=True, tag=True):
    """What has become known of a run since the entry of this number?"""

    run: str
    start: int


class Entries(msgspec.Struct, frozen=True, tag=True):
    start: int
    entries: list[bytes]
    left: int
    state: str
    """`waiting`, `active`, `ended`, or `unknown`: the cluster has not got the run, or not any more."""
    running: int = 0
    """Tasks that run on the agent that answers."""


class TaskAsked(msgspec.Struct, frozen=True, tag=True):
    """Why is a task where it is?"""

    run: str
    task: int


class TaskTold(msgspec.Struct, frozen=True, tag=True):
    """What is known of it here; `address` is that of an agent that knows more."""

    status: int = 0
    """As in `shoal.flow.dag.Status`."""
    answer: Answer | None = None
    """Of a task that is ready."""
    address: str = ""
    problem: str = ""
    """Why nothing can be said: there is no such run, or no such task."""


class StandingsAsked(msgspec.Struct, frozen=True, tag=True):
    """Where do tasks stand?"""

    run: str
    tasks: list[int]


class StandingsTold(msgspec.Struct, frozen=True, tag=True):
    """A byte for each, as in `shoal.flow.dag.Status`; perhaps not of all."""

    statuses: bytes


class RunAsked(msgspec.Struct, frozen=True, tag=True):
    """Why is a run where it is?"""

    run: str


NO_RUN = "the cluster does not have this run"
"""What is said of one that it has forgotten, or never had."""


class RunSaid(msgspec.Struct, frozen=True, tag=True):
    """What the books have, and of the agent's own share what runs there and what waits for what."""

    whole: RunAnswer
    gone: list[int] = []
    """Nodes that have not been heard of for so long that they count as lost."""
    first: str = ""
    """The name of another run that is served before this one."""


class ClusterAsked(msgspec.Struct, frozen=True, tag=True):
    """Who is there, and what is being run?"""


class RunTold(msgspec.Struct, frozen=True):
    run: str
    name: str
    state: str
    tasks: int
    left: int
    ready: int = 0
    """Tasks that could run or do."""


class NodeNote(msgspec.Struct, frozen=True, array_like=True):
    """How a node is doing; it says so with every beat."""

    running: int = 0
    shared: int = 0
    local: int = 0
    """Tasks in its two queues."""
    held: int = 0
    """All tasks that it has: those, and what rests between two attempts."""
    idle_seconds: float | None = None
    """For how long it has had nothing to do; None: it has. Seconds, since clocks of machines differ."""
    draining: bool = False
    """It starts nothing more: it was told to end, or its time is too short for what waits."""
    ahead: float = 0.0
    """Seconds by which its clock is ahead of the cluster's, if that is worth a word."""
    fetched: int = 0
    """Bytes of files that it has got from others."""
    throttle: tuple[str, ...] = ()
    """How many of each category it lets run, in words."""
    memory: str = ""
    """Where its shared memory is to be had, `host:port`."""
    memory_plain: bool = False
    """It gives it unencrypted."""
    stolen: int = 0
    """Tasks that it has taken from others, and those that others have sent to it."""
    pushed: int = 0
    up_seconds: float = 0.0
    """For how long it has been one of the cluster; another one with every beat."""
    run: str = ""
    """What it has a share in."""
    places: int = 0
    """How many of its running tasks run at this moment: of those that were handed over together, one does."""
    fetching: int = 0
    """Among those, tasks whose inputs are on their way."""
    resting: int = 0
    """Tasks that it has and that cannot start: they wait for their next attempt, or for a node that can run them."""
    cores_held: int = 0
    """As in `Resources`: 10,000 are one core."""
    memory_used: float = 0.0
    """The share of its machine's memory that is in use."""
    fetched_files: int = 0
    hits: int = 0
    """How often a task has read a file for which nothing had to be fetched."""
    hit_bytes: int = 0
    doing: tuple[tuple[str, int], ...] = ()
    """How many tasks it runs of which category, those with most first."""
    lasting: tuple[tuple[int, int, float], ...] = ()
    """Attempts that it has been at for a while, the longest first: task, attempt, and for how many seconds."""
    lanes: tuple[int, ...] = ()
    """Categories of its Shared tasks, by number, if there are not too many."""


class ClusterTold(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]
    runs: list[RunTold]
    notes: dict[int, NodeNote] = {}
    """By node, how it is doing."""
    nodes_answer: bool = False
    """Every node answers clients as the head does, also when the head is gone."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """It was done."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It was not done, and this is why."""

    why: str
    anew: bool = False
    """What was brought before is not here any more: it is to be brought from the beginning."""


WireMessage: TypeAlias = (
    Said
    | Promised
    | LookAround
    | TasksUnwanted
    | RunsChanged
    | StoreAsked
    | StoreTold
    | Piece
    | SourcePart
    | FilesAsked
    | FilesTold
    | Bring
    | Cancel
    | Forget
    | StopAsked
    | Follow
    | Entries
    | TaskAsked
    | TaskTold
    | StandingsAsked
    | StandingsTold
    | RunAsked
    | RunSaid
    | ClusterAsked
    | ClusterTold
    | Done
    | Refused
    | FarmsAsked
    | FarmsTold
    | CallsAsked
    | CallsTold
    | CallsUnwanted
    | MemoryAsked
    | MemoryTold
)
_VIEWERS: tuple[type, ...] = (Follow, TaskAsked, StandingsAsked, RunAsked, ClusterAsked)
_ASK_FOR_NODES: tuple[type, ...] = (FarmsAsked, CallsAsked, CallsUnwanted, MemoryAsked)
_CLIENTS = (*_VIEWERS, *_ASK_FOR_NODES, Piece, SourcePart, FilesAsked, Bring, Cancel, Forget, StopAsked)
_WORKERS = (*_CLIENTS, Said, Promised, LookAround, TasksUnwanted, RunsChanged, StoreAsked, StoreTold)
MAY_ASK: dict[Role, frozenset[type]] = {
    Role.VIEWER: frozenset(_VIEWERS),
    Role.CLIENT: frozenset(_CLIENTS),
    Role.WORKER: frozenset(_WORKERS),
}
"""By role: the messages that are looked at. Answers are taken only from agents."""


_note = msgspec.msgpack.Decoder(NodeNote)


def read_note(data: bytes) -> NodeNote:
    """What a node said; one of another version says nothing that we understand."""
    try:
        return _note.decode(data)
    except msgspec.MsgspecError:
        return NodeNote()


def make_codec() -> Codec[WireMessage]:
    return Codec(WireMessage)
