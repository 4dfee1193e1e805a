"""A loop whose length depends on the data: square roots by Newton's method, each a chain of tasks of its own.

shoal run newton.py [squares=2,3,10]
"""

from shoal import Net, count, param, take

SQUARES = [float(word) for word in param("squares", "2,3,10").split(",")]

net = Net("newton")
guesses = net.place("guesses", [(square, square, 0) for square in SQUARES])
table = net.place("table", [{}])


def improve(guess):
    square, x, rounds = guess
    return square, (x + square / x) / 2, rounds + 1


def is_rough(guess):
    square, x, _ = guess
    return abs(x * x - square) > 1e-12 * square


roots = net.loop(guesses, improve, while_=is_rough)


@net.step(root=take(roots), so_far=take(table))
def note(root, so_far):
    square, x, _ = root
    return {table: {**so_far, square: round(x, 9)}}


@net.step(found=take(table), rough=count(guesses), fine=count(roots), when=lambda rough, fine: not rough and not fine)
def finish(found, rough, fine):
    return net.result({square: found[square] for square in sorted(found)})
