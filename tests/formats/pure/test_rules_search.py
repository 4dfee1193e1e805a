"""From targets to a graph: which definition makes what, in which order, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from shoal.formats.rules import assembly
from shoal.formats.rules.patterns import Pattern
from support.rules import graph_of, needs_of, refusal, rules_of, tasks_of

MOSAIC = """
    TABLE = {"d/1.fits": ["p/a.fits", "p/b.fits"]}
    rule(["p/{x}.fits", "p/{x}_area.fits"], needs=["r/{x}.fits", "hdr"], run="project {needs[0]} {out} {x}")
    rule("d/{d}.fits", needs=lambda w: TABLE[w.out], run="diff {needs} {out}")
    task("all", needs="d/1.fits")
"""
RAW = ["r/a.fits", "r/b.fits", "hdr"]


def test_rules_are_chained_from_the_target_to_the_sources() -> None:
    graph, targets = graph_of(MOSAIC, existing=RAW)
    assert graph.names == ["p/a.fits", "p/b.fits", "d/1.fits", "all"]
    assert graph.actions[:3] == [
        "project r/a.fits p/a.fits a",
        "project r/b.fits p/b.fits b",
        "diff p/a.fits p/b.fits d/1.fits",
    ]
    assert graph.output_names(0) == ["p/a.fits", "p/a_area.fits"]
    assert needs_of(graph, "all") == ["d/1.fits"]
    assert (list(graph.lines), targets) == ([2, 2, 3, 4], [3])


def test_only_what_the_targets_need_is_in_the_graph() -> None:
    assert list(tasks_of(MOSAIC, "p/b.fits", existing=RAW)) == ["p/b.fits"]


def test_any_of_several_outputs_leads_to_the_one_task() -> None:
    graph, targets = graph_of(MOSAIC, "p/a_area.fits", "./p/a.fits", existing=RAW)
    assert (graph.names, targets) == (["p/a.fits"], [0])


def test_a_rule_whose_needs_are_not_available_is_skipped() -> None:
    text = """
        rule("{x}.o", needs="{x}.c", run="cc {needs}")
        rule("{x}.o", needs="{x}.f", run="fc {needs}")
        rule("{x}.f", needs="{x}.ratfor", run="ratfor {needs}")
        task("all", needs=["a.o", "b.o"])
    """
    tasks = tasks_of(text, existing=["a.c", "a.f", "b.ratfor"])
    assert [tasks["a.o"], tasks["b.o"], tasks["b.f"]] == ["cc a.c", "fc b.f", "ratfor b.ratfor"]


def test_an_explicit_file_comes_before_any_rule() -> None:
    text = """
        rule("{x}.o", needs="{x}.c", run="cc {needs}")
        file("a.o", needs="a.s", run="as {needs}")
    """
    assert tasks_of(text, "a.o", existing=["a.c", "a.s"]) == {"a.o": "as a.s"}


def test_a_rule_makes_a_file_that_is_already_there() -> None:
    assert list(tasks_of("rule('{x}.o', needs='{x}.c', run='cc')", "a.o", existing=["a.o", "a.c"])) == ["a.o"]


def test_a_file_whose_only_rule_does_not_apply_is_a_source_if_it_exists() -> None:
    text = "rule('{x}.o', needs='{x}.c', run='cc')\ntask('all', needs='a.o')"
    assert list(tasks_of(text, existing=["a.o"])) == ["all"]


def test_a_missing_source_stays_as_an_input_without_a_maker() -> None:
    text = """
        rule("{x}.b", needs="{x}.a", run="2 {needs}")
        rule("{x}.c", needs="{x}.b", run="3 {needs}")
        task("all", needs="q.c")
    """
    graph, _ = graph_of(text)
    assert graph.names == ["q.b", "q.c", "all"]
    assert needs_of(graph, "q.b") == ["q.a"]


def test_a_rule_whose_needs_grow_reports_the_first_missing_one() -> None:
    graph, _ = graph_of("rule('{x}', needs='{x}.src', run='make')\ntask('all', needs='a')")
    assert graph.names == ["a", "all"]
    assert needs_of(graph, "a") == ["a.src"]


def test_rules_that_lead_to_each_other_settle_on_what_exists() -> None:
    text = """
        rule("{x}.jpg", needs="{x}.png", run="jpg")
        rule("{x}.png", needs="{x}.jpg", run="png")
        rule("{x}.jpg", needs="{x}.raw", run="develop")
        task("all", needs=["a.jpg", "a.png"])
    """
    assert tasks_of(text, existing=["a.raw"]) == {"a.jpg": "develop", "a.png": "png", "all": None}


def test_a_rule_does_not_apply_to_what_it_needs_itself() -> None:
    text = "rule('d/{x}.csv', needs=['d/header.csv', '{x}.raw'], run='make {x}')"
    assert list(tasks_of(text, "d/1.csv", existing=["d/header.csv", "1.raw"])) == ["d/1.csv"]


def test_a_table_that_does_not_know_a_name_leaves_it_to_the_next_rule() -> None:
    text = """
        rule("{x}.o", needs=lambda w: {}[w.x], run="never")
        rule("{x}.o", needs="{x}.c", run="cc")
    """
    assert tasks_of(text, "a.o", existing=["a.c"]) == {"a.o": "cc"}
    error = refusal("rule('{x}.o',\n  needs=lambda w: {}[w.x], run='never')", "a.o")
    assert str(error).splitlines()[0] == "flow.py:2: KeyError: 'a'"


def test_what_a_needs_function_raises_is_reported_at_its_line() -> None:
    error = refusal("def wanted(w):\n    return w.y\nrule('{x}.o', needs=wanted, run='cc')", "a.o")
    assert str(error).startswith("flow.py:2: AttributeError: there is no wildcard 'y' (wildcards: x)")
    assert error.text == "    return w.y"


def test_wildcards_can_be_narrowed_and_repeated_and_given_as_a_regular_expression() -> None:
    text = """
        import re
        rule("{n:[0-9]{2}}/{n}.dat", run="two {n}")
        rule(re.compile(r"(?P<a>[a-z]+)-(?P<b>.*)"), needs=lambda w: [], run="dash {a} {b} {out}")
        rule("{{x}}{y}", run="braces {y}")
    """
    graph, _ = graph_of(text, "12/12.dat", "k-l-m", "{x}z")
    assert graph.actions == ["two 12", "dash k l-m k-l-m", "braces z"]
    assert "nothing makes the target '12/13.dat'" in str(refusal(text, "12/13.dat"))


def test_a_pattern_gives_back_the_name_it_matched() -> None:
    for text in ("p/{x}.fits", "{a}-{b}", "{x:[0-9]+}{y}", "{{{x}}}"):
        pattern = Pattern(text)
        for name in ("p/q/r.fits", "k-l-m", "12ab", "{z}"):
            found = pattern.match(name)
            if found is not None:
                assert pattern.fill(found) == name


def test_without_targets_default_comes_before_all_and_all_before_everything() -> None:
    text = "task('x', run='1')\ntask('all', run='2')\ntask('default', run='3')"
    lines = text.splitlines()
    assert list(tasks_of(text)) == ["default"]
    assert list(tasks_of("\n".join(lines[:2]))) == ["all"]
    assert list(tasks_of(lines[0] + "\nfile('f', run='4')")) == ["x", "f"]


def test_a_file_without_action_is_a_source() -> None:
    graph, targets = graph_of("file('s')\nfile('o', needs='s', run='cp {needs} {out}')")
    assert (graph.names, targets) == (["o"], [0])


def test_a_target_that_only_exists_needs_no_task() -> None:
    graph, targets = graph_of("task('t', run='true')", "data", existing=["data"])
    assert (len(graph), targets) == (0, [])


@pytest.mark.parametrize(
    ("text", "targets", "message"),
    [
        ("task('build')", ["biuld"], "nothing makes the target 'biuld'; did you mean 'build'?"),
        (
            "rule('fit/{x}.txt', run='fit')\ntask('all', needs=['fit/3.txt'])",
            ["fit/3.tx"],
            "nothing makes the target 'fit/3.tx'; did you mean 'fit/3.txt'?",
        ),
        ("rule('{x}.o', run='cc')", ["zzzzzzz"], "nothing makes the target 'zzzzzzz'; the file defines '{x}.o'"),
        ("rule('{x}.o', run='cc')", [], "the file has rules but no target"),
        ("x = 1", [], "the file defines no task, file or rule"),
        ("rule('{x}.o')", ["a.o"], "the rule for '{x}.o' has no action"),
    ],
)
def test_what_cannot_be_made_is_refused(text: str, targets: Iterable[str], message: str) -> None:
    error = refusal(text, *targets)
    assert message in str(error)
    assert error.file == "flow.py"


def test_a_rule_that_leads_to_itself_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "DEEPEST_CHAIN", 500)
    error = refusal("rule('s/{i}', needs=lambda w: f's/{int(w.i) - 1}', run='true')", "s/5")
    assert str(error).startswith("flow.py:1: the rule for 's/{i}' needs itself in an endless chain, at 's/-494'")


def test_a_cycle_is_shown_with_lines() -> None:
    error = refusal("task('a', needs='f')\nfile('f', needs='b', run='x')\ntask('b', needs='a')", "b")
    assert (
        error.message == "the tasks form a cycle: 'b' (line 3) needs 'a' (line 1) needs 'f' (line 2) needs 'b' (line 3)"
    )
    assert error.line == 3
    assert "'me' (line 1) needs 'me' (line 1)" in refusal("task('me', needs='me')").message


def test_two_makers_of_one_file_are_refused() -> None:
    text = """
        rule(["{x}.a", "common"], run="1")
        rule(["{x}.b", "common"], run="2")
    """
    assert "must have the same wildcards" in str(refusal(text))
    clash = """
        rule(["{x}.a", "{x}.c"], run="1")
        rule(["{x}.b", "{x}.c"], run="2")
        task("all", needs=["q.a", "q.b"])
    """
    assert "two tasks make 'q.c'" in str(refusal(clash))


def test_long_chains_of_tasks_and_of_rules_do_not_recurse() -> None:
    size = 30_000
    graph, _ = graph_of(
        f"for i in range({size}): task(f't{{i}}', needs=f't{{i - 1}}' if i else None, run='true')", f"t{size - 1}"
    )
    assert len(graph) == size
    text = """
        file("s/0", run="touch {out}")
        rule("s/{i:[0-9]+}", needs=lambda w: f"s/{int(w.i) - 1}", run="cp {needs} {out}")
    """
    graph, targets = graph_of(text, f"s/{size}")
    assert (len(graph), targets) == (size + 1, [size])
    assert graph.actions[7] == "cp s/6 s/7"


def test_the_graph_can_be_made_twice() -> None:
    rules = rules_of(MOSAIC)
    exists = re.compile("r/|hdr").match
    first, second = (rules.graph([], lambda name: bool(exists(name)))[0] for _ in range(2))
    assert (first.names, first.actions) == (second.names, second.actions)


def test_lines_are_right_in_a_long_generated_file() -> None:
    text = "\n".join(f"task('t{i}', run='true')" for i in range(3000))
    graph, _ = graph_of(text)
    assert list(graph.lines) == list(range(1, 3001))
