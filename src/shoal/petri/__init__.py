"""Coloured Petri nets: workflows whose shape depends on data.

A net has **places**, which hold tokens, and **transitions**, which take tokens and make others. Tokens are arbitrary
Python values. A transition is a **step**, which the engine runs itself, or a **task**, which runs on a node::

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

**Ports.** `take(place)` removes a token when the transition fires. `read(place)` passes a token and leaves it there.
`count(place)` is the number of tokens, including those taken by running tasks. The oldest tokens come first. Two ports
of one transition never get the same token. Ports with `key=` get tokens with equal keys, found by hash.

**Guards.** `when=` is a function of some ports, named by its parameters, or a list of functions that must all be true.
Guards and keys must be pure: their results may depend on their arguments only, because they are cached. A guard over
one port is evaluated once per token. A guard over several ports without `key=` is evaluated once per combination of
their tokens. A guard over tokens and a count is evaluated again whenever the transition is examined, starting with the
oldest token; write it as a list of guards where possible.

**Return values.** A mapping from places to tokens: a value is one token, `each(values)` one token per element,
`NOTHING` none. With `put=place` the value itself is the token (also None). `result(value)` is the result of the net and
ends it. `eureka("group")` ignores the results of all running tasks of that group and prevents further firings of it,
unless `again=True`; the tokens of those tasks are lost. A tuple combines several of these. All tokens of a result
appear at once, after all of them were checked, or none does.

**Order.** Steps fire before tasks; among either, the highest `priority` first; among equals, round-robin, or at random
with a seed. No transition starves behind others of its priority. Steps must be fast and pure functions of their tokens:
a run that is resumed repeats them. They must not modify their tokens. `next` examines a bounded number of steps; then a
task gets its turn even if steps could fire forever.

**Failure.** When a task has failed for good its tokens return to their places. They are not offered to the same
transition again until a retry, but other transitions may take them. With `on_error=place` a `Failure` is put there
instead. A transition whose function or guard raises an exception is disabled: its tokens return and the rest of the net
continues.

**End.** A run is over when a transition returned a result, or when nothing can fire and nothing runs, unless the net is
kept open for tokens from outside and has not been closed.

Cost: a firing costs O(ports), independent of the number of tokens and places; a token costs O(ports on its place).
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
