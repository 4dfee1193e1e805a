"""Branch and bound: what to pack, with a best value that all tasks see, and an early stop when that is good enough.

shoal run knapsack.py [room=20] [enough=1000]
"""

from typing import NamedTuple

from shoal import Net, count, each, param, read, take

ROOM, ENOUGH = param("room", 20), param("enough", 1000)
WORTH = [10, 7, 25, 24, 3, 9, 14, 11]
WEIGHT = [2, 1, 6, 5, 1, 3, 4, 3]


class Packing(NamedTuple):
    """The first `decided` things are packed or left out."""

    decided: int
    worth: int
    room: int


net = Net("knapsack")
todo = net.place("todo", [Packing(0, 0, ROOM)], type=Packing)
found = net.place("found", type=int)
best = net.place("best", [0], type=int)


@net.task(packing=take(todo), bound=read(best), group="search")
def expand(packing, bound):
    thing = packing.decided
    if thing == len(WORTH):
        return {found: packing.worth}
    if packing.worth + sum(WORTH[thing:]) <= bound:
        return None
    without = packing._replace(decided=thing + 1)
    packed = Packing(thing + 1, packing.worth + WORTH[thing], packing.room - WEIGHT[thing])
    return {todo: each([packed, without] if packed.room >= 0 else [without])}


@net.step(f=take(found), b=take(best), priority=2)
def improve(f, b):
    return {best: max(f, b)}


@net.step(b=read(best), when=lambda b: b >= ENOUGH, once=True, priority=1)
def enough(b):
    return net.eureka("search"), net.result(b)


@net.step(b=read(best), left=count(todo), new=count(found), when=lambda left, new: not left and not new, once=True)
def finish(b, left, new):
    return net.result(b)
