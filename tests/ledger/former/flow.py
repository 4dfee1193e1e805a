from shoal import rule, task

rule("raw/{name}.txt", run="seq 5 > {out}")


@rule("count/{name}.txt", needs="raw/{name}.txt")
def count(t):
    lines = open(t.needs[0]).read().split()
    open(t.out, "w").write(f"{len(lines)}\n")
    return len(lines)


@task(needs=["count/ash.txt", "count/elm.txt"])
def total(t):
    print("lines in all:", sum(need.value for need in t.needs))


task("bad.txt", run="echo no >&2; exit 3")
