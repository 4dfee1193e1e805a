"""The oracle of single-node simulations: checks every command of the scheduler, and the answers of `why`, against its
own record of the run.

`check_broker` checks the internal consistency of the scheduler; the oracle checks its decisions. Inputs exist before a
start; a task has one accepted result; attempt numbers increase by one; no task ends without a cause; no command refers
to a finished task; at the end every task is accounted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy

import msgspec

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, RunAnswer, Shortage, WaitCause
from shoal.core.explain.scheduler_source import DriverFacts, SingleNodeSource
from shoal.core.explain.sentences import SentenceWriter, paragraph
from shoal.core.graph import Graph, topological_order
from shoal.core.policies.retry import LONGEST_DELAY, MOST_LOSSES, AttemptOutcome
from shoal.core.policies.sizing.adviser import SIZED
from shoal.core.resources import Resources
from shoal.core.scheduler import Scheduler, TaskState
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    Command,
    DrainEnded,
    DrainRequested,
    Event,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskGrew,
    TaskResult,
    TasksEnded,
    TasksReady,
    WakeAt,
)
from shoal.sim.node import Violation


class TaskHistory(msgspec.Struct):
    """What the oracle knows of one task."""

    announced: bool = False
    attempt: int = 0
    running: bool = False
    unwanted: bool = False
    """Cancelled while it was running."""
    failures: int = 0
    losses: int = 0
    sizes: dict[str, int] = {}
    """Allocated learned resources of the last attempt, or what it has grown to use."""
    exhausted: dict[str, int] = {}
    """The largest amount that was too small, by resource."""
    not_before: float = 0.0
    end: str = ""
    """`accepted`, the outcome with which it was given up, or empty while it is not finished."""


class Oracle:
    """Call `before` and `after` for every event, `cancelled_waiting` for cancels that bypass the scheduler, and
    `finish` at the end."""

    def __init__(self, graph: Graph, capacity: Resources, learned: Sequence[tuple[str, ...]] = ()) -> None:
        """`learned`: for each profile the resources whose sizes the scheduler decides."""
        self.graph = graph
        self.learned = learned
        self.capacity = capacity
        self.draining = False
        self.histories = [TaskHistory() for _ in range(len(graph))]
        self.needs = direct_needs(graph)
        self.fresh: dict[int, TaskResult] = {}
        """Results of this event that are the first ones of a current attempt."""
        self.to_kill: dict[int, int] = {}
        self.grown: dict[int, tuple[int, str]] = {}
        """Tasks that use more than expected: the attempt and the resource."""
        self.doomed_by: dict[int, str] = {}
        """The resource that a task exceeded when the scheduler last killed it for that."""
        self.asked: set[int] = set()
        self._watch: dict[type, Callable[..., None]] = {
            Start: self._on_start,
            Accept: self._on_accept,
            Retry: self._on_retry,
            GiveUp: self._on_give_up,
            Kill: self._on_kill,
        }

    def before(self, event: Event) -> None:
        self.fresh, self.to_kill = {}, {}
        match event:
            case TasksReady(tasks):
                for task in tasks:
                    self.histories[task].announced = True
            case TasksEnded(results):
                for result in results:
                    history = self.histories[result.task]
                    if history.running and history.attempt == result.attempt:
                        history.running = False
                        self.fresh[result.task] = result
            case TaskGrew(task, attempt, amount, resource=name):
                history = self.histories[task]
                if history.running and history.attempt == attempt:
                    history.sizes[name] = amount
                    self.grown[task] = (attempt, name)
            case CancelRequested(tasks):
                self._note_cancels(tasks)
            case CapacityChanged(node):
                self.capacity = node
            case DrainRequested():
                self.draining = True
            case DrainEnded():
                self.draining = False

    def _note_cancels(self, tasks: list[int]) -> None:
        for task in tasks:
            history = self.histories[task]
            self.asked.add(task)
            if history.running and not history.unwanted:
                history.unwanted = True
                self.to_kill[task] = history.attempt

    def after(self, now: float, commands: list[Command]) -> None:
        for command in commands:
            if not isinstance(command, WakeAt):
                self._watch[type(command)](now, command)
        if self.fresh:
            raise Violation(f"results without any command: {self.fresh}")
        if self.to_kill:
            raise Violation(f"cancelled tasks without a kill: {self.to_kill}")

    def _on_start(self, now: float, command: Start) -> None:
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            history = self.histories[task]
            self._expect_open(task, "started")
            if self.draining or not history.announced or history.running:
                raise Violation(f"task {task} starts while draining, before it is ready, or twice at the same time")
            if attempt != history.attempt + 1:
                raise Violation(f"task {task}: attempt {attempt} follows attempt {history.attempt}")
            if now < history.not_before:
                raise Violation(f"task {task} starts at {now}, before its retry delay ends at {history.not_before}")
            missing = [other for other in self.needs[task] if self.histories[other].end != "accepted"]
            if missing:
                raise Violation(f"task {task} starts before its dependencies {missing} are done")
            history.attempt, history.running = attempt, True
            history.sizes = dict(zip(SIZED, command.sizes, strict=True))

    def _on_accept(self, now: float, command: Accept) -> None:
        self._expect_open(command.task, "accepted")
        result = self.fresh.pop(command.task, None)
        if result is None or result.attempt != command.attempt or result.outcome is not AttemptOutcome.OK:
            raise Violation(f"{command} without a success of the current attempt: {result}")
        self.histories[command.task].end = "accepted"

    def _on_retry(self, now: float, command: Retry) -> None:
        task, history = command.task, self.histories[command.task]
        self._expect_open(task, "retried")
        if history.unwanted or self._is_charged_off(task, command.attempt, command.outcome):
            raise Violation(f"{command} although the task is cancelled, out of attempts, or too large: {history}")
        if not 0 <= command.delay <= LONGEST_DELAY:
            raise Violation(f"{command} waits too long")
        history.not_before = now + command.delay

    def _on_give_up(self, now: float, command: GiveUp) -> None:
        task, history = command.task, self.histories[command.task]
        self._expect_open(task, "given up")
        if history.running or command.attempt != history.attempt:
            raise Violation(f"{command} while attempt {history.attempt} is current, running: {history.running}")
        if command.outcome is AttemptOutcome.CANCELLED:
            if task not in self.asked:
                raise Violation(f"{command} without a request to cancel it")
            self.fresh.pop(task, None)
        elif task in self.fresh:
            if not self._is_charged_off(task, command.attempt, command.outcome):
                raise Violation(f"{command} with attempts left: {history}")
        elif not self._too_large(task):
            raise Violation(f"{command} without a cause: {history}")
        history.end = command.outcome.value

    def _on_kill(self, now: float, command: Kill) -> None:
        if command.outcome is AttemptOutcome.EXHAUSTED:
            attempt, name = self.grown.get(command.task, (0, ""))
            if attempt != command.attempt:
                raise Violation(f"{command} of a task that did not grow")
            self.doomed_by[command.task] = name
        elif self.to_kill.pop(command.task, None) != command.attempt:
            raise Violation(f"{command} without a request to cancel it")

    def _is_charged_off(self, task: int, attempt: int, outcome: AttemptOutcome) -> bool:
        """Applies the fresh result of the task; returns whether that was its last attempt."""
        history, result = self.histories[task], self.fresh.pop(task, None)
        if result is None or result.outcome is not outcome or result.attempt != attempt or outcome is AttemptOutcome.OK:
            raise Violation(f"task {task}: {outcome} of attempt {attempt} is not what was reported: {result}")
        if outcome is AttemptOutcome.UNBEGUN:
            spent = False
        elif outcome is AttemptOutcome.EXHAUSTED:
            # The scheduler chose the size: the task is out of attempts only if it was allocated the node's whole
            # capacity.
            name = self.doomed_by[task]
            history.exhausted[name] = max(history.exhausted.get(name, 0), history.sizes[name])
            spent = any(size >= self.capacity.get(name) for name, size in history.exhausted.items())
        elif outcome is AttemptOutcome.LOST:
            history.losses += 1
            spent = history.losses > MOST_LOSSES
        else:
            history.failures += 1
            spent = history.failures > self.graph.profile_of(task).retries
        return spent or self._too_large(task)

    def _too_large(self, task: int) -> bool:
        """Whether the node cannot run the task; learned resources need a node with a non-zero capacity."""
        profile = self.graph.profile[task]
        learned = self.learned[profile] if self.learned else ()
        lacking = self.graph.profiles[profile].resources.lacking_in(self.capacity)
        return bool(lacking) or any(not self.capacity.get(name) for name in learned)

    def _expect_open(self, task: int, verb: str) -> None:
        if self.histories[task].end:
            raise Violation(f"task {task} is {verb} after its end: {self.histories[task].end}")

    def cancelled_waiting(self, task: int) -> None:
        """The user cancelled a task that was not ready yet."""
        self._expect_open(task, "cancelled")
        if self.histories[task].announced:
            raise Violation(f"task {task} is cancelled as waiting although the scheduler has it")
        self.asked.add(task)
        self.histories[task].end = AttemptOutcome.CANCELLED.value

    def finish(self, status: bytearray) -> dict[str, int]:
        """Checks that oracle and dependency tracker agree on the end of every task; returns the number of tasks by kind
        of end."""
        ends: dict[str, int] = {}
        for task in topological_order(self.graph):
            history = self.histories[task]
            if self.graph.actions[task] is None:
                continue
            if not history.end and any(
                self.histories[other].end not in ("", "accepted", "queued") for other in self.needs[task]
            ):
                history.end = "doomed"
            if not history.end:
                if not self.draining:
                    raise Violation(f"task {task} never ended: {history}")
                history.end = "queued"
            expected = {
                "accepted": (TaskStatus.DONE,),
                "doomed": (TaskStatus.DOOMED,),
                "queued": (TaskStatus.READY, TaskStatus.WAITING),
            }
            if status[task] not in expected.get(history.end, (TaskStatus.FAILED,)):
                raise Violation(
                    f"task {task} is {history.end}, but {TaskStatus(status[task]).name} for the dependency tracker"
                )
            if history.running or (history.end == "doomed" and history.attempt):
                raise Violation(f"task {task} is {history.end} although it ran or still runs: {history}")
            ends[history.end] = ends.get(history.end, 0) + 1
        return dict(sorted(ends.items()))


def direct_needs(graph: Graph) -> list[list[int]]:
    """For each task its direct dependencies with an action; groups are replaced by their members."""
    needs: list[list[int]] = [[] for _ in range(len(graph))]
    for task in topological_order(graph):
        found: dict[int, None] = {}
        for other in graph.predecessors_of(task):
            found.update(dict.fromkeys([other] if graph.actions[other] is not None else needs[other]))
        needs[task] = list(found)
    return needs


_STATES = {
    WaitCause.RUNNING: (TaskState.RUNNING,),
    WaitCause.BUNDLED: (TaskState.RUNNING,),
    WaitCause.ENDING: (TaskState.ENDING,),
    WaitCause.RETRY: (TaskState.RESTING,),
    WaitCause.STOPPING: (TaskState.QUEUED, TaskState.RESTING),
    WaitCause.TURN: (TaskState.QUEUED,),
    WaitCause.THROTTLE: (TaskState.QUEUED,),
    WaitCause.RESOURCES: (TaskState.QUEUED,),
    WaitCause.LABEL: (TaskState.QUEUED,),
    WaitCause.LARGER_FIRST: (TaskState.QUEUED,),
    WaitCause.LOCALITY: (TaskState.QUEUED,),
}


def expect(condition: bool, answer: Answer, claim: str) -> None:
    if not condition:
        raise Violation(f"'why' is wrong about task {answer.task} ({claim}): {answer}")


def check_one_node(
    graph: Graph,
    statuses: Sequence[int],
    scheduler: Scheduler,
    now: float,
    coming: Collection[int],
    since: dict[int, float],
) -> Counter[WaitCause]:
    """Checks the answers of `why` for every task and for the whole run; returns the number of answers by cause.

    `coming`: ready tasks on their way to the scheduler. `since`: start times of running tasks.
    """
    order = popped(scheduler)

    def check_ready(answer: Answer) -> None:
        check_held(answer, scheduler, now, order)
        expect(answer.cause is not WaitCause.ARRIVING or answer.task in coming, answer, "it is not on its way")

    source = SingleNodeSource(graph, statuses, scheduler, now, driver=DriverFacts(since))
    answers: Counter[WaitCause] = Counter()
    ready_answers: dict[int, Answer] = {}
    for task, status in enumerate(statuses):
        answer = source.explain(task)
        if status == TaskStatus.READY:
            ready_answers[task] = answer
        check_answer(answer, statuses, graph.predecessors_of, check_ready, is_stopping=scheduler.draining)
        expect_words(answer, now)
        answers[answer.cause] += 1
    whole = source.whole()
    tasks = [task for task, action in enumerate(graph.actions) if action is not None]
    ready = [ready_answers[task] for task in tasks if task in ready_answers]
    expect_counts(whole, [statuses[task] for task in tasks], ready, under_way(scheduler))
    for group in whole.groups:
        check_ready(group.example)
    return answers


def expect_counts(
    whole: RunAnswer, statuses: Sequence[int], ready: Iterable[Answer], running: Collection[int], others: int = 0
) -> None:
    """Checks that the counts for the whole run match the answers for each ready task.

    `others`: number of tasks that could not be queried and form one further group.
    """
    found = Counter(statuses)
    counts = (whole.running, whole.ready, whole.waiting, whole.done, whole.failed, whole.doomed)
    by_status = [
        found[status] for status in (TaskStatus.WAITING, TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.DOOMED)
    ]
    if counts != (len(running), max(0, found[TaskStatus.READY] - len(running)), *by_status):
        raise Violation(f"'why' of the run does not match {found}, {len(running)} running: {whole}")
    alike = Counter(answer.kind() for answer in ready if answer.task not in running)
    groups = Counter({group.example.kind(): group.count for group in whole.groups if group.example.task >= 0})
    if groups != alike or sum(group.count for group in whole.groups) != groups.total() + others:
        raise Violation(f"'why' of the run groups tasks with different causes, {alike}, {others}: {whole}")


def under_way(scheduler: Scheduler) -> set[int]:
    """The running task of each batch, which is the one that was started first."""
    first: dict[int, int] = {}
    for task, bundle in reversed(scheduler.running.items()):
        first[id(bundle)] = task
    return set(first.values())


def popped(scheduler: Scheduler) -> list[int]:
    """The tasks of a queue, in the order in which they would leave it."""
    queue = deepcopy(scheduler.queue, {id(scheduler.columns): scheduler.columns})
    return [queue.pop(list(queue.lanes())) for _ in range(len(queue))]


def check_answer(
    answer: Answer,
    statuses: Sequence[int],
    needs: Callable[[int], Iterable[int]],
    check_ready: Callable[[Answer], None],
    *,
    is_stopping: bool = False,
) -> None:
    """Checks the answer for any task against the state of its dependencies; `check_ready` checks answers for ready
    tasks.

    `is_stopping`: the run starts no further tasks.
    """
    status = statuses[answer.task]
    if status == TaskStatus.READY:
        check_ready(answer)
    elif status == TaskStatus.WAITING:
        _check_waiting(answer, statuses, needs, check_ready, is_stopping)
    elif status == TaskStatus.DOOMED:
        expect(answer.cause is WaitCause.DOOMED and bool(answer.chain), answer, "it cannot run any more")
        _check_chain(answer, statuses, needs)
        expect(statuses[answer.chain[-1]] == TaskStatus.FAILED, answer, "the last of the chain has not failed")
    else:
        expect(answer.cause.value == TaskStatus(status).name.lower(), answer, "it is over")


def _check_waiting(
    answer: Answer,
    statuses: Sequence[int],
    needs: Callable[[int], Iterable[int]],
    check_ready: Callable[[Answer], None],
    is_stopping: bool,
) -> None:
    unfinished = {other for other in needs(answer.task) if statuses[other] <= TaskStatus.READY}
    expect((answer.cause is WaitCause.STOPPING) == is_stopping, answer, "whether the run is stopping")
    expect(answer.unfinished == len(unfinished), answer, "how many are not done")
    if not unfinished:
        expect(is_stopping or answer.cause is WaitCause.ARRIVING, answer, "nothing that it needs is missing")
        return
    expect(is_stopping or answer.cause is WaitCause.NEEDS, answer, "it needs others")
    _check_chain(answer, statuses, needs)
    root = answer.root
    assert root is not None
    expect(root.task == answer.chain[-1], answer, "the chain does not end at its root")
    if statuses[root.task] == TaskStatus.READY:
        check_ready(root)
    else:
        expect(all(statuses[other] > TaskStatus.READY for other in needs(root.task)), answer, "its root needs others")
        expect(root.cause in (WaitCause.ARRIVING, WaitCause.STOPPING), answer, "its root is on its way")
    can_start = root.starts is not None or (root.cause is WaitCause.RUNNING and not root.overdue)
    expect(answer.starts is None or (can_start and not is_stopping), answer, "it starts though its root does not")


def _check_chain(answer: Answer, statuses: Sequence[int], needs: Callable[[int], Iterable[int]]) -> None:
    expect(answer.links == len(answer.chain), answer, "the length of its chain")
    current = answer.task
    for link in answer.chain:
        expect(link in set(needs(current)), answer, f"task {current} does not need {link}")
        if answer.cause in (WaitCause.NEEDS, WaitCause.STOPPING):
            expect(statuses[link] <= TaskStatus.READY, answer, f"task {link} is over")
        current = link


def check_held(answer: Answer, scheduler: Scheduler, now: float, order: Sequence[int]) -> None:
    """Checks the answer for a ready task against the scheduler that has it; `order` is the order of its queue."""
    task, cause = answer.task, answer.cause
    state = scheduler.state.get(task, TaskState.ABSENT)
    if cause is WaitCause.ARRIVING:
        expect(state is TaskState.ABSENT, answer, "a scheduler has it")
        return
    expect(cause in _STATES and state in _STATES[cause], answer, f"it is {state.name}")
    expect(answer.attempt == scheduler.attempt.get(task, 0), answer, "its attempt")
    expect(answer.starts is None or answer.starts >= now, answer, "a start in the past")
    expect(answer.ahead is None or order[answer.ahead] == task, answer, "its place in the queue")
    expect(answer.queued == (len(order) if state is TaskState.QUEUED else 0), answer, "how many are queued")
    match cause:
        case WaitCause.RUNNING | WaitCause.BUNDLED:
            bundle = scheduler.running[task]
            first = next(other for other, its in scheduler.running.items() if its is bundle)
            expect((first == task) == (cause is WaitCause.RUNNING), answer, "which one of its bundle runs")
            late = now - answer.until if answer.until is not None else 0.0
            expect(late > 0.0 if answer.overdue else late < 1.0, answer, "whether it is late")
        case WaitCause.RETRY:
            expect((answer.until, task) in scheduler.resting, answer, "when it is tried again")
            expect(not scheduler.draining, answer, "no attempt is started any more")
        case WaitCause.STOPPING:
            expect(scheduler.draining and answer.starts is None, answer, "the scheduler goes on")
        case WaitCause.TURN:
            expect(scheduler.awaiting_ready, answer, "nothing is being decided")
        case WaitCause.THROTTLE:
            _check_cap(answer, scheduler)
        case WaitCause.RESOURCES | WaitCause.LABEL:
            expect(answer.shortage is not None, answer, "nothing is short")
            _check_shortage(answer, answer.shortage, scheduler)  # type: ignore[arg-type]
        case WaitCause.LOCALITY if answer.shortage is not None:
            _check_shortage(answer, answer.shortage, scheduler)
        case WaitCause.LARGER_FIRST | WaitCause.LOCALITY:
            urgent = [
                lane for lane in scheduler.queue.lanes() if scheduler.lanes[lane].passed_over >= scheduler.patience
            ]
            expect(answer.larger in {str(scheduler.lanes[lane].request()) for lane in urgent}, answer, "who goes first")
            expect(
                answer.first is not None and scheduler.columns.lane[answer.first] in urgent, answer, "which one does"
            )


def _check_cap(answer: Answer, scheduler: Scheduler) -> None:
    cap = answer.cap
    assert cap is not None
    bundles = {id(bundle): bundle for bundle in scheduler.running.values()}.values()
    running = sum(scheduler.lanes[bundle.lane].cap == cap.category for bundle in bundles)
    expect(running == cap.running and running >= cap.most, answer, f"{running} run under the cap")
    expect(scheduler.lanes[scheduler.columns.lane[answer.task]].cap == cap.category, answer, "it is under another cap")
    expect(cap.most == scheduler.contract.total[scheduler.contract.caps[cap.category]], answer, "how many may run")
    expect(answer.starts is None or cap.most > 0, answer, "it starts though none may")


def _check_shortage(answer: Answer, shortage: Shortage, scheduler: Scheduler) -> None:
    contract, lane = scheduler.contract, scheduler.columns.lane[answer.task]
    at = contract.names.index(shortage.resource)
    asked = dict(contract.needs[lane]).get(at, 0)
    bundles = {id(bundle): (task, bundle) for task, bundle in scheduler.running.items()}.values()
    held = {id(bundle): dict(bundle.taken).get(at, 0) for _, bundle in bundles}
    free = contract.total[at] - sum(held.values())
    expect(shortage.asked == asked > max(0, free) == shortage.free, answer, "what is free")
    expect(shortage.total == contract.total[at], answer, "what there is")
    expect(shortage.held_by == sum(amount > 0 for amount in held.values()), answer, "how many hold it")
    for holder in shortage.holders:
        bundle = scheduler.running.get(holder.task)
        expect(bundle is not None and held[id(bundle)] == holder.amount, answer, f"what task {holder.task} holds")


def expect_words(answer: Answer, now: float) -> None:
    """Checks that the answer has a sentence, which names the tasks that it is about."""
    text = paragraph(
        answer, SentenceWriter(lambda task: f"<{task}>", lambda moment: f"{moment:g}", lambda s: f"{s:g} s", now)
    )
    for task in (answer.task, *answer.chain[:1], *answer.chain[-1:]):
        expect(f"<{task}>" in text, answer, f"the sentence does not name task {task}: {text}")
