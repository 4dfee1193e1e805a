"""Machine descriptions, and error messages for invalid ones."""

from __future__ import annotations

import pytest

from shoal.errors import InputError
from shoal.resources.machine import MachinePart, read_description


def kinds(part: MachinePart) -> dict[str, int]:
    counts: dict[str, int] = {}
    waiting = list(part.parts)
    while waiting:
        each = waiting.pop()
        counts[each.kind] = counts.get(each.kind, 0) + 1
        waiting += each.parts
    return counts


def test_a_description_says_how_many_machines_there_are_and_what_each_has() -> None:
    text = """
    [[node]]
    name = "big"
    count = 2
    sockets = 2
    numas = 2
    cores = 8
    threads = 2
    gpus = 3
    memory = "1G"
    labels = ["site=alpha"]
    resources = { licence = 2 }

    [[node]]
    name = "small"
    """
    first, second, small = read_description(text, "machines.toml")
    assert [first.name, second.name, small.name] == ["big1", "big2", "small"]
    assert kinds(first) == {"socket": 2, "numa": 4, "core": 16, "thread": 32, "gpu": 3, "licence": 2}
    assert first.labels == ("site=alpha",)
    assert sum(numa.memory for socket in first.parts for numa in socket.parts) == 1 << 30
    assert kinds(small) == {"socket": 1, "numa": 1, "core": 1, "thread": 1}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[node]\n", 1, "this is not TOML"),
        ("", None, "no machine is described"),
        ("site = 1\n", 1, "unknown key 'site'"),
        ("\n[[nodes]]\nname = 'a'\n", 2, "unknown key 'nodes'"),
        ("[[node]]\nname = 'a'\ncpus = 4\n", 3, "unknown key 'cpus' of a node"),
        ("[[node]]\ncores = 4\n", 1, "None is not a valid machine name"),
        ("[[node]]\nname = 'a/b'\n", 2, "'a/b' is not a valid machine name"),
        (
            "[[node]]\nname = 'a'\ncores = 4\n[[node]]\nname = 'b'\ncores = 0\n",
            6,
            "cores must be an integer of at least 1",
        ),
        ("[[node]]\nname = 'a'\ncores = 2.5\n", 3, "cores must be an integer of at least 1"),
        ("[[node]]\nname = 'a'\nmemory = 'much'\n", 3, "memory 'much' is not a size"),
        ("[[node]]\nname = 'a'\nlabels = ['x']\n", 3, "label 'x' is not a label"),
        ("[[node]]\nname = 'a'\nresources = 3\n", 3, "resources must be a table"),
        ("[[node]]\nname = 'a'\nresources = { core = 3 }\n", 3, "'core' is not a valid resource class"),
        ("[[node]]\nname = 'a'\nresources = { tape = 0 }\n", 3, "the number of tape must be"),
        ("[[node]]\nname = 'a'\ncores = 3\nnumas = 2\n", 4, "3 cores of a socket cannot be divided among 2"),
        ("[[node]]\nname = 'a'\n[[node]]\nname = 'a'\n", 4, "two machines are named 'a'"),
        ("[[node]]\nname = 'a'\ncount = 9999999\ncores = 99\n", 3, "more than 20,000,000 resources"),
        ("node = 3\n", 1, "no machine is described"),
    ],
)
def test_a_wrong_description_is_explained_with_its_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(InputError) as told:
        read_description(text, "machines.toml")
    assert words in told.value.message
    assert (told.value.file, told.value.line) == ("machines.toml", line)
