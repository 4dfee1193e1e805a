from shoal import Net, take

net = Net("squares")
todo, found = net.place("todo", [1, 2, 3]), net.place("found")


@net.task(number=take(todo))
def square(number):
    if number == 3:
        raise ValueError("not this one")
    return {found: number * number}
