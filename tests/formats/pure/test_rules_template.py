"""Command templates: what is put in, what is quoted and which braces are left alone."""

from __future__ import annotations

import pytest

from shoal.formats.rules.patterns import pathmap
from support.rules import refusal, tasks_of


def command(run: str, before: str = "", needs: str = "['a', 'b c']") -> object:
    return next(iter(tasks_of(f"{before}\nfile(['o', 'o 2'], needs={needs}, run={run})").values()))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("cat {needs} > {out}", "cat a 'b c' > o"),
        ("cat {needs[0]} {needs[-1]}", "cat a 'b c'"),
        ("tee {outs} {outs[1]}", "tee o 'o 2' 'o 2'"),
        ("echo {name}", "echo o"),
        ("awk '{print $1}' {needs[0]}", "awk '{print $1}' a"),
        ("awk '{if ($1) {print $2}}'", "awk '{if ($1) {print $2}}'"),
        ("echo ${HOME} ${x:-{out}} {a,b} {1..3} {}", "echo ${HOME} ${x:-o} {a,b} {1..3} {}"),
        ("echo {{out}} ${{HOME}} {{{out}}}", "echo {out} ${HOME} {o}"),
        ("echo {{a,b},c}", "echo {{a,b},c}"),
        ("f() { x; }; f }}", "f() { x; }; f }}"),
    ],
)
def test_a_template_is_filled_in_and_other_braces_stay(template: str, expected: str) -> None:
    assert command(repr(template)) == expected


def test_plain_variables_are_taken_as_they_are_at_the_definition() -> None:
    text = """
        from pathlib import Path
        FLAGS, N, P = "-a -b", 3, Path("p q")
        for i in range(2):
            task(f"t{i}", run="x {FLAGS} {N} {P} {i}")
        N = 4
        def more(k):
            task(f"m{k}", run="y {k}")
        more(5)
        [task(f"c{j}", run="z {j}") for j in "q"]
    """
    assert list(tasks_of(text).values()) == ["x -a -b 3 'p q' 0", "x -a -b 3 'p q' 1", "y 5", "z q"]


def test_a_list_of_words_is_quoted_word_by_word() -> None:
    assert command("['cp', '-v', '{needs}', 'to {out}', 'a b', 7]") == "cp -v a 'b c' 'to o' 'a b' 7"
    assert command("['echo', '$HOME', '*']") == "echo '$HOME' '*'"


def test_tasks_among_the_needs_are_no_files_of_the_command() -> None:
    text = "task('setup', run='true')\nfile('o', needs=['setup', 'a'], run='cat {needs}')"
    assert tasks_of(text, "o")["o"] == "cat a"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("echo {nothing}", "{nothing} is neither a wildcard nor a variable of this file; write {{nothing}}"),
        ("echo {LIST}", "{LIST} is a list"),
        ("echo {out.x}", "{out.x}: only needs and outs have parts"),
        ("echo {out[0]}", "{out[0]}: only needs and outs have parts"),
        ("echo {needs[2]}", "{needs[2]} is out of range: there are 2"),
        ("echo {needs.img}", "{needs.img} is not among the named needs"),
    ],
)
def test_a_word_that_cannot_be_filled_in_is_refused_at_the_definition(template: str, message: str) -> None:
    error = refusal(f"LIST = []\nfile('o', needs=['a', 'b'], run={template!r})")
    assert (error.file, error.line) == ("flow.py", 2)
    assert message in str(error)


def test_a_task_has_no_output_to_put_in() -> None:
    error = refusal("task('t', run='echo {out}')")
    assert "{out} stands for an output, but a task has none; use file() for it" in str(error)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("%p", "src/a/b.tar.gz"),
        ("%f", "b.tar.gz"),
        ("%n", "b.tar"),
        ("%x", ".gz"),
        ("%X", "src/a/b.tar"),
        ("%d", "src/a"),
        ("%1d", "src"),
        ("%-1d", "a"),
        ("%{^src,obj}X.o", "obj/a/b.tar.o"),
        ("%{a,A;b,B}p", "src/A/B.tAr.gz"),
        ("%%%s", "%/"),
    ],
)
def test_pathmap_rewrites_as_rake_does(spec: str, expected: str) -> None:
    assert pathmap("src/a/b.tar.gz", spec) == expected
