"""One node's share of a run: the driver around its member, its launcher and the run's books.

It decides nothing: what happened is told to the member, what the member answers is done. The books are asked in the
order in which the member caused it, and a parcel goes out only after they have recorded it. Everything that a result
means is in the books before anything that follows from it is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.agent.about import JOINED, LEFT, ONE, About, Deeds, Entry, Seen, encode
from shoal.agent.answers import Since
from shoal.agent.chores import Chores
from shoal.agent.depot import Depot
from shoal.agent.ending import Ending, longest_time
from shoal.agent.goods import SOURCES, Goods, NoRoom, checksums_of, decode_sources, no_room_sentence
from shoal.agent.idle import Beside, Idle
from shoal.agent.limiting import Limiting
from shoal.agent.making import make_member
from shoal.agent.messages import LookAround, NodeNote, Promised, Said
from shoal.agent.stranded import Stranded
from shoal.agent.surroundings import Clock, Post
from shoal.broker.alarm import Alarm
from shoal.broker.member import Event, MemberCommand
from shoal.broker.messages import (
    Accept,
    CancelAsked,
    DrainAsked,
    DrainEnded,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskResult,
    TasksEnded,
    TimePassed,
    WakeAt,
)
from shoal.broker.peers import (
    HandBack,
    Heard,
    LittleLeft,
    Message,
    Parcel,
    PeersChanged,
    Prefetch,
    Roster,
    Send,
    TasksPlaced,
    Ticket,
    Woken,
)
from shoal.engine.removal import remove_quietly
from shoal.ledger.records import Usage
from shoal.model.quantities import show_seconds
from shoal.model.resources import FRACTION, Resources
from shoal.model.work import Work
from shoal.policy.retry import Outcome
from shoal.runner.launch import LauncherClient
from shoal.runner.seating import seating_for
from shoal.runner.wakeup import Wakeup
from shoal.store.base import NOBODY, Placeable, Store
from shoal.store.directory import NodeInfo

OUTCOMES = {outcome.value: outcome for outcome in Outcome}
LOOK_SECONDS = 5.0
"""Who has had nothing to do for so long asks the books whether there is something that nobody has."""


class Share:
    """What one node does for one run."""

    def __init__(
        self,
        run: str,
        about: About,
        work: Work,
        store: Store,
        deeds: Deeds,
        here: int,
        nodes: dict[int, NodeInfo],
        spool: str,
        post: Post,
        clock: Clock,
        wakeup: Wakeup,
        depot: Depot | None = None,
    ) -> None:
        """With a `depot` the nodes share no files. What the launcher says wakes whoever waits with `wakeup`."""
        self._watch, self._unwatch = wakeup.add, wakeup.discard
        self.run, self.about, self.work, self.store, self.here = run, about, work, store, here
        self.post, self.clock = post, clock
        self.nodes = nodes
        self.name = nodes[here].name
        self.mark = f"{here}.{run}"
        """Other agents of the run may be on this machine, and its client: what is ours is marked with the node."""
        self.chores = Chores(run, about, work.profiles, deeds)
        self._depot = depot
        self.goods = self._make_goods(depot, spool) if depot is not None else None
        self._places: dict[int, int] = {}
        """Of tasks that wait for their inputs: in whose place they will run."""
        self._fetching: dict[int, float] = {}
        """When they began to wait."""
        self._made: dict[int, list[tuple[int, int, bytes]]] = {}
        """By task: the files that its last attempt made."""
        self._absent: set[int] = set()
        """Nodes that are there, but take no part in this run."""
        self.stranded = Stranded(work)
        self.member = make_member(here, about, work, nodes[here].capacity(), self._roster())
        capacity = nodes[here].capacity()
        self.limiting = Limiting(about, self.member.broker, capacity, store, self.name, clock())
        self.alarm = Alarm()
        self.results: list[TaskResult] = []
        """What came about while commands were done; it is told at the next turn."""
        self._ended: dict[int, Entry] = {}
        self._courses: dict[tuple[int, int], bytes] = {}
        """Of attempts that have ended, by task and number."""
        """Attempts that have ended and that the broker has not judged yet."""
        self.since = Since()
        self._idle_since = clock()
        self.idle = Idle()
        self._little_left = False
        self.ending = Ending(nodes[here].ends_at)
        self._has_told_of_time = False
        self.launcher = self._make_launcher(spool, clock.offset)
        self.limiting.throttling.exclude(self.launcher.pid)

    def _roster(self) -> Roster:
        capacity = {number: node.capacity() for number, node in self.nodes.items() if number not in self._absent}
        return Roster(capacity, capacity)

    def _make_goods(self, depot: Depot, spool: str) -> Goods:
        listed = self.store.get_piece(SOURCES)
        sources = decode_sources(listed) if listed else {}
        sandboxes = os.path.join(spool, self.mark, "tasks")
        return Goods(
            self.run,
            self.here,
            self.work,
            self.store,
            depot.cache,
            depot.fetcher,
            sandboxes,
            lambda node: depot.grant(self.nodes[node].data) if node in self.nodes else None,
            sources,
            depot.origin,
            self.clock,
        )

    def _make_launcher(self, spool: str, offset: float) -> LauncherClient:
        folder = self._folder = os.path.join(spool, self.mark)
        running = os.path.join(folder, "running")
        os.makedirs(running, exist_ok=True)
        self.output = os.path.join(folder, "output")
        os.chdir(running if self.goods else self.about.base)  # where the launcher is, tasks are
        launcher = LauncherClient(self.mark)
        launcher.settle_in(running, self.output, os.path.join(folder, "processes"), offset)
        launcher.seating = seating_for(self.work.profiles, self.work.category.__getitem__)
        self.chores.read_output_from(self.output)
        return launcher

    # ---- turns ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes what nobody has, to deal it out if that is wanted; if that is nothing, looks for work."""
        resources = self.nodes[self.here].resources.amounts
        self.store.note(encode(Entry(-1, 0, JOINED, "", self.name, started=self.clock(), resources=resources)))
        placeable = self.store.unowned(self.here)
        self.tell(self.limiting.begin([ticket.task for ticket in placeable.tickets]))
        to = "" if self.about.to == ONE else self.about.to
        self.tell(TasksPlaced(placeable.tickets, placeable.holdings, to) if placeable.tickets else TimePassed())

    def turn(self, launcher_has_news: bool) -> None:
        """Tells the member what has happened since the last one."""
        now = self.clock()
        if self.goods is not None:
            self._take_arrivals(self.goods)
        results, self.results = self.results, []
        if launcher_has_news:
            results += self._hear_launcher()
        results += [self._process_ended(row) for row in self.ending.settled(now)]
        if self.ending.is_due(now):
            self._mind_the_time(now)
        if results:
            self.limiting.ended(now, results)
            self.tell(TasksEnded(results, ready_follows=True))
        caps = self.limiting.look(now)
        if caps is not None:
            self.tell(caps)
        if self.alarm.goes_off(now):
            self.tell(TimePassed())
        if self.member.tiers or not self.member.idle_cores():
            self._idle_since = now
        elif now - self._idle_since > LOOK_SECONDS:
            self._idle_since = now
            self.look_around()

    def look_around(self) -> None:
        placeable = self.store.unowned(self.here)
        if placeable.tickets:
            self.place(placeable)

    def beside(self, now: float, notes: Callable[[], Mapping[int, NodeNote]]) -> Beside | None:
        """A peer with tasks that could run here, where a core has been idle for long; `notes` of all nodes are costly.

        It is asked at once, whatever the member knows of it.
        """
        member = self.member
        rounds, others = member.rounds, member.roster.others()
        if not self.idle.is_time(now, is_searching=rounds.is_searching(member.roster)):
            return None
        told = {number: note for number, note in notes().items() if number in self.nodes and number != self.here}
        allowed = rounds.longest_search(others)
        found = self.idle.look(now, self.run, allowed, rounds.unable(), told, rounds.declined)
        if found is not None:
            self.tell(PeersChanged(self._roster()))
            self.tell(Heard(found.peer, Woken(found.shared)))
        return found

    def patience(self) -> float:
        """Seconds until something is to be done."""
        if self.results:
            return 0.0
        soonest = min(self._idle_since + LOOK_SECONDS, self.alarm.when)
        soonest = min(soonest, self.ending.doubts_until() or soonest, self.limiting.due() or soonest)
        return soonest - self.clock()

    def tell(self, event: Event) -> None:
        """The member hears of something, and what it says is done; also what follows from that."""
        waiting: list[Event] = [event]
        while waiting:
            waiting += self._obey(self.member.handle(self.clock(), waiting.pop(0)))

    def place(self, placeable: Placeable) -> None:
        if placeable.tickets:
            self.tell(TasksPlaced(placeable.tickets, placeable.holdings))

    def _obey(self, commands: Sequence[MemberCommand]) -> list[Event]:
        """Does what the member says; returns what it must hear because of that."""
        accepted: list[tuple[int, int]] = []
        follows: list[Event] = []
        for command in commands:
            match command:
                case Start():
                    self._start(command)
                case Accept(task, attempt):
                    accepted.append((task, attempt))
                case Send(peer, message):
                    follows += self._send(peer, message)
                case WakeAt(when):
                    self.alarm.set(when)
                case GiveUp():
                    follows += self._give_up(command)
                case Retry(task, attempt, outcome):
                    entry = self._ended.pop(task, None)
                    if entry is not None and outcome is not Outcome.UNBEGUN:
                        self.store.note(encode(msgspec.structs.replace(entry, verdict="retry")))
                case Kill(task, attempt, outcome):
                    self._kill(task, attempt, outcome)
                case HandBack():
                    follows += self._hand_back(command)
                case Prefetch(task):
                    if self.goods is not None:
                        self.goods.fetch_ahead(task)
        if accepted or self.member.broker.awaiting_ready:
            follows += self._complete(accepted)
        return follows

    def _complete(self, ended: list[tuple[int, int]]) -> list[Event]:
        placeable = Placeable([], [])
        if ended:
            entries = [encode(self._ended.pop(task)) for task, _ in ended]
            made = [self._made.pop(task, []) for task, _ in ended] if self.goods is not None else ()
            _, placeable = self.store.complete(self.here, ended, entries, made)
        return [TasksPlaced(placeable.tickets, placeable.holdings), *self._what_is_left()]

    def _what_is_left(self) -> list[Event]:
        """When there is less to do than there are cores, data does not decide any more; that is told once."""
        ready = self.store.seen_ready
        cores = sum(node.resources.get("cores") for node in self.nodes.values()) // FRACTION
        little = ready < cores if self._little_left else ready < cores // 2
        if little == self._little_left:
            return []
        self._little_left = little
        return [LittleLeft(little)]

    def _give_up(self, command: GiveUp) -> list[Event]:
        task = command.task
        if command.outcome is Outcome.MISSING:
            placeable = self.store.missing(Ticket(task, command.attempt), self.here)
            return [TasksPlaced(placeable.tickets, placeable.holdings)] if placeable.tickets else []
        entry = self._ended.pop(task, None)
        if command.cramped is not None:
            now, why = self.clock(), no_room_sentence(self.chores.deed(task).inputs, command.cramped)
            entry = Entry(task, command.attempt, "failed", "failed", self.name, 127, now, now, message=why)
        if entry is None:
            entry = Entry(task, command.attempt, "failed", command.outcome.value, self.name)
        self.store.give_up(task, command.attempt, encode(msgspec.structs.replace(entry, verdict="failed")))
        return []

    def _hand_back(self, command: HandBack) -> list[Event]:
        """This node cannot run it: the books have it, and one that can is told to look; without such a one it waits."""
        lacking = command.lacking
        if command.for_room:
            again = self.store.hand_back(command.ticket, self.here)
            ticket = again and msgspec.structs.replace(again, cramped=command.ticket.cramped)
            return [TasksPlaced([ticket])] if ticket is not None else []
        able = [node for node in self.member.roster.able(lacking) if node != self.here] if lacking else []
        if lacking is not None and not able:
            told = self.stranded.keep(command.ticket, self._capacities())
            if told is not None:
                self.store.note(encode(Entry(-1, 0, "note", "", self.name, message=told)))
        elif self.store.hand_back(command.ticket, NOBODY) is not None and able:
            self.post.send(self.nodes[able[0]].address, LookAround(self.run))
        return []

    def _capacities(self) -> list[Resources]:
        """Of all nodes that take part."""
        return [node.capacity() for number, node in self.nodes.items() if number not in self._absent]

    # ---- others --------------------------------------------------------------------------------------------------

    def _send(self, peer: int, message: Message) -> list[Event]:
        if type(message) is Parcel and message.tickets:
            again = self.store.moved(message.tickets, self.here, peer, message.number)
            if again.tickets:
                self.member.parcels.settle(message.number)
                self._absent.add(peer)  # the books count it as lost: it must not be sent the same again
                return [PeersChanged(self._roster()), TasksPlaced(again.tickets, again.holdings)]
            if self.store.recorded(self.here) < message.number:
                return []  # we were declared lost: what we had is placed anew by others
        node = self.nodes.get(peer)
        if node is not None:
            self.post.send(node.address, Said(self.run, self.here, message))
        return []

    def hear(self, said: Said) -> None:
        self.tell(Heard(said.sender, said.message))

    def promised(self, tickets: Sequence[Ticket]) -> None:
        """What was on its way from a lost node: what has not arrived is claimed."""
        lacking = [ticket for ticket in tickets if not self.has(ticket.task)]
        if lacking:
            self.place(self.store.claim(self.here, lacking))

    def peers_changed(self, nodes: dict[int, NodeInfo]) -> None:
        self.nodes = nodes
        self.tell(PeersChanged(self._roster()))
        found = self.stranded.take(self._capacities())
        if found:
            self.tell(TasksPlaced(found))

    def lose(self, node: int) -> None:
        """A node's lease is over: what it had is placed anew from here."""
        placeable, promised = self.store.lose(node, self.here)
        for owner, tickets in promised.items():
            if owner == self.here:
                self.promised(tickets)
            elif owner in self.nodes:
                self.post.send(self.nodes[owner].address, Promised(self.run, tickets))
        self.place(placeable)

    def cancel(self, tasks: Sequence[int]) -> None:
        self.stranded.drop(tasks)
        self.tell(CancelAsked(list(tasks)))

    def note_gone(self, name: str) -> None:
        """Says in the log that a node takes part no more."""
        self.store.note(encode(Entry(-1, 0, LEFT, "", name, ended=self.clock())))

    # ---- what runs -----------------------------------------------------------------------------------------------

    def _start(self, command: Start) -> None:
        orders = []
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            if self.goods is not None:
                self._want(self.goods, task, attempt, command.place)
                continue
            order, obstacle = self.chores.order(task, attempt, self.work.category[task])
            if obstacle is None:
                orders.append(order)
            else:
                self._could_not_start(task, attempt, obstacle)
        if orders:
            self.launcher.start(command.place, orders)
        self._tell_notes()

    def _tell_notes(self) -> None:
        while self.chores.notes:
            self.store.note(encode(Entry(-1, 0, "note", "", self.name, message=self.chores.notes.pop())))

    def _could_not_start(self, task: int, attempt: int, why: str) -> None:
        now = self.clock()
        self._ended[task] = Entry(task, attempt, "failed", "failed", self.name, 127, now, now, message=why)
        self.results.append(TaskResult(task, attempt, Outcome.FAILED))

    def _want(self, goods: Goods, task: int, attempt: int, place: int) -> None:
        """Starts a task when all that it reads is here."""
        self._places[task] = place
        self._fetching[task] = self.clock()
        is_here = goods.want(task, attempt)
        if is_here is True:
            self._start_in_folder(goods, task, attempt)
        elif is_here is not False:
            self._never_began(task, attempt, is_here)

    def _never_began(self, task: int, attempt: int, no_room: NoRoom | None) -> None:
        """What it reads is not there any more, or does not fit here."""
        outcome = Outcome.MISSING if no_room is None else Outcome.NO_ROOM
        need, room = (no_room.need, no_room.room) if no_room is not None else (0, 0)
        self.results.append(TaskResult(task, attempt, outcome, need=need, room=room))

    def _start_in_folder(self, goods: Goods, task: int, attempt: int) -> None:
        self._fetching[task] = self.clock() - self._fetching[task]
        folder, obstacle = goods.furnish(task, attempt, self.chores.deed(task))
        if obstacle is None:
            order = self.chores.order_in(folder, task, attempt, self.work.category[task])
            self.launcher.start(self._places.pop(task), [order])
            self._tell_notes()
        else:
            goods.clear(task, attempt)
            self._could_not_start(task, attempt, obstacle)

    def _take_arrivals(self, goods: Goods) -> None:
        ready, failed = goods.arrived()
        if goods.inflow.rate is not None:
            self.member.links_measured(goods.inflow.rate)
        for task, attempt in ready:
            self._start_in_folder(goods, task, attempt)
        for task, attempt, no_room in failed:
            self._never_began(task, attempt, no_room)

    def _remember_sizes(self, made: Sequence[tuple[int, int, bytes]]) -> None:
        if self.member.gathering is not None:
            for file, size, _ in made:
                self.member.gathering.made(file, size)

    def _kill(self, task: int, attempt: int, outcome: Outcome) -> None:
        if self.goods is not None and self.goods.is_coming(task):
            self.goods.forget(task)
            self.results.append(TaskResult(task, attempt, outcome))
        else:
            self.launcher.kill(task, outcome, "cancelled")

    def _hear_launcher(self) -> list[TaskResult]:
        told = self.launcher.collect()
        if told is None:
            return self._replace_launcher()
        self.since.hear(told, self.member.broker.running)
        self._courses |= {row[1:3]: row[3] for row in told if row[0] == "course"}
        ended = self.ending.sift([row for row in told if row[0] == "ended"], self.clock())
        return [self._process_ended(row) for row in ended]

    def _replace_launcher(self) -> list[TaskResult]:
        self._unwatch(self.launcher.descriptor)
        lost = self.launcher.replace()
        self._watch(self.launcher.descriptor)
        self.limiting.throttling.exclude(self.launcher.pid)
        now = self.clock()
        for task, attempt in lost:
            if self.goods is not None:
                self.goods.clear(task, attempt)
            self._ended[task] = Entry(task, attempt, "failed", "lost", self.name, 0, now, now, message="lost")
        return [TaskResult(task, attempt, Outcome.LOST) for task, attempt in lost]

    def _process_ended(self, row: tuple[Any, ...]) -> TaskResult:
        _, task, attempt, ended_as, status, started, ended, user, system, max_rss, at, size, message, tail, *used = row
        outcome = OUTCOMES[ended_as]
        made: list[tuple[int, int, bytes]] = []
        seen: tuple[Seen, ...] = ()
        listing = b""
        if outcome is Outcome.OK:
            if self.goods is None:
                seen, listing, missing = self.chores.look(task)
            else:
                made, missing = self.goods.collect(task, attempt, self.chores.deed(task), ended - started)
                self._made[task] = made
                self._remember_sizes(made)
            if missing is not None:
                outcome, message = Outcome.FAILED, missing
        if self.goods is None and outcome not in (Outcome.OK, Outcome.UNBEGUN):
            message = "; ".join(filter(None, (message, self._take_away(task))))
        if self.goods is not None:
            self.goods.clear(task, attempt)
            self.member.placement.moved(self._fetching.pop(task, 0.0), ended - started)
        self.limiting.weigh(task, max(max_rss, Usage(*used).tree_memory))
        verdict = "done" if outcome is Outcome.OK else "failed"
        figures = (status, started, ended, user, system, max_rss, message)
        output = self.chores.output_of(at, size, tail)
        sizes = tuple(size for _, size, _ in made)
        self._ended[task] = Entry(
            *(task, attempt, verdict, outcome.value, self.name, *figures, output, tuple(used), 0, sizes),
            course=self._courses.pop((task, attempt), b""),
            seen=seen,
            listing=listing,
            checksums=checksums_of(made),
        )
        return TaskResult(task, attempt, outcome, ended - started)

    def _take_away(self, task: int) -> str:
        """Nothing half-made stays under its final name. If this node was taken for lost, what stands there may be of
        the attempt that another one has begun."""
        if not self.chores.has_half_made(task) or self.store.whereabouts(task)[2] != self.here:
            return ""
        return self.chores.take_away(task)

    # ---- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Starts nothing more; others may have what waits here."""
        self.ending.leaving = True
        self.tell(DrainAsked())

    def _mind_the_time(self, now: float) -> None:
        """Starts nothing that could not finish before the node is taken away."""
        broker = self.member.broker
        too_late = self.ending.is_too_late(broker, now)
        if too_late != broker.draining:
            self.tell(DrainAsked() if too_late else DrainEnded())
        expected, most = self.ending.expected(broker), longest_time(self.nodes, now)
        if self._has_told_of_time or not too_late or not broker.queue or min(self.nodes) != self.here:
            return
        if expected is not None and most is not None and expected > most:
            self._has_told_of_time = True
            about = show_seconds(round(expected))
            why = f"what waits takes about {about}, and no node is there for so long; it waits for one"
            self.store.note(encode(Entry(-1, 0, "note", "", self.name, message=why)))

    def why_stranded(self, task: int) -> str:
        return self.stranded.why(task, self._capacities())

    def has(self, task: int) -> bool:
        return task in self.member.broker.state or task in self.stranded or task in self._ended

    def running(self) -> int:
        return len(self.member.broker.running)

    def close(self) -> None:
        """Ends whatever still runs here."""
        self.launcher.close()
        self.limiting.close()
        self.chores.close()
        if self.goods is not None:
            self.goods.close()
        remove_quietly(self._folder)
