"""A call that fails some times: each time the net waits twice as long before it tries again, and in the end gives up.

shoal run backoff.py [failures=3] [tries=5]
"""

import time

from shoal import NOTHING, Net, param, take

FAILURES, TRIES = param("failures", 3), param("tries", 5)

net = Net("backoff")
todo = net.place("todo", [(0, 0.01)])
failed, waiting = net.place("failed"), net.place("waiting")
done, lost = net.place("done"), net.place("lost")


@net.task(call=take(todo), on_error=failed, put=done)
def fetch(call):
    tried, _ = call
    if tried < FAILURES:
        raise ConnectionError("no answer")
    return f"an answer at try {tried + 1}"


@net.step(failure=take(failed))
def think(failure):
    tried, seconds = failure.arguments["call"]
    if tried + 1 < TRIES:
        return {waiting: (tried + 1, 2 * seconds)}
    return {lost: failure.message, waiting: NOTHING}


@net.task(call=take(waiting), put=todo, cores=0.01)
def delay(call):
    time.sleep(call[1])
    return call


@net.step(answer=take(done))
def finish(answer):
    return net.result(answer)


@net.step(message=take(lost))
def give_up(message):
    return net.result(f"given up: {message}")
