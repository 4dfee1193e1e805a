"""Nets: workflows whose shape depends on data.

A net has **places**, which hold tokens, and **transitions**, which take tokens and make others. Tokens are any Python
values. A transition is a **step**, which the engine runs itself, or a **task**, which runs on a node::

    net = Net("search")
    todo, found, best = net.place("todo", [root]), net.place("found"), net.place("best", [inf])

    @net.task(node=take(todo), bound=read(best), category="expand", group="expand")
    def expand(node, bound):
        kids = [kid for kid in children(node) if kid.cost < bound]
        return {todo: each(kids), found: node if node.is_goal else NOTHING}

    @net.step(f=take(found), b=take(best), when=lambda f, b: f.cost < b)
    def improve(f, b):
        return {best: f.cost}

    @net.step(b=read(best), open=count(todo), when=lambda open: open == 0, once=True, priority=-1)
    def finish(b, open):
        return net.result(b)

**Ports.** `take(place)` takes a token away when the transition fires, `read(place)` sees one and leaves it, and
`count(place)` is the number of tokens there, those included that tasks which still run have taken. The oldest tokens
come first. Two ports of one transition never hold the same token. Ports with `key=` get tokens with equal keys, found
by hash.

**Guards.** `when=` is a function of some ports, named by its parameters, or a list of such functions that must all
hold. Guards and keys must be pure: their answer may depend on their arguments only, because it is remembered. A guard
over one port is asked once for each token. A guard over several ports without `key=` is asked once for each combination
of their tokens. A guard over tokens and a count is asked anew whenever the transition is looked at, from the oldest
token on; write it as a list of guards where that can be.

**What is returned.** A mapping from places to tokens: a value is one token, `each(values)` one token per element,
`NOTHING` none. With `put=place` the value itself is the token (also None). `result(value)` is the answer of the net and
ends it. `eureka("group")` makes the results of all running tasks of that group ignored and lets none of it fire any
more, unless `again=True`; the tokens of those tasks are gone. A tuple of these does them all. All tokens of a result
appear at once, after all of them were checked, or none does.

**Order.** Steps fire before tasks; among either, the highest `priority` first; among equals, in turn, or by chance with
a seed. No transition starves behind others of its priority. Steps must be quick and pure functions of their tokens: a
run that is resumed repeats them. They must not change the tokens they get. `next` takes a bounded number of looks at
steps; a task gets its turn after them even if steps go on for ever.

**Failure.** When a task has failed for good its tokens go back to their places. They are not offered to the same
transition again, until a retry, but others may take them. With `on_error=place` a `Failure` goes there instead. A step
or guard that raises is set aside: its tokens go back and the rest of the net goes on.

**End.** A run is over when some transition gave a result, or when nothing can fire and nothing runs, unless the net is
kept open for tokens from outside and has not been closed.

Cost: a firing costs O(ports), however many tokens and places there are; a token costs O(ports on its place).
"""

from shoal.petri.interpreter import NetFlow
from shoal.petri.language import NOTHING, Eureka, Failure, Place, Result, count, each, eureka, read, result, take
from shoal.petri.net import Net, net_of_graph

__all__ = [
    "NOTHING",
    "Eureka",
    "Failure",
    "Net",
    "NetFlow",
    "Place",
    "Result",
    "count",
    "each",
    "eureka",
    "net_of_graph",
    "read",
    "result",
    "take",
]
