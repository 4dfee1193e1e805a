"""Messages between agents, clients and viewers. Each of them may be lost, and is then sent again.

`MAY_ASK` lists what each role may send; the role follows from the sender's key. The agent that handles the messages is
in `shoal.cluster.agent.agent`.
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
    """A message from one peer scheduler to another."""

    run: str
    sender: int
    message: Message


class PieceReceivedReply(msgspec.Struct, frozen=True, tag=True):
    """To the owner of tasks that were in transfer from a lost node: it claims those that it has not received."""

    run: str
    tickets: list[ReadyTask]


class PeersChangedEvent(msgspec.Struct, frozen=True, tag=True):
    """The store has tasks without an owner; any agent may take them."""

    run: str


class TasksUnwantedEvent(msgspec.Struct, frozen=True, tag=True):
    """Tasks were cancelled that a scheduler may have."""

    run: str
    tasks: list[int]


class RunsChangedEvent(msgspec.Struct, frozen=True, tag=True):
    """The list of runs has changed: agents read it before their next heartbeat."""


class StoreRequest(msgspec.Struct, frozen=True, tag=True):
    """A request to the store that the head serves."""

    request: bytes


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    answer: bytes


# ---- from clients --------------------------------------------------------------------------------------------------


class SubmissionPiece(msgspec.Struct, frozen=True, tag=True):
    """A part of a run that is being submitted: of a column of its work, or of its task specifications."""

    run: str
    name: str
    at: int
    data: bytes


class SourcePart(msgspec.Struct, frozen=True, tag=True):
    """A part of an input file, for the head to keep, with size and checksum of the whole file."""

    run: str
    file: int
    at: int
    data: bytes
    size: int
    checksum: int
    executable: bool = False


class FilesRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the locations of files of a run."""

    run: str
    files: list[int]


class StagedFileFacts(msgspec.Struct, frozen=True):
    """A version of a file, and the data addresses of the nodes that have it; empty: it does not exist."""

    made: bytes = b""
    places: list[str] = []


class FilesReply(msgspec.Struct, frozen=True, tag=True):
    files: list[StagedFileFacts]
    token: bytes
    """The token of the data listeners at those addresses."""
    encrypted: bool


class SubmitCommand(msgspec.Struct, frozen=True, tag=True):
    """All pieces have been sent: the run begins."""

    run: str
    about: bytes


class CancelCommand(msgspec.Struct, frozen=True, tag=True):
    """Cancels tasks and their descendants; an empty list means the whole run."""

    run: str
    tasks: list[int]


class ForgetCommand(msgspec.Struct, frozen=True, tag=True):
    """The client has recorded everything of the run; the cluster may forget it."""

    run: str


class StopCommand(msgspec.Struct, frozen=True, tag=True):
    """Stops this agent. Running tasks may finish, unless `at_once` is set."""

    at_once: bool = False


# ---- from any role
# -------------------------------------------------------------------------------------------------


class LogRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the entries of a run's log from number `start` on."""

    run: str
    start: int


class LogReply(msgspec.Struct, frozen=True, tag=True):
    start: int
    entries: list[bytes]
    left: int
    state: str
    """`waiting`, `active`, `ended`, or `unknown`: the cluster does not have the run."""
    running: int = 0
    """Number of tasks that run on the agent that replies."""


class TaskRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests why a task does not run."""

    run: str
    task: int


class TaskReply(msgspec.Struct, frozen=True, tag=True):
    """What this agent knows of the task; `address` is that of an agent that knows more."""

    status: int = 0
    """A value of `shoal.core.dependencies.TaskStatus`."""
    answer: Answer | None = None
    """The explanation of a ready task."""
    address: str = ""
    problem: str = ""
    """Why there is no answer: no such run, or no such task."""


class TaskStatesRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the states of tasks."""

    run: str
    tasks: list[int]


class TaskStatesReply(msgspec.Struct, frozen=True, tag=True):
    """A byte for each task, as in `shoal.core.dependencies.TaskStatus`; there may be fewer than requested."""

    statuses: bytes


class RunExplainRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests why a run does not progress."""

    run: str


NO_RUN = "the cluster does not have this run"
"""The reply about a run that the cluster has forgotten, or never had."""


class RunExplainReply(msgspec.Struct, frozen=True, tag=True):
    """What the store has of the run, and what runs and waits in the agent's own share."""

    whole: RunAnswer
    gone: list[int] = []
    """Nodes whose lease has expired."""
    first: str = ""
    """The name of another run that is served before this one."""


class ClusterRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the nodes and runs of the cluster."""


class ClusterRunFacts(msgspec.Struct, frozen=True):
    run: str
    name: str
    state: str
    tasks: int
    left: int
    ready: int = 0
    """Number of tasks that are ready or running."""


class ClusterNodeFacts(msgspec.Struct, frozen=True, array_like=True):
    """Status of a node; sent with every heartbeat."""

    running: int = 0
    shared: int = 0
    local: int = 0
    """Tasks in its two queues."""
    held: int = 0
    """All tasks that it has: the queued ones, and those between two attempts."""
    idle_seconds: float | None = None
    """For how long it has been idle; None: it is not. Seconds rather than a time, since clocks of machines differ."""
    draining: bool = False
    """It starts no further tasks: it is being stopped, or its remaining time is too short for the queued tasks."""
    ahead: float = 0.0
    """Seconds by which its clock is ahead of the cluster's; 0 if negligible."""
    fetched: int = 0
    """Bytes of files that it has fetched."""
    throttle: tuple[str, ...] = ()
    """The throttle's state of each category, as text."""
    memory: str = ""
    """Address (`host:port`) of its shared memory service."""
    memory_plain: bool = False
    """The memory service is unencrypted."""
    stolen: int = 0
    """Number of tasks that it has stolen; `pushed`: number that others have pushed to it."""
    pushed: int = 0
    up_seconds: float = 0.0
    """Seconds since it joined; differs with every heartbeat."""
    run: str = ""
    """The run in which it has a share."""
    places: int = 0
    """Number of occupied places: of tasks that are handed over as one bundle, one runs at a time."""
    fetching: int = 0
    """Number of tasks among those whose inputs are in transfer."""
    resting: int = 0
    """Tasks that it has and that cannot start: they wait for their next attempt, or for a node that can run them."""
    cores_held: int = 0
    """As in `Resources`: 10,000 are one core."""
    memory_used: float = 0.0
    """The fraction of its machine's memory in use."""
    fetched_files: int = 0
    hits: int = 0
    """Number of reads by tasks that needed no transfer."""
    hit_bytes: int = 0
    doing: tuple[tuple[str, int], ...] = ()
    """Running tasks by category, the largest first."""
    lasting: tuple[tuple[int, int, float], ...] = ()
    """Long attempts, the longest first: task, attempt, and age in seconds."""
    lanes: tuple[int, ...] = ()
    """Categories of its Shared tasks, by number, if there are not too many."""


class ClusterReply(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]
    runs: list[ClusterRunFacts]
    notes: dict[int, ClusterNodeFacts] = {}
    """By node: its status."""
    nodes_answer: bool = False
    """Every node replies to clients as the head does, also while the head is down."""


class DoneReply(msgspec.Struct, frozen=True, tag=True):
    """The command was carried out."""


class RefusedReply(msgspec.Struct, frozen=True, tag=True):
    """The request was rejected, for this reason."""

    why: str
    anew: bool = False
    """Pieces that were submitted before are missing: the client must submit from the beginning."""


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
"""By role: the messages that are accepted. Replies are accepted from agents only."""


_note = msgspec.msgpack.Decoder(ClusterNodeFacts)


def read_note(data: bytes) -> ClusterNodeFacts:
    """Decodes the status of a node; returns an empty one if another version has written it."""
    try:
        return _note.decode(data)
    except msgspec.MsgspecError:
        return ClusterNodeFacts()


def make_codec() -> Codec[WireMessage]:
    return Codec(WireMessage)


class AgentClock:
    """Seconds since the epoch, from a monotonic clock."""

    def __init__(self) -> None:
        self.offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self.offset


class MessageSender(Protocol):
    """Where messages for other agents are sent."""

    def send(self, address: str, message: WireMessage) -> None: ...
