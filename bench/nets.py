"""Firings per second of the net engine on one core, and whether they cost more with a million tokens on a place.

    python bench/nets.py [--firings 100000] [--rounds 3]

Rows: a counter (one place, one step), the sum of numbers (two places), a counter among idle places, the sum with a
guard over one place and over two places, and a join by key. Each is measured with 1,000 and with 1,000,000 tokens on
its place; the best of some rounds counts, because the machine may be shared. Exit status 1 if the counter or the plain
sum stays under the bar, or if any cost grows by more than half.

With `--live` trivial tasks go through an executor on this machine, with and without a ledger: independent ones, and
chains of which each task waits for the one before it; beside them plain calls of the same executor.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from shoal.petri import Net, NetFlow, take

FEWEST_PER_SECOND = 100_000
MOST_GROWTH = 1.5
FEW, MANY = 1_000, 1_000_000


def counter(tokens: int) -> Net:
    """Counters that count for ever, all on one place."""
    net = Net("counter")
    number = net.place("number", [0] * tokens)

    @net.step(n=take(number))
    def up(n: int) -> object:
        return {number: n + 1}

    return net


def crowded(size: int) -> Net:
    """A counter among idle places and steps, one for each hundred of `size`."""
    net = counter(1)
    for number in range(size // 100):
        net.step(name=f"idle {number}", x=take(net.place(f"empty {number}")))(lambda x: None)
    return net


def _sum(tokens: int, **options: object) -> Net:
    """Numbers are added to one sum and come back, so that their place stays as full as it was."""
    net = Net("sum")
    values, total = net.place("values", range(tokens)), net.place("total", [0])

    @net.step(v=take(values), s=take(total), **options)
    def add(v: int, s: int) -> object:
        return {total: s + v, values: v}

    return net


def aggregate_sum(tokens: int) -> Net:
    return _sum(tokens)


def filtered_sum(tokens: int) -> Net:
    return _sum(tokens, when=lambda v: v >= 0)


def guarded_sum(tokens: int) -> Net:
    return _sum(tokens, when=lambda v, s: v >= 0 and s >= 0)


def keyed_pairs(tokens: int) -> Net:
    net = Net("pairs")
    left, right = net.place("left", range(tokens)), net.place("right", range(tokens))

    @net.step(a=take(left, key=abs), b=take(right, key=abs))
    def meet(a: int, b: int) -> object:
        return {left: a, right: b}

    return net


ROWS: list[tuple[str, Callable[[int], Net], bool]] = [
    ("counter", counter, True),
    ("aggregate sum", aggregate_sum, True),
    ("counter among 10 or 10,000 idle places", crowded, True),
    ("sum, guard over one place", filtered_sum, False),
    ("sum, guard over two places", guarded_sum, False),
    ("pairs by key", keyed_pairs, False),
]
"""Name, net, and whether the bar for firings per second is for it."""


def seconds_per_firing(net: Net, firings: int, rounds: int) -> float:
    flow = NetFlow(net)
    flow.next(limit=20_000)  # at the first look tokens are sorted in, and idle steps are found to be so
    best = float("inf")
    gc.collect()
    for _ in range(rounds):
        begun = time.process_time()
        flow.next(limit=firings)
        best = min(best, (time.process_time() - begun) / firings)
    assert flow.is_busy and not flow.problems(), flow.problems()
    return best


def independent(calls: int) -> Net:
    net = Net("independent")
    net.foreach(net.place("todo", range(calls)), abs, net.place("done"), name="work")
    return net


def chains(calls: int, width: int = 8) -> Net:
    net = Net("chains")
    net.loop(net.place("todo", [0] * width), _one_more, while_=lambda x: x < calls // width, put=net.place("done"))
    return net


def _one_more(x: int) -> int:
    return x + 1


def live(calls: int) -> None:
    """Calls per second through a net, and the processor time of this process for each."""
    from shoal import Executor

    print("| what | calls/s | of this process, µs per call |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Executor() as ex:
        os.chdir(folder)
        ex.submit(abs, 1).result()
        rows: list[tuple[str, Callable[[], object]]] = [
            ("plain calls", lambda: [future.result() for future in [ex.submit(abs, n) for n in range(calls)]])
        ]
        for build in (independent, chains):
            for ledger in (None, build.__name__):
                name = f"{build.__name__}, {'ledger' if ledger else 'no ledger'}"
                rows.append((name, partial(ex.run, build(calls), ledger=ledger)))
        for name, perform in rows:
            begun, spent = time.perf_counter(), time.process_time()
            perform()
            took, spent = time.perf_counter() - begun, time.process_time() - spent
            print(f"| {name} | {calls / took:,.0f} | {1e6 * spent / calls:.0f} |", flush=True)
        os.chdir("/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--firings", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()
    if options.live:
        live(options.calls)
        return 0
    broken = False
    print(f"| net | firings/s, {FEW:,} tokens | firings/s, {MANY:,} tokens | growth of cost |\n|---|---|---|---|")
    for name, build, has_bar in ROWS:
        few, many = (seconds_per_firing(build(tokens), options.firings, options.rounds) for tokens in (FEW, MANY))
        slow = has_bar and 1 / max(few, many) < FEWEST_PER_SECOND
        grows = many / few > MOST_GROWTH
        broken |= slow or grows
        verdict = " (broken)" if slow or grows else ""
        print(f"| {name} | {1 / few:,.0f} | {1 / many:,.0f} | {many / few:.2f}{verdict} |", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
