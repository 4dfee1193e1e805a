"""What agents, clients and viewers say to each other. Everything may be lost and asked for again.

Who may say what follows from the role of the sender's key (`MAY_ASK`); what an agent does with it is in `agent`.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

import msgspec

from shoal.cluster.call_protocol import CallServersReply, CallServersRequest, CallsReply, CallsRequest, EndCallsCommand
from shoal.cluster.memory_access import MemoryReply, MemoryRequest
from shoal.cluster.messaging.access import Role
from shoal.cluster.messaging.envelope import Codec
from shoal.core.explain.answer import Answer, RunAnswer
from shoal.core.peer_messages import Message, ReadyTask
from shoal.core.store.directory import NodeInfo

# ---- between agents ------------------------------------------------------------------------------------------------


class PeerSchedulerMessage(msgspec.Struct, frozen=True, tag=True):
    """A broker to another."""

    run: str
    sender: int
    message: Message


class PieceReceivedReply(msgspec.Struct, frozen=True, tag=True):
    """To the owner of tasks that were on their way from a node which is lost: it claims those it has not got."""

    run: str
    tickets: list[ReadyTask]


class PeersChangedEvent(msgspec.Struct, frozen=True, tag=True):
    """There are tasks that nobody has; whoever hears this may take them."""

    run: str


class TasksUnwantedEvent(msgspec.Struct, frozen=True, tag=True):
    """Tasks were cancelled that some broker has."""

    run: str
    tasks: list[int]


class RunsChangedEvent(msgspec.Struct, frozen=True, tag=True):
    """There is another run, or one less: worth a look before the next beat."""


class StoreRequest(msgspec.Struct, frozen=True, tag=True):
    """A request to the store that the head holds."""

    request: bytes


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    answer: bytes


# ---- from clients --------------------------------------------------------------------------------------------------


class SubmissionPiece(msgspec.Struct, frozen=True, tag=True):
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


class FilesRequest(msgspec.Struct, frozen=True, tag=True):
    """Where are these files of a run?"""

    run: str
    files: list[int]


class StagedFileFacts(msgspec.Struct, frozen=True):
    """A version of a file, and the data addresses of those who have it; nothing: it does not exist."""

    made: bytes = b""
    places: list[str] = []


class FilesReply(msgspec.Struct, frozen=True, tag=True):
    files: list[StagedFileFacts]
    token: bytes
    """The token of the listeners at those addresses."""
    encrypted: bool


class SubmitCommand(msgspec.Struct, frozen=True, tag=True):
    """All pieces have been sent: begin."""

    run: str
    about: bytes


class CancelCommand(msgspec.Struct, frozen=True, tag=True):
    """These tasks are not wanted any more, nor what needs them; none named: the whole run."""

    run: str
    tasks: list[int]


class ForgetCommand(msgspec.Struct, frozen=True, tag=True):
    """All is known of the run that its client wants to know."""

    run: str


class StopCommand(msgspec.Struct, frozen=True, tag=True):
    """This agent is to end; tasks that run may finish unless it is to end at once."""

    at_once: bool = False


# ---- from anybody --------------------------------------------------------------------------------------------------


class LogRequest(msgspec.Struct, frozen=True, tag=True):
    """What has become known of a run since the entry of this number?"""

    run: str
    start: int


class LogReply(msgspec.Struct, frozen=True, tag=True):
    start: int
    entries: list[bytes]
    left: int
    state: str
    """`waiting`, `active`, `ended`, or `unknown`: the cluster has not got the run, or not any more."""
    running: int = 0
    """Tasks that run on the agent that answers."""


class TaskRequest(msgspec.Struct, frozen=True, tag=True):
    """Why is a task where it is?"""

    run: str
    task: int


class TaskReply(msgspec.Struct, frozen=True, tag=True):
    """What is known of it here; `address` is that of an agent that knows more."""

    status: int = 0
    """As in `shoal.core.dependencies.TaskStatus`."""
    answer: Answer | None = None
    """Of a task that is ready."""
    address: str = ""
    problem: str = ""
    """Why nothing can be said: there is no such run, or no such task."""


class TaskStatesRequest(msgspec.Struct, frozen=True, tag=True):
    """Where do tasks stand?"""

    run: str
    tasks: list[int]


class TaskStatesReply(msgspec.Struct, frozen=True, tag=True):
    """A byte for each, as in `shoal.core.dependencies.TaskStatus`; perhaps not of all."""

    statuses: bytes


class RunExplainRequest(msgspec.Struct, frozen=True, tag=True):
    """Why is a run where it is?"""

    run: str


NO_RUN = "the cluster does not have this run"
"""What is said of one that it has forgotten, or never had."""


class RunExplainReply(msgspec.Struct, frozen=True, tag=True):
    """What the books have, and of the agent's own share what runs there and what waits for what."""

    whole: RunAnswer
    gone: list[int] = []
    """Nodes that have not been heard of for so long that they count as lost."""
    first: str = ""
    """The name of another run that is served before this one."""


