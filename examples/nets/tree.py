"""A tree that grows as it is walked, added up in pairs after its last node was expanded.

shoal run tree.py [depth=5]
"""

from shoal import Net, count, each, param, take

DEPTH = param("depth", 5)

net = Net("tree")
todo = net.place("todo", [(1, 0)])
sums = net.place("sums")


@net.task(node=take(todo))
def expand(node):
    number, depth = node
    kids = [(number * 2 + kid, depth + 1) for kid in range(1 + number % 3)] if depth < DEPTH else []
    return {todo: each(kids), sums: number}


@net.task(a=take(sums), b=take(sums), left=count(todo), when=lambda left: left == 0)
def add(a, b, left):
    return {sums: a + b}


@net.step(total=take(sums), others=count(sums), left=count(todo), when=lambda others, left: others == 1 and left == 0)
def finish(total, others, left):
    return net.result(total)
