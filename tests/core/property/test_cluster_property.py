"""Transfers, two-level queues and the run store in memory against simple reference models."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.peer_messages import LONGEST_PAUSE, ReadyTask, Transfers
from shoal.core.policies.order import ORDERS, LaneQueue, TaskColumns, TwoLevelQueue
from shoal.core.store.memory import STRIDE, MemoryStore, ReadyBatch, TaskStanding
from shoal.core.work import Work, assemble

SEEDS = st.integers(0, 2**32)


@settings(deadline=None)
@given(seed=SEEDS, loss=st.floats(0.0, 0.7), count=st.integers(1, 25))
def test_over_a_wire_that_loses_doubles_and_mixes_each_transfer_is_taken_in_once(
    seed: int, loss: float, count: int
) -> None:
    random = Random(seed)
    sender, receivers = Transfers(), {1: Transfers(), 2: Transfers()}
    wire: list[tuple[int, str, object]] = []
    sent = [[ReadyTask(task)] for task in range(count)]
    taken: list[int] = []
    now, to_send = 0.0, list(sent)
    while to_send or sender.unsettled:
        now += 0.25
        if to_send:
            peer = random.choice((1, 2))
            wire.append((peer, "parcel", sender.wrap(now, peer, to_send.pop(0), 0)))
        wire += [(peer, "parcel", parcel) for peer, parcel in sender.due(now)]
        random.shuffle(wire)
        under_way, wire = wire, []
        for peer, kind, what in under_way:
            fate = random.random()
            if fate < loss:
                continue
            if fate > 0.9:
                wire.append((peer, kind, what))  # it comes again, later
            if kind == "got":
                sender.settle(what)  # type: ignore[arg-type]
            else:
                if receivers[peer].is_fresh(0, what):  # type: ignore[arg-type]
                    taken += [ticket.task for ticket in what.tickets]  # type: ignore[attr-defined]
                wire.append((peer, "got", what.number))  # type: ignore[attr-defined]
    assert sorted(taken) == list(range(count))


@given(times=st.lists(st.floats(0.0, 30.0), min_size=1, max_size=20))
def test_a_transfer_is_never_silent_for_longer_than_the_longest_pause(times: list[float]) -> None:
    parcels = Transfers()
    parcels.wrap(0.0, 1, [ReadyTask(1)], 0)
    now = 0.0
    for step in times:
        now += step
        parcels.due(now)
        assert now < parcels.next_due() <= now + LONGEST_PAUSE
    parcels.forget_others(frozenset({2}))
    assert not parcels.unsettled


@settings(deadline=None)
@given(seed=SEEDS, order=st.sampled_from(sorted(ORDERS)), steps=st.integers(1, 80))
def test_tiers_are_two_queues_that_look_like_one(seed: int, order: str, steps: int) -> None:
    random = Random(seed)
    tasks = 60
    lane = array("i", (random.randrange(3) for _ in range(tasks)))
    weight = [random.randrange(5) for _ in range(tasks)]
    columns = TaskColumns(lane, [random.randrange(3) for _ in range(tasks)], weight, [])
    tiers = TwoLevelQueue(lambda: ORDERS[order](columns, 2, Random(1)), weight)
    local: set[int] = set()
    shared: set[int] = set()
    absent = list(range(tasks))
    for _ in range(steps):
        match random.choice(("local", "shared", "shared", "pop", "remove", "release")):
            case "local" if absent:
                task = absent.pop(random.randrange(len(absent)))
                tiers.make_local(task)
                tiers.push(task)
                local.add(task)
            case "shared" if absent:
                task = absent.pop(random.randrange(len(absent)))
                tiers.push(task)
                shared.add(task)
            case "pop" if local or shared:
                lanes = list(tiers.lanes())
                asked = random.sample(lanes, random.randint(1, len(lanes)))
                task = tiers.pop(asked)
                assert lane[task] in asked
                first = {other for other in local if lane[other] in asked}
                assert task in (first or shared)
                (local if first else shared).remove(task)
            case "remove" if local or shared:
                task = random.choice(sorted(local | shared))
                tiers.remove(task)
                local.discard(task)
                shared.discard(task)
            case "release" if local:
                count = random.randint(1, len(local))
                assert isinstance(tiers.own, LaneQueue)
                freed = tiers.lightest(tiers.own, count)
                tiers.release(count)
                assert len(freed) == count
                stays = local - set(freed)
                assert max(weight[task] for task in freed) <= min((weight[task] for task in stays), default=9)
                local, shared = stays, shared | set(freed)
        assert set(tiers.local) == local
        assert sorted(tiers.waiting()) == sorted(local | shared)
        assert len(tiers) == len(local) + len(shared)
        assert bool(tiers) == bool(local or shared)
        assert {each: tiers.queued_in(each) for each in tiers.lanes()} == Counter(lane[task] for task in local | shared)


def draw_work(random: Random) -> Work:
    """Tasks with one output each; each reads up to three outputs of earlier ones."""
    tasks = random.randint(1, 12)
    reads = [random.sample(range(task), random.randint(0, min(3, task))) for task in range(tasks)]
    return assemble("test", [1.0] * tasks, reads, [[task] for task in range(tasks)], [10] * tasks)


@settings(deadline=None, max_examples=200)
@given(seed=SEEDS, steps=st.integers(1, 120))
def test_the_store_hands_out_each_task_to_one_node_and_all_come_to_an_end(seed: int, steps: int) -> None:
    """Nodes complete, give up, give away and die; a task is in one hand at a time, and its inputs exist."""
    random = Random(seed)
    work = draw_work(random)
    store = MemoryStore(work, 3)
    nodes = [0, 1, 2]
    held: dict[int, tuple[int, ReadyTask]] = {}
    files: dict[int, int] = {}
    numbers: Counter[int] = Counter()

    def hand_out(placeable: ReadyBatch) -> None:
        for ticket in placeable.tickets:
            assert ticket.task not in held
            assert all(file in files for file in work.inputs_of(ticket.task))
            node = random.choice(nodes)
            store.owned([ticket.task], node)
            held[ticket.task] = (node, ticket)

    hand_out(store.begin())
    while store.left:
        steps -= 1
        task = random.choice(sorted(held))
        node, ticket = held[task]
        what = random.random() if steps > 0 else 0.0
        if what < 0.6:
            if any(file not in files for file in work.inputs_of(task)):
                del held[task]
                hand_out(store.missing(ReadyTask(task, ticket.attempt + 1)))
                continue
            del held[task]
            files[task] = node
            accepted, placeable = store.complete(node, [(task, ticket.attempt + 1)])
            assert accepted == [task]
            assert store.complete(node, [(task, ticket.attempt + 1)]) == ([], ReadyBatch([], []))
            hand_out(placeable)
        elif what < 0.65:
            del held[task]
            store.give_up(task, ticket.attempt + 1)
        elif what < 0.85:
            other = random.choice(nodes)
            numbers[node] += 1
            assert not store.moved([ticket], node, other, numbers[node]).tickets
            held[task] = (other, ticket)
            store.moved([ticket], node, node, numbers[node])  # the same parcel again
            assert store.owner[task] == other
        else:
            nodes.remove(node)
            nodes.append(max(nodes, default=0) + 10 + node)
            files = {file: place for file, place in files.items() if place != node}
            mine = {lost: ticket for lost, (owner, ticket) in held.items() if owner == node}
            held = {kept: value for kept, value in held.items() if kept not in mine}
            hand_out(store.lose(node)[0])
            before = bytes(store.standing), bytes(store.generation), store.left
            for lost, old in mine.items():
                assert store.complete(node, [(lost, old.attempt + 1)])[0] == []
                store.give_up(lost, old.attempt + 1)
                assert store.hand_back(old) is None
                assert store.missing(ReadyTask(lost, old.attempt + 1)) == ReadyBatch([], [])
            assert before == (bytes(store.standing), bytes(store.generation), store.left)
    assert not held
    assert not store.ready_count
    assert {TaskStanding(standing) for standing in store.standing} <= {
        TaskStanding.DONE,
        TaskStanding.FAILED,
        TaskStanding.DOOMED,
    }
    assert max(store.generation) * STRIDE < 2**31
