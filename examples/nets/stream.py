"""Numbers come from outside; at most so many as there are credits are being worked on.

shoal run stream.py &
shoal put stream.py arrived 3 4 5
shoal put stream.py end true    # the sum so far is the result, when nothing is left to do
"""

from shoal import Net, count, param, read, take

net = Net("stream", keep_open=True)
arrived = net.place("arrived", type=int)
squares, end = net.place("squares"), net.place("end")
total = net.place("total", [0])
credits = net.window(param("credits", 2), name="credits")


@net.task(x=take(arrived), put=squares, within=credits)
def square(x):
    return x * x


@net.step(s=take(squares), t=take(total), put=total)
def add(s, t):
    return s + t


@net.step(
    asked=take(end), t=read(total), left=count(arrived), new=count(squares), when=lambda left, new: not left + new
)
def finish(asked, t, left, new):
    return net.result(t)
