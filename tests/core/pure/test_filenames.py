"""Normalization of file names, and rejection of unusable names."""

from __future__ import annotations

import pytest

from shoal.core.file_names import MOST_FOLDERS, plain_name, without_ways_up
from shoal.core.graph import GraphBuilder, find_task, lookup_tasks
from shoal.errors import InputError
from support.rules import graph_of, needs_of, refusal, tasks_of


def below_home(name: str) -> str:
    return name.removeprefix("/home/flow/")


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("a", "a"),
        ("./a", "a"),
        ("././/a", "a"),
        ("d//a", "d/a"),
        ("d/./a", "d/a"),
        ("d/", "d"),
        (".", "."),
        ("./", "."),
        (".hidden", ".hidden"),
        ("d/.hidden", "d/.hidden"),
        ("...", "..."),
        ("d/..", "d/.."),
        ("../a", "../a"),
        ("d/../a", "d/../a"),
        ("./-x", "-x"),
        ("/etc//hosts", "/etc/hosts"),
        ("/home/flow/d/./a", "d/a"),
        ("", ""),
    ],
)
def test_ways_of_writing_a_name_are_one(written: str, plain: str) -> None:
    assert plain_name(written, below_home) == plain


@pytest.mark.parametrize(
    ("name", "short"),
    [("d/../a", "a"), ("d/e/../../a", "a"), ("../a", "../a"), ("d/../../a", "../a"), ("/d/../a", "/a"), ("/..", "/..")],
)
def test_ways_up_are_taken_out(name: str, short: str) -> None:
    assert without_ways_up(name) == short


def test_graph_knows_a_file_by_one_name() -> None:
    builder = GraphBuilder("flow", below_home)
    builder.task("", "make", outputs=["./a"])
    builder.task("", "use", inputs=["a", ".//a", "/home/flow/a"], outputs=["d/b"])
    graph = builder.build()
    assert graph.file_names == ["a", "d/b"]
    assert graph.predecessors_of(1) and find_task(graph, "d//b") == 1
    assert lookup_tasks(graph, below_home)("/home/flow/d/b") == find_task(graph, "/home/flow/d/b", below_home) == 1


def test_two_makers_of_one_file_are_refused_in_any_spelling() -> None:
    builder = GraphBuilder("flow")
    builder.task("", "one", outputs=["a"], line=1)
    builder.task("", "two", outputs=["b", "./a"], line=2)
    with pytest.raises(InputError, match=r"flow:2: two tasks make 'a': 'a' \(line 1\) and 'b'"):
        builder.build()


RULES = """
    file("./a", run="echo > {out}")
    rule("./out/{x}.txt", needs="./a", run="use {needs} {out} {x}")
    directory("./d")
    task("all", needs=["out/z.txt", "./out//z.txt", "./d"])
"""


def test_rules_find_files_in_any_spelling() -> None:
    graph, _ = graph_of(RULES)
    assert graph.file_names == ["a", "out/z.txt"]
    assert needs_of(graph, "out/z.txt") == ["a"]
    assert graph.names == ["a", "out/z.txt", "d", "all"]


def test_commands_get_needs_as_they_are_written() -> None:
    assert tasks_of(RULES, "./out/y.txt")["out/y.txt"] == "use ./a out/y.txt y"


def test_target_is_found_in_any_spelling() -> None:
    assert list(tasks_of(RULES, ".//a", existing=["a"])) == ["a"]


def test_definitions_of_one_file_are_refused_in_any_spelling() -> None:
    text = 'file("a", run="one")\nfile("./a", run="two")'
    assert refusal(text).message == "'a' is already defined (line 1)"
    assert refusal('file(["a", "b", "./a"], run="three")').message == "'a' appears twice among the outputs"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('file("x\\0y", run="true")', "the file name 'x\\x00y' holds a NUL character"),
        ('task("t", needs="n\\0o", run="true")', "the file name 'n\\x00o' holds a NUL character"),
        ('task("t", run="echo a\\0b")', "the command 'echo a\\x00b' holds a NUL character"),
        ('task("t", run=["echo", "a\\0b"])', "holds a NUL character"),
        ('task("t", env={"A": "a\\0b"}, run="true")', "env: the value of A 'a\\x00b' holds a NUL character"),
    ],
)
def test_null_characters_are_refused_at_their_line(text: str, what: str) -> None:
    error = refusal(text)
    assert what in error.message
    assert (error.file, error.line) == ("flow.py", 1)


def test_names_deeper_than_any_walk_are_refused() -> None:
    builder = GraphBuilder("flow")
    builder.task("", "make", outputs=["a/" * MOST_FOLDERS + "z"])
    builder.task("", "use", inputs=["a/" * 2000 + "z"], line=4)
    with pytest.raises(InputError, match=f"flow:4: .* has 2000 levels of folders, the limit is {MOST_FOLDERS}"):
        builder.build()