class ClusterRequest(msgspec.Struct, frozen=True, tag=True):
    """Who is there, and what is being run?"""


class ClusterRunFacts(msgspec.Struct, frozen=True):
    run: str
    name: str
    state: str
    tasks: int
    left: int
    ready: int = 0
    """Tasks that could run or do."""


class ClusterNodeFacts(msgspec.Struct, frozen=True, array_like=True):
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


class ClusterReply(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]
    runs: list[ClusterRunFacts]
    notes: dict[int, ClusterNodeFacts] = {}
    """By node, how it is doing."""
    nodes_answer: bool = False
    """Every node answers clients as the head does, also when the head is gone."""


class DoneReply(msgspec.Struct, frozen=True, tag=True):
    """It was done."""


class RefusedReply(msgspec.Struct, frozen=True, tag=True):
    """It was not done, and this is why."""

    why: str
    anew: bool = False
    """What was brought before is not here any more: it is to be brought from the beginning."""


WireMessage: TypeAlias = (
    PeerSchedulerMessage
    | PieceReceivedReply
    | PeersChangedEvent
    | TasksUnwantedEvent
    | RunsChangedEvent
    | StoreRequest
    | StoreReply
    | SubmissionPiece
    | SourcePart
    | FilesRequest
    | FilesReply
    | SubmitCommand
    | CancelCommand
    | ForgetCommand
    | StopCommand
    | LogRequest
    | LogReply
    | TaskRequest
    | TaskReply
    | TaskStatesRequest
    | TaskStatesReply
    | RunExplainRequest
    | RunExplainReply
    | ClusterRequest
    | ClusterReply
    | DoneReply
    | RefusedReply
    | CallServersRequest
    | CallServersReply
    | CallsRequest
    | CallsReply
    | EndCallsCommand
    | MemoryRequest
    | MemoryReply
)
_VIEWERS: tuple[type, ...] = (LogRequest, TaskRequest, TaskStatesRequest, RunExplainRequest, ClusterRequest)
_ASK_FOR_NODES: tuple[type, ...] = (CallServersRequest, CallsRequest, EndCallsCommand, MemoryRequest)
_CLIENTS = (
    *_VIEWERS,
    *_ASK_FOR_NODES,
    SubmissionPiece,
    SourcePart,
    FilesRequest,
    SubmitCommand,
    CancelCommand,
    ForgetCommand,
    StopCommand,
)
_WORKERS = (
    *_CLIENTS,
    PeerSchedulerMessage,
    PieceReceivedReply,
    PeersChangedEvent,
    TasksUnwantedEvent,
    RunsChangedEvent,
    StoreRequest,
    StoreReply,
)
MAY_ASK: dict[Role, frozenset[type]] = {
    Role.VIEWER: frozenset(_VIEWERS),
    Role.CLIENT: frozenset(_CLIENTS),
    Role.WORKER: frozenset(_WORKERS),
}
"""By role: the messages that are looked at. Answers are taken only from agents."""


_note = msgspec.msgpack.Decoder(ClusterNodeFacts)


def read_note(data: bytes) -> ClusterNodeFacts:
    """What a node said; one of another version says nothing that we understand."""
    try:
        return _note.decode(data)
    except msgspec.MsgspecError:
        return ClusterNodeFacts()


def make_codec() -> Codec[WireMessage]:
    return Codec(WireMessage)


class AgentClock:
    """Seconds since the epoch that never jump."""

    def __init__(self) -> None:
        self.offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self.offset


class MessageSender(Protocol):
    """Where messages for other agents go."""

    def send(self, address: str, message: WireMessage) -> None: ...
