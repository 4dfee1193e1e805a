"""A net of commands: files are split into as many parts as they have, each is sorted, and the parts are merged.

shoal run commands.py
"""

from shoal import Net, count, each, take

net = Net("commands")
begin, names, parts, merged = net.place("begin", ["work"]), net.place("names"), net.place("parts"), net.place("merged")

net.task(
    name="make",
    folder=take(begin),
    command="mkdir -p {folder} && seq 100 -1 1 | split -l 30 - {folder}/part. && ls {folder}/part.??",
    put=names,
)


@net.step(listed=take(names))
def found(listed):
    return {parts: each(listed.split())}


sorted_parts = net.place("sorted")
net.task(
    name="sort", part=take(parts), command="sort -n {part} > {part}.sorted", gives="{part}.sorted", put=sorted_parts
)


@net.step(done=take(sorted_parts), also=take(sorted_parts), put=sorted_parts, priority=1)
def join(done, also):
    return f"{done} {also}"


left = [lambda unlisted: unlisted == 0, lambda unsorted: unsorted == 0, lambda others: others == 1]
net.task(
    name="merge",
    files=take(sorted_parts),
    unlisted=count(names),
    unsorted=count(parts),
    others=count(sorted_parts),
    when=left,
    command="sort -n -m {files} | sed -n 1,3p | tr '\\n' ' '",
    put=merged,
)


@net.step(text=take(merged))
def finish(text):
    return net.result(text.strip())
