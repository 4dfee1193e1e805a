"""Ledgers as drivers write them, made up: runs one after another on one machine, on a cluster or of a net, that come to
their end or do not. What is drawn comes from a source of numbers, so that hypothesis can make a ledger smaller."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

import msgspec

from shoal.core.resources import FRACTION
from shoal.ledger.records import (
    DETACHED,
    TASKS_CANCELLED,
    CategoriesDeclared,
    CoresAsked,
    NetBegun,
    NetMarked,
    NodeLeft,
    NodeSeen,
    NodeTold,
    Record,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksCancelled,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    TasksVanished,
    ThrottleDecided,
    Usage,
)

EPOCH = 1_700_000_000.0
TICK = 0.1
"""The start of an attempt is written if it takes longer."""
NAMES = ("align", "merge", "plot")
ENDINGS = ("ends", "is killed", "is stopped", "goes on")
GIB = 1 << 30


class Workflow(msgspec.Struct):
    """What all runs of a ledger are of."""

    category: list[str]
    """By task; empty: a group, which runs nothing."""
    needs: list[list[int]]
    declared: dict[str, int]
    """Cores in units, by category."""
    apart: dict[int, int]

    def runs(self, task: int) -> bool:
        return bool(self.category[task])

    def cores(self, task: int) -> float:
        return self.apart.get(task, self.declared.get(self.category[task], FRACTION)) / FRACTION


class Part(msgspec.Struct):
    """One run as one process wrote it."""

    start: RunStarted
    records: list[Record] = []
    goes_on: bool = False
    """Somebody still writes it."""
    said: tuple[int, dict[str, int], bool] | None = None
    """What it says of this moment: tasks that run, by category, and whether they share cores."""


class History(msgspec.Struct):
    """All that was written, and when somebody looks."""

    workflow: Workflow
    parts: list[Part]
    now: float

    def records(self) -> list[Record]:
        return [record for part in self.parts for record in (part.start, *part.records)]


def workflow_of(random: Random, size: int) -> Workflow:
    """Tasks that need earlier ones; some of them group others."""
    categories = NAMES[: random.randint(1, len(NAMES))]
    category, needs = [], []
    for task in range(size):
        category.append("" if task and random.random() < 0.08 else random.choice(categories))
        few = random.choice((0, 0, 1, 1, 2))
        needs.append(sorted(random.sample(range(task), min(task, few))))
    declared = {
        name: random.choice((FRACTION // 2, FRACTION, 2 * FRACTION)) for name in categories if random.random() < 0.4
    }
    apart = {
        task: random.choice((FRACTION // 2, FRACTION))
        for task in range(size)
        if category[task] in declared and random.random() < 0.2
    }
    return Workflow(category, needs, declared, apart)


class Teller:
    """Writes the records of one run, in the order in which its driver would."""

    def __init__(
        self, random: Random, flow: Workflow, done: set[int], start: float, identity: str, node: float
    ) -> None:
        self.random, self.flow, self.now = random, flow, start
        self.to_run = [task for task in range(len(flow.category)) if flow.runs(task) and task not in done]
        self.before = set(done)
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.cancelled: set[int] = set()
        self.lost: set[int] = set()
        self.attempt: dict[int, int] = {}
        self.going: dict[int, float] = {}
        """Tasks that run, and since when."""
        self.told: set[int] = set()
        """Those of which the ledger has the start."""
        self.records: list[Record] = []
        self.start = RunStarted(
            identity,
            start,
            7,
            1,
            "boot",
            "here",
            "1.0",
            ["all"],
            [("cores", round(node * FRACTION)), ("memory", 8 * GIB)],
            sum(map(flow.runs, range(len(flow.category)))),
            len(self.to_run),
        )

    def head(self) -> None:
        flow, wanted = self.flow, self.to_run
        names = sorted({flow.category[task] for task in wanted})
        amounts = [[("cores", flow.declared[name])] if name in flow.declared else [] for name in names]
        self.records.append(CategoriesDeclared(names, amounts))
        if wanted:
            self.records.append(
                TasksPlanned(wanted, [f"t{task}" for task in wanted], [flow.category[t] for t in wanted])
            )
        planned = [task for task in range(len(flow.category)) if not flow.runs(task) or task in wanted]
        needs = [flow.needs[task] or [-1] for task in planned]
        if planned:
            flat = array("i", [need for row in needs for need in row])
            counts = array("i", map(len, needs))
            self.records.append(TasksLinked(array("i", planned).tobytes(), counts.tobytes(), flat.tobytes()))
        apart = {task: cores for task, cores in flow.apart.items() if task in wanted}
        if apart:
            tasks, cores = array("i", apart), array("i", apart.values())
            self.records.append(CoresAsked(tasks.tobytes(), cores.tobytes()))

    def is_open(self, task: int) -> bool:
        return task in self.wanted and task not in self.done | self.failed | self.cancelled | self.lost

    @property
    def wanted(self) -> set[int]:
        return set(self.to_run)

    def is_met(self, task: int) -> bool:
        """Whether all that a task needs is there; a group is when all of it is."""
        needed = self.flow.needs[task]
        return all(one in self.before | self.done or (not self.flow.runs(one) and self.is_met(one)) for one in needed)

    def ready(self) -> list[int]:
        return [task for task in self.to_run if self.is_open(task) and task not in self.going and self.is_met(task)]

    def lose(self, tasks: Sequence[int]) -> None:
        """What needs these will not run any more."""
        gone = set(tasks) | self.lost | self.failed | self.cancelled
        for task, needed in enumerate(self.flow.needs):
            if gone.intersection(needed) and task not in self.done:
                gone.add(task)
        self.lost = gone - self.failed - self.cancelled

    def begin(self, task: int) -> None:
        self.attempt[task] = self.attempt.get(task, 0) + 1
        self.going[task] = self.now

    def tell_starts(self, since: float, node: int = 0) -> None:
        """Attempts that have taken longer than a tick."""
        for task, begun in self.going.items():
            if task not in self.told and self.now - begun > since:
                self.told.add(task)
                self.records.append(TaskStarted(task, self.attempt[task], begun, 99, 5.0, 0, node))

    def end(self, task: int, outcome: str, *, final: bool, node: int = 0, skew: float = 0.0) -> None:
        begun = self.going.pop(task)
        self.told.discard(task)
        seconds = self.now - begun
        cpu = seconds * self.random.choice((0.0, 0.3, 1.0, 1.9))
        memory = self.random.choice((0, GIB // 4, GIB))
        limit = self.random.choice((0, GIB))
        message = "" if outcome == "ok" else self.random.choice(("exit status 3", "No module named 'x'"))
        head = (task, self.attempt[task], outcome, final, 0 if outcome == "ok" else 3)
        self.records.append(
            TaskEnded(
                *head,
                begun + skew,
                self.now + skew,
                cpu,
                0.0,
                memory,
                0,
                0,
                message,
                bytes([task]),
                b"c",
                b"i",
                [(10, 5)] if outcome == "ok" else [],
                None,
                Usage(disk=10) if outcome == "ok" else Usage(),
                limit,
                node,
            )
        )
        if final and outcome == "ok":
            self.done.add(task)
        elif final:
            self.failed.add(task)
            self.lose([task])

    def cancel(self, node: int = 0) -> None:
        """Somebody cancels a few tasks: those that run are ended, the others are left out."""
        open_ones = [task for task in self.to_run if self.is_open(task)]
        named = self.random.sample(open_ones, min(len(open_ones), self.random.randint(1, 2)))
        for task in named:
            if task in self.going:
                self.end(task, "cancelled", final=False, node=node)
        if named:
            groups = [task for task in range(len(self.flow.category)) if not self.flow.runs(task)]
            extra = groups[:1] if self.random.random() < 0.2 else []
            self.records.append(TasksCancelled(named + extra))
            self.cancelled.update(named)
            self.lose([*named, *extra])

    def stop(self, reason: str) -> None:
        """The run as a whole is ended: what runs is recorded, and nobody counts as cancelled."""
        for task in list(self.going):
            self.end(task, "cancelled", final=False)
        self.records.append(self.over(reason, 0))

    def over(self, outcome: str, cancelled: int) -> RunEnded:
        left = len(self.to_run) - len(self.done) - len(self.failed)
        return RunEnded(self.now, outcome, len(self.done), len(self.failed), left, cancelled)

    def finish(self) -> None:
        done = len(self.done) == len(self.to_run)
        outcome = "ok" if done else TASKS_CANCELLED if self.cancelled and not self.failed else "failed"
        self.records.append(self.over(outcome, len(self.cancelled)))


def local_part(
    random: Random, flow: Workflow, done: set[int], start: float, identity: str, ending: str
) -> tuple[Part, Teller]:
    """A run on one machine."""
    cores = random.choice((0.5, 1.0, 2.0, 4.0))
    teller = Teller(random, flow, done, start, identity, cores)
    teller.head()
    throttled = random.random() < 0.25
    most = 2 * cores if throttled else max(cores, 2.0)
    short = random.random() < 0.3
    steps = random.randint(0, 60) if ending != "ends" else 10_000
    taken = 0
    while taken < steps:
        taken += 1
        ready = teller.ready()
        while ready and sum(map(flow.cores, teller.going)) + flow.cores(ready[0]) <= most:
            teller.begin(ready.pop(0))
        if not teller.going:
            break
        teller.now += random.choice((0.0, 0.001, 0.05) if short else (0.0, 0.02, 0.5, 3.0, 40.0))
        teller.tell_starts(TICK)
        if throttled and random.random() < 0.5:
            name, running = random.choice(("", *NAMES)), len(teller.going)
            teller.records.append(
                ThrottleDecided(teller.now, "", name, random.choice((-1, 1, 3)), running, len(ready),
                                random.choice(("growing", "steady")), "disk", 0.7, 1.5, "so")
            )  # fmt: skip
        if random.random() < 0.04:
            teller.cancel()
            continue
        task = random.choice(list(teller.going))
        how = random.random()
        if how < 0.78:
            teller.end(task, "ok", final=True)
        elif how < 0.9:
            teller.end(task, random.choice(("failed", "lost", "exhausted")), final=False)
        else:
            teller.end(task, "failed", final=True)
    part = Part(teller.start, teller.records)
    _come_to(part, teller, random, ending, most > cores)
    return part, teller


def _come_to(part: Part, teller: Teller, random: Random, ending: str, may_oversubscribe: bool) -> None:
    if ending == "is stopped":
        teller.stop(random.choice(("received SIGINT", "it was cancelled", "the disk is full")))
    elif ending == "goes on":
        part.goes_on = True
        categories: dict[str, int] = {}
        for task in teller.going:
            name = teller.flow.category[task]
            categories[name] = categories.get(name, 0) + 1
        if random.random() < 0.8:  # what it said a moment ago may be a little behind what it wrote
            behind = random.choice((0, 0, 1)) if teller.done else 0
            crowded = may_oversubscribe and random.random() < 0.3
            part.said = (len(teller.going) + behind, categories, crowded)
    elif ending == "ends":
        teller.finish()


class Nodes:
    """The nodes of a cluster, as the client of one run sees them."""

    def __init__(self, random: Random, teller: Teller) -> None:
        self.random, self.teller = random, teller
        self.names: dict[str, int] = {}
        self.cores: dict[str, float] = {}
        self.present: list[str] = []
        self.on: dict[int, str] = {}
        """Where tasks run."""
        self.skew: dict[str, float] = {}

    def number(self, name: str, when: float) -> int:
        if name not in self.names:
            self.enter(name, when, known=False)
        return self.names[name]

    def enter(self, name: str, when: float, *, known: bool = True) -> None:
        self.names.setdefault(name, len(self.names) + 1)
        amounts = [("cores", round(self.cores[name] * FRACTION)), ("memory", 4 * GIB)] if known else []
        self.teller.records.append(NodeSeen(when, self.names[name], name, amounts))

    def come(self, name: str) -> None:
        self.cores.setdefault(name, self.random.choice((1.0, 2.0, 4.0)))
        self.skew.setdefault(name, self.random.choice((0.0, 0.0, -0.4, 0.4)))
        self.present.append(name)

    def free(self) -> str | None:
        for name in self.present:
            if sum(self.teller.flow.cores(task) for task, on in self.on.items() if on == name) < self.cores[name]:
                return name
        return None

    def look(self, entered: set[str]) -> None:
        """The client asks who is there and how they are."""
        teller = self.teller
        for name in self.present:
            if name not in entered:
                self.enter(name, teller.now)
                entered.add(name)
            mine = [task for task, on in self.on.items() if on == name]
            running = max(0, len(mine) + self.random.choice((0, 0, 0, 1)))
            cores = round(sum(map(teller.flow.cores, mine)) * FRACTION)
            told = NodeTold(teller.now, self.names[name], 100, 1, 2, 3, 4, 50, running, 1, 2, 3, cores, 0.25)
            teller.records.append(told if self.random.random() < 0.8 else NodeTold(teller.now, self.names[name]))
            for task in mine:
                if task not in teller.told and teller.now - teller.going[task] > 1.0:
                    teller.told.add(task)
                    begun = teller.going[task] + self.skew[name]
                    teller.records.append(TaskStarted(task, teller.attempt[task], begun, 0, 0.0, -1, self.names[name]))
        for name in sorted(entered - set(self.present)):
            teller.records.append(NodeLeft(teller.now, self.names[name]))
            entered.discard(name)


def cluster_part(
    random: Random, flow: Workflow, done: set[int], start: float, identity: str, ending: str, *, detach: bool = False
) -> tuple[Part, Teller]:
    """A run on a cluster, as its client writes it."""
    teller = Teller(random, flow, done, start, identity, 4.0)
    teller.head()
    part = Part(teller.start, teller.records)
    if not teller.to_run:  # then nothing is brought, and nobody looks who is there
        teller.finish()
        return part, teller
    if detach:
        teller.now += 0.02
        teller.records.append(teller.over(DETACHED, 0))
        return part, teller
    nodes, entered = Nodes(random, teller), set[str]()
    for name in ("n1", "n2")[: random.choice((0, 1, 2))]:  # of a factory's nodes none may be there yet
        nodes.come(name)
    steps, ended = random.randint(0, 60) if ending != "ends" else 10_000, False
    for _ in range(steps):
        if random.random() < 0.6:
            nodes.look(entered)
        if not nodes.present or random.random() < 0.05:
            nodes.come(f"f{len(nodes.cores)}")
        elif random.random() < 0.04:
            _lose_node(random, teller, nodes)
        for task in teller.ready():
            where = nodes.free()
            if where is None:
                break
            teller.begin(task)
            nodes.on[task] = where
        if not teller.going:
            if not teller.ready():
                ended = True
                break
            continue
        teller.now += random.choice((0.0, 0.05, 0.7, 2.0, 15.0))
        _end_on_cluster(random, teller, nodes)
    if ending == "ends" and ended and random.random() < 0.5:
        nodes.look(entered)
    _come_to_on_cluster(part, teller, random, ending)
    return part, teller


def _lose_node(random: Random, teller: Teller, nodes: Nodes) -> None:
    """A node goes with what runs there; nobody says that these tasks have ended."""
    name = random.choice(nodes.present)
    nodes.present.remove(name)
    gone = [task for task, on in nodes.on.items() if on == name]
    told = [task for task in gone if task in teller.told]
    for task in gone:
        del teller.going[task], nodes.on[task]
        teller.told.discard(task)
    if told:
        teller.records.append(TasksVanished(teller.now, told))


def _end_on_cluster(random: Random, teller: Teller, nodes: Nodes) -> None:
    task = random.choice(list(teller.going))
    name = nodes.on[task]
    if random.random() < 0.04:
        open_ones = [each for each in teller.to_run if teller.is_open(each)]
        named = random.sample(open_ones, 1)
        teller.records.append(TasksCancelled(named))
        teller.cancelled.update(named)
        teller.lose(named)
        for each in named:  # its end may still be in the log, or not
            if each in teller.going and random.random() < 0.3:
                teller.end(each, "ok", final=True, node=nodes.number(nodes.on.pop(each), teller.now))
                teller.cancelled.discard(each)
            elif each in teller.going:
                if each in teller.told:
                    teller.records.append(TasksVanished(teller.now, [each]))
                del teller.going[each], nodes.on[each]
        return
    del nodes.on[task]
    number, skew = nodes.number(name, teller.now), nodes.skew[name]
    how = random.random()
    if how < 0.8:
        teller.end(task, "ok", final=True, node=number, skew=skew)
    elif how < 0.9:
        teller.end(task, "lost", final=False, node=number, skew=skew)
    else:
        teller.end(task, "failed", final=True, node=number, skew=skew)


def _come_to_on_cluster(part: Part, teller: Teller, random: Random, ending: str) -> None:
    if ending == "is stopped":  # nodes end what runs, and the log has no word of it
        teller.records.append(teller.over("received SIGTERM", 0))
    elif ending == "goes on":
        part.goes_on = True
    elif ending == "ends":
        teller.finish()


def attached_parts(
    random: Random, flow: Workflow, done: set[int], start: float, identity: str, ending: str
) -> list[Part]:
    """A run that is left to the cluster and attached later, or never. Behind its second head comes what has ended
    meanwhile; that says when it was attached, beside the time of the beginning or, as it was recorded at first, in the
    place of that."""
    first, _ = cluster_part(random, flow, done, start, identity, "is killed", detach=True)
    if random.random() < 0.2:
        return [first]
    scratch, _ = cluster_part(random, flow, done, start + 0.1, identity, ending)
    again = start + random.choice((0.5, 5.0, 100.0, 1000.0))
    if random.random() < 0.3:
        head = msgspec.structs.replace(scratch.start, time=again)
    else:
        head = msgspec.structs.replace(scratch.start, time=first.start.time, attached=again)
    records: list[Record] = []
    for record in scratch.records:  # nodes are looked at from now on, and what has ended is read from the log
        if isinstance(record, NodeSeen):
            moment = record.time if not record.resources else again
            records.append(msgspec.structs.replace(record, time=max(again, moment) if record.resources else moment))
        elif isinstance(record, (NodeLeft, NodeTold, TasksVanished, RunEnded)):
            records.append(msgspec.structs.replace(record, time=max(again + 0.02, record.time)))
        elif not isinstance(record, TaskStarted) or record.time > again:
            records.append(record)
    return [first, msgspec.structs.replace(scratch, start=head, records=records)]


def net_part(
    random: Random, start: float, identity: str, ending: str, before: dict[str, int]
) -> tuple[Part, dict[str, int], float]:
    """A run of a net: its tasks are planned as they are handed out. What was done so far, and the time of the end."""
    cores = random.choice((1.0, 2.0))
    node = [("cores", round(cores * FRACTION))]
    head = RunStarted(identity, start, 7, 1, "boot", "here", "1.0", [], node, 0, 0)
    part = Part(head)
    if not before:
        part.records.append(NetBegun("net", "digest", None))
    part.records.append(NetMarked(start, {"in": 1, "out": 0}, {}, dict(before), [], 0))
    done, running, now, handed, failed = dict(before), dict[int, tuple[str, float]](), start, 0, 0
    for _ in range(random.randint(0, 25)):
        if len(running) < 2 * cores and random.random() < 0.7:
            handed += 1
            name = random.choice(("step", "fold"))
            part.records.append(TasksPlanned([handed], [f"{name} {handed}"], [name]))
            running[handed] = (name, now)
        now += random.choice((0.0, 0.1, 1.0))
        if running and random.random() < 0.6:
            task = random.choice(list(running))
            name, begun = running.pop(task)
            good = random.random() < 0.85
            figures = (begun, now, now - begun, 0.0, 0, 0, 0, "" if good else "exit status 3")
            part.records.append(
                TaskEnded(task, 1, "ok" if good else "failed", True, 0, *figures, b"p", b"", b"", [], None)
            )
            if good:
                done[name] = done.get(name, 0) + 1
            else:
                failed += 1
        _mark(part, random, now, running, done, cores)
    if ending in ("ends", "is stopped"):
        running.clear()
        part.records.append(NetMarked(now, {"out": 3}, {}, dict(done), [], 0))
        outcome = "ok" if ending == "ends" else "received SIGINT"
        part.records.append(RunEnded(now, outcome, sum(done.values()), failed, 0))
    part.goes_on = ending == "goes on"
    return part, done, now


def _mark(
    part: Part, random: Random, now: float, running: dict[int, tuple[str, float]], done: dict[str, int], cores: float
) -> None:
    if random.random() < 0.5:
        return
    under_way: dict[str, int] = {}
    for name, _ in running.values():
        under_way[name] = under_way.get(name, 0) + 1
    at_work = min(len(running), max(1, round(cores)))
    part.records.append(NetMarked(now, {"in": 1, "out": 0}, under_way, dict(done), [], at_work))


def history(random: Random, size: int, runs: int) -> History:
    """A ledger of a few runs of one workflow."""
    now = EPOCH + random.random()
    if random.random() < 0.12:
        parts, before = [], dict[str, int]()
        for number in range(runs):
            ending = random.choice(ENDINGS if number == runs - 1 else ENDINGS[:3])
            part, before, now = net_part(random, now, f"run{number}", ending, before)
            parts.append(part)
            now += 5.0
        return History(workflow_of(random, 0), parts, now)
    flow = workflow_of(random, size)
    done: set[int] = set()
    parts = []
    for number in range(runs):
        ending = random.choice(ENDINGS if number == runs - 1 else ENDINGS[:3])
        kind = random.choice((local_part, local_part, cluster_part, attached_parts))
        if kind is attached_parts:
            found = attached_parts(random, flow, done, now, f"run{number}", ending)
        else:
            found = [kind(random, flow, done, now, f"run{number}", ending)[0]]
        parts += found
        for record in found[-1].records:
            if isinstance(record, TaskEnded) and record.final:
                (done.add if record.outcome == "ok" else done.discard)(record.task)
            now = max(now, getattr(record, "ended", 0.0), getattr(record, "time", 0.0))
        step = random.choice((1.0, 3.0, 600.0)) if random.random() < 0.85 else -random.choice((2.0, 3600.0))
        now += step  # clocks are put right between two runs, and while one goes on
    if random.random() < 0.05 and not parts[-1].goes_on:
        parts = [mended(parts)]
    return History(flow, parts, now)


def mended(parts: list[Part]) -> Part:
    """A ledger that was damaged, as a run leaves it that mended it and was refused: the head of the last run, and the
    last result of every task."""
    ends = [record for part in parts for record in part.records if isinstance(record, TaskEnded) and record.final]
    return Part(parts[-1].start, list({record.task: record for record in ends}.values()))
