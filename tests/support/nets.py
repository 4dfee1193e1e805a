"""Nets that show what nets are for, and a driver that runs any of them here, finishing tasks in a random order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from shoal.petri import NOTHING, Failure, Net, NetFlow, count, each, read, take
from shoal.petri.records import Task


class Driver:
    """Runs the tasks of a flow in this process; `workers` of them are under way at a time."""

    def __init__(self, flow: NetFlow, seed: int = 0, workers: int = 3) -> None:
        self.flow = flow
        self.random = Random(seed)
        self.workers = workers
        self.running: list[Task] = []
        self.log: list[tuple[str, dict[str, Any]]] = []
        """Tasks that were finished, in that order: name and arguments."""
        self.ignored: list[int] = []
        self.most = 0
        """The largest number of tasks that were under way at once."""

    def fill(self) -> None:
        while len(self.running) < self.workers:
            task = self.flow.next()
            self._forget(self.flow.take_ignored())
            if task is None:
                break
            self.running.append(self.flow.extract(task))
        self.most = max(self.most, len(self.running))

    def finish_one(self) -> bool:
        """Run one of the tasks under way to its end; False if there is none."""
        self.fill()
        if not self.running:
            return False
        task = self.running.pop(self.random.randrange(len(self.running)))
        self.log.append((task.transition.name, task.arguments))
        try:
            returned = perform(task)
        except ValueError as error:
            followed = self.flow.fail(task.id, str(error))
        else:
            followed = self.flow.inject(task.id, returned, task.attempt)
        self._forget(followed.ignored)
        return True

    def run(self, limit: int = 100_000) -> NetFlow:
        """Go on until nothing is left to do."""
        for _ in range(limit):
            if not self.finish_one() and not self.flow.is_busy:
                return self.flow
        raise AssertionError("the net does not come to an end")

    def _forget(self, ignored: tuple[int, ...]) -> None:
        self.ignored += ignored
        self.running = [task for task in self.running if task.id not in ignored]


def perform(task: Task) -> object:
    """What a node would do; a command is its own result."""
    if task.transition.command is not None:
        return task.command_line()
    function = task.transition.function
    return function(**task.arguments) if function is not None else None


def run(net: Net, seed: int = 0, workers: int = 3) -> NetFlow:
    return Driver(NetFlow(net), seed, workers).run()


def newton(square: float, guess: float) -> Net:
    """The square root by Newton's method: a loop whose length depends on the data."""
    net = Net("newton")
    guesses = net.place("guesses", [guess])

    def improve(x: float) -> float:
        return (x + square / x) / 2

    root = net.loop(guesses, improve, while_=lambda x: abs(x * x - square) > 1e-9)

    @net.step(x=take(root))
    def answer(x: float) -> object:
        return net.result(x)

    return net


def knapsack(values: list[int], weights: list[int], room: int, target: int) -> Net:
    """Branch and bound over which things to pack; stops early when a packing is worth `target`."""
    net = Net("knapsack")
    todo = net.place("todo", [(0, 0, room)])
    found = net.place("found")
    best = net.place("best", [0])

    @net.task(node=take(todo), bound=read(best), group="search")
    def expand(node: tuple[int, int, int], bound: int) -> object:
        thing, worth, left = node
        if worth + sum(values[thing:]) <= bound:
            return None
        if thing == len(values):
            return {found: worth}
        kids = [(thing + 1, worth, left)]
        if weights[thing] <= left:
            kids.insert(0, (thing + 1, worth + values[thing], left - weights[thing]))
        return {todo: each(kids)}

    @net.step(f=take(found), b=take(best), when=lambda f, b: f > b)
    def improve(f: int, b: int) -> object:
        return {best: f}

    @net.step(b=read(best), when=lambda b: b >= target, once=True, priority=1)
    def enough(b: int) -> object:
        return net.eureka("search"), net.result(b)

    @net.step(b=read(best), open=count(todo), when=lambda open: open == 0, once=True, priority=-1)
    def finish(b: int, open: int) -> object:
        return net.result(b)

    return net


def tree(kids: Callable[[int], list[int]], root: int = 1) -> Net:
    """A tree that grows as it is walked; its numbers are added up in pairs once nothing can grow any more."""
    net = Net("tree")
    todo, seen = net.place("todo", [root]), net.place("seen")

    @net.task(node=take(todo))
    def expand(node: int) -> object:
        return {todo: each(kids(node)), seen: node}

    @net.task(a=take(seen), b=take(seen), left=count(todo), when=lambda left: left == 0)
    def add(a: int, b: int, left: int) -> object:
        return {seen: a + b}

    both = [lambda left: left == 0, lambda others: others == 1]

    @net.step(total=take(seen), others=count(seen), left=count(todo), when=both)
    def finish(total: int, others: int, left: int) -> object:
        return net.result(total)

    return net


def stream(credits: int) -> Net:
    """Numbers come from outside; at most `credits` of them are being worked on."""
    net = Net("stream", keep_open=True)
    arrived, done = net.place("arrived", type=int), net.place("done")
    window = net.window(credits)
    net.foreach(arrived, lambda x: x * x, done, name="square", within=window)
    return net


def word_count(parts: int, text: str) -> Net:
    """Map and reduce: how many parts there are, and which words, is known only when the text has been read."""
    net = Net("words")
    whole, pieces, pairs = net.place("whole", [text]), net.place("pieces"), net.place("pairs")

    @net.task(text=take(whole))
    def split(text: str) -> object:
        words = text.split()
        return {pieces: each(words[at::parts] for at in range(parts) if words[at::parts])}

    @net.task(piece=take(pieces))
    def tally(piece: list[str]) -> object:
        return {pairs: each((word, piece.count(word)) for word in dict.fromkeys(piece))}

    def word(pair: tuple[str, int]) -> str:
        return pair[0]

    @net.step(a=take(pairs, key=word), b=take(pairs, key=word))
    def merge(a: tuple[str, int], b: tuple[str, int]) -> object:
        return {pairs: (a[0], a[1] + b[1])}

    return net


def back_off(failures: int, tries: int) -> Net:
    """A call that fails some times; each time the net waits twice as long, and it gives up in the end."""
    net = Net("back-off")
    todo, failed, waiting = net.place("todo", [(0, 1)]), net.place("failed"), net.place("waiting")
    done, lost = net.place("done"), net.place("lost")

    @net.task(call=take(todo), on_error=failed, put=done)
    def fetch(call: tuple[int, int]) -> object:
        if call[0] < failures:
            raise ValueError("no answer")
        return call

    @net.step(failure=take(failed))
    def think(failure: Failure) -> object:
        tried, seconds = failure.arguments["call"]
        again = tried + 1 < tries
        return {waiting: (tried + 1, seconds * 2) if again else NOTHING, lost: NOTHING if again else failure.message}

    @net.task(call=take(waiting), put=todo)
    def delay(call: tuple[int, int]) -> object:
        return call

    return net


def counter(limit: int) -> Net:
    """The smallest loop of steps: one token that counts up to a limit."""
    net = Net("counter")
    number = net.place("number", [0])

    @net.step(n=take(number), when=lambda n: n < limit)
    def up(n: int) -> object:
        return {number: n + 1}

    return net


def aggregate_sum(size: int) -> Net:
    """Add up numbers: the only token of `sum` is the lock."""
    net = Net("aggregate sum")
    values, total = net.place("values", range(size)), net.place("sum", [0])

    @net.step(v=take(values), s=take(total))
    def add(v: int, s: int) -> object:
        return {total: s + v}

    return net
