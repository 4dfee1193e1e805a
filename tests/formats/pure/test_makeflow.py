"""The Makeflow language: text in, rules, errors and graphs out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shoal.core.graph import Graph
from shoal.core.resources import FRACTION
from shoal.core.task import Profile
from shoal.errors import InputError
from shoal.formats.makeflow import (
    AllocationMode,
    Makeflow,
    MakeflowRule,
    build_graph,
    parse_makeflow,
    subworkflow_command,
)

MEGABYTE = 2**20
NO_ENVIRONMENT: dict[str, str] = {}


def parse(text: bytes | str, environment: Mapping[str, str] = NO_ENVIRONMENT) -> Makeflow:
    return parse_makeflow(text, source="w.mf", environment=environment)


def only_rule(text: bytes | str, environment: Mapping[str, str] = NO_ENVIRONMENT) -> MakeflowRule:
    (rule,) = parse(text, environment).rules
    return rule


def command_of(line: str, before: str = "") -> str:
    """The command that a rule with this command line has."""
    return only_rule(f"{before}o: i\n\t{line}\n", {"HOME": "/home/u"}).command


def files_of(line: str, before: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
    rule = only_rule(f"{before}{line}\n\tx\n", {"HOME": "/home/u"})
    return rule.outputs, rule.inputs


def error_of(text: bytes | str) -> InputError:
    with pytest.raises(InputError) as caught:
        build_graph(parse(text))
    return caught.value


def graph_of(text: str, environment: Mapping[str, str] = NO_ENVIRONMENT) -> Graph:
    return build_graph(parse(text, environment))


def profile_of(text: str, environment: Mapping[str, str] = NO_ENVIRONMENT) -> Profile:
    """The profile of the last task."""
    graph = graph_of(text, environment)
    return graph.profile_of(len(graph) - 1)


EXAMPLE = """\
# two categories, a sub-workflow, a local merge
TOOL=./step
export LANG=C
MAKEFLOW_INPUTS=raw.dat step
MAKEFLOW_OUTPUTS=report.txt
.MAKEFLOW CATEGORY slice
.MAKEFLOW CORES 1
.MAKEFLOW MEMORY 500
.MAKEFLOW MODE MAX_THROUGHPUT
.SIZE raw.dat 3G
part.1: raw.dat step
	$(TOOL) -n 1 < raw.dat > part.1
part.2: raw.dat step
MEMORY=900
	$(TOOL) -n 2 < raw.dat > part.2        # this rule alone asks 900 MB
.MAKEFLOW CATEGORY merge
sum.txt: part.1 part.2
	MAKEFLOW merge.mf
report.txt: sum.txt
	LOCAL echo "total \\$LANG:" > report.txt; cat sum.txt >> report.txt
"""


def test_a_whole_file_is_read() -> None:
    makeflow = parse(EXAMPLE)
    first, second, nested, last = makeflow.rules
    assert first == MakeflowRule(
        ("part.1",), ("raw.dat", "step"), "./step -n 1 < raw.dat > part.1", 11, "slice", first.version
    )
    assert second.variables == (("MEMORY", "900"),)
    assert (nested.workflow, nested.command, nested.category, nested.line) == ("merge.mf", "", "merge", 17)
    assert last.local
    assert last.command == 'echo "total $LANG:" > report.txt; cat sum.txt >> report.txt'
    assert (makeflow.inputs, makeflow.outputs) == (("raw.dat", "step"), ("report.txt",))
    assert list(makeflow.exports) == ["LANG"]
    assert makeflow.sizes == {"raw.dat": 3 * 2**30}
    assert {name: category.mode for name, category in makeflow.categories.items()} == {
        "default": AllocationMode.FIXED,
        "slice": AllocationMode.MAX_THROUGHPUT,
        "merge": AllocationMode.FIXED,
    }


def test_a_whole_file_becomes_a_graph() -> None:
    graph = graph_of(EXAMPLE)
    assert graph.names == ["part.1", "part.2", "sum.txt", "report.txt"]
    assert graph.actions[2] == "shoal run merge.mf"
    assert graph.input_names(2) == ["part.1", "part.2", "merge.mf"]
    assert list(graph.pending) == [0, 0, 2, 1]
    assert list(graph.lines) == [11, 13, 17, 19]
    profiles = [graph.profile_of(task) for task in range(4)]
    assert [profile.category for profile in profiles] == ["slice", "slice", "merge", "merge"]
    assert [profile.resources.get("memory") for profile in profiles] == [500 * MEGABYTE, 900 * MEGABYTE, 0, 0]
    assert ("LANG", "C") in profiles[0].environment


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo  a\t b  ", "echo a b"),
        ("echo a # b", "echo a"),
        ("echo a#b", "echo a"),
        ('echo "a # b" # c', 'echo "a # b"'),
        ("echo 'a  b'  c", "echo 'a  b' c"),
        ("echo '$HOME'", "echo '$HOME'"),
        ('echo "$HOME"', 'echo "/home/u"'),
        ("echo $HOME ${HOME} $(HOME)x", "echo /home/u /home/u /home/ux"),
        ("echo $HOME; ls $HOME|cat&", "echo /home/u; ls /home/u|cat&"),
        ("echo \\$HOME \\# \\\\", "echo $HOME # \\"),
        ("echo a\\nb", "echo anb"),
        ('echo "a\\nb\\"c"', 'echo "a\nb"c"'),
        ("echo 'a\\nb'", "echo 'anb'"),
        ("echo a \\\n   b", "echo a b"),
        ('echo "a\\\nb"', 'echo "a b"'),
        ('echo "a\nb"', 'echo "a\nb"'),
        ('echo "  a"', 'echo "a"'),
        ("echo \"'$HOME'\"", "echo \"'$HOME'\""),
        ('echo "it\'s $HOME" "\'"', 'echo "it\'s /home/u" "\'"'),
        ("< a > b cat", "< a > b cat"),
        ("LOCALLY x", "LOCALLY x"),
        ("x A=1 b:c d->e", "x A=1 b:c d->e"),
        ('x "a  b" c  d', 'x "a  b" c d'),
    ],
)
def test_a_command_reaches_the_shell_as_the_language_says(line: str, expected: str) -> None:
    assert command_of(line) == expected


@pytest.mark.parametrize(
    ("line", "outputs", "inputs"),
    [
        ("a b : c d", ("a", "b"), ("c", "d")),
        ("a:", ("a",), ()),
        (": c", (), ("c",)),
        ("a:b:c", ("a",), ("b", "c")),
        ("a: b # c", ("a",), ("b",)),
        ("'a b' c\\ d: \"e f\"", ("a b", "c d"), ("e f",)),
        ("a'b'c\"d\": e", ("abcd",), ("e",)),
        ("a: b \\\n c\\\nd", ("a",), ("b", "c", "d")),
        ("a: $HOME/b '$HOME' \"$HOME/c d\"", ("a",), ("/home/u/b", "$HOME", "/home/u/c d")),
        ("a: b\\:c \"x:y\" 'p->q'", ("a",), ("b:c", "x:y", "p->q")),
        ("a\\=b: c=d", ("a=b",), ("c=d",)),
        ("-a: b- --c", ("-a",), ("b-", "--c")),
        ("./a: ../b", ("./a",), ("../b",)),
        ("a: '' \"\" b", ("a",), ("b",)),
        ("\xe4\xa0b: c\u2003d", ("\xe4\xa0b",), ("c\u2003d",)),
    ],
)
def test_a_file_list_names_outputs_and_inputs(line: str, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    assert files_of(line) == (outputs, inputs)


def test_a_value_in_a_file_list_may_hold_several_names_and_a_colon() -> None:
    assert files_of("a: $X.$X r$X", before="X=p q\n") == (("a",), ("p", "q.p", "q", "rp", "q"))
    assert files_of("a$X: z", before="X=p:q\n") == (("ap",), ("q", "z"))
    assert files_of("a: $X", before="X='p q' \"r s\"\n") == (("a",), ("p q", "r s"))


@pytest.mark.parametrize(
    ("before", "line", "expected"),
    [
        ("A=1\nA=2\n", "$A", "2"),
        ("A = x y\n", "$A", "x y"),
        ("A=x\nA += y\nA+=z\n", "$A", "x y z"),
        ("A+=x\n", "$A", "x"),
        ("HOME+=x\n", "$HOME", "/home/u x"),
        ("A=3\nB=$A\nA=4\n", "$B", "3"),
        ("A=a # comment\n", "[$A]", "[a]"),
        ("A=a\\\nb\n", "$A", "a b"),
        ("A=a\\tb\n", '"$A"', '"a\tb"'),
        ("A=\n", "[$A]", "[]"),
        ("A=1=2:3\n", "$A", "1=2:3"),
        ('A="x # $HOME" y\n', "$A", '"x # /home/u" y'),
        ("A='$HOME'\n", "$A", "'$HOME'"),
        ("A=a\\#b\n", "$A", "a#b"),
        ("A=\\$B\nB=\\$C\nC=x\n", '$A "$A"', 'x "$B"'),
        ("A=LOC\nB=AL\n", "x $A$B", "x LOCAL"),
        ("@A=7\n", "$A", "7"),
    ],
)
def test_a_variable_is_replaced_by_its_value(before: str, line: str, expected: str) -> None:
    assert command_of(line, before) == expected


def test_a_variable_between_files_and_command_belongs_to_that_rule() -> None:
    one, two = parse("A=1\no: i\nA=4\n\techo $A\np: i\n# still the same rule\n\nA+=9\n\techo $A\n").rules
    assert (one.command, two.command) == ("echo 4", "echo 1 9")


def test_a_variable_set_in_a_category_is_seen_in_that_category_only() -> None:
    text = "A=1\nCATEGORY=a\nA=2\no:\n\techo $A\nCATEGORY=b\np:\n\techo $A\n.MAKEFLOW CATEGORY a\nq:\n\techo $A\n"
    rules = parse(text).rules
    assert [(rule.category, rule.command) for rule in rules] == [("a", "echo 2"), ("b", "echo 1"), ("a", "echo 2")]


def test_a_category_named_inside_a_rule_is_that_rules_only() -> None:
    one, two = parse("o: i\nCATEGORY=q\n\tx\np: i\n\tx\n").rules
    assert (one.category, two.category) == ("q", "default")


def test_opening_a_category_again_keeps_its_mode() -> None:
    text = ".MAKEFLOW CATEGORY a\n.MAKEFLOW MODE MIN_WASTE\n.MAKEFLOW CATEGORY b\n.MAKEFLOW CATEGORY a\no:\n\tx\n"
    assert parse(text).categories["a"].mode is AllocationMode.MIN_WASTE


@pytest.mark.parametrize("line", ["LOCAL x", "LOCAL  LOCAL x", "$M x", "\\\n LOCAL x"])
def test_local_is_removed_from_the_command(line: str) -> None:
    rule = only_rule(f"M=LOCAL\no:\n\t{line}\n")
    assert (rule.local, rule.command) == (True, "x")


@pytest.mark.parametrize(("value", "local"), [("1", True), ("yes", True), ("True", True), ("0", False), ("no", False)])
def test_batch_local_makes_rules_local(value: str, local: bool) -> None:
    assert only_rule(f"BATCH_LOCAL={value}\no: i\n\tx\n").local is local


@pytest.mark.parametrize(("line", "name"), [("MAKEFLOW s.mf", "s.mf"), ("LOCAL MAKEFLOW 'a b'", "a b")])
def test_a_subworkflow_is_kept_by_name(line: str, name: str) -> None:
    assert only_rule(f"o: i\n\t{line}\n").workflow == name


def test_the_name_of_a_subworkflow_is_quoted_for_the_shell() -> None:
    assert subworkflow_command(only_rule('o: i\n\tMAKEFLOW "it\\\'s"\n')) == "shoal run 'it'\"'\"'s'"


def test_remote_names_are_kept_in_the_rule_and_refused_for_local_execution() -> None:
    text = "\na->b: c -> d e\n\tx\n"
    rule = only_rule(text)
    assert (rule.outputs, rule.inputs, rule.renames) == (("a",), ("c", "e"), (("a", "b"), ("c", "d")))
    error = error_of(text)
    assert (error.file, error.line) == ("w.mf", 2)
    assert "remote renaming" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "o: i\n\tcat i > o",
        "o: i\r\n\tcat i > o\r\n",
        "o: i\r\n\tcat i > o\r",
        "\ufeffo: i\n\tcat i > o\n",
        "o: \\\ni\n\tcat i > o\\\n",
        "o: i\n  cat i > o\n",
        "o: i\n\n# comment\n \t \n\tcat i > o # \xe4\n",
        "o: i\n\tcat i > o\n\n\n# end",
        b"# \xff\no: i\n\tcat i > o\n",
    ],
)
def test_what_editors_do_to_a_file_does_not_change_it(text: bytes | str) -> None:
    rule = only_rule(text)
    assert (rule.outputs, rule.inputs, rule.command) == (("o",), ("i",), "cat i > o")


def test_names_that_are_not_utf8_come_through() -> None:
    rule = only_rule(b"\xff: i\n\tx\n")
    assert rule.outputs[0].encode("utf-8", "surrogateescape") == b"\xff"


def test_lines_are_counted_over_blanks_comments_quotes_and_continuations() -> None:
    text = "\n# c\na:\n\tx\n\n\nb:\n\tx 'p\nq'\nc: \\\n\n\tx\nd:\n\ty\n"
    assert [rule.line for rule in parse(text).rules] == [3, 7, 10, 13]


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("a:\n\tx\nb c\n", 3, 1, "expected a rule, variable, export or directive, not 'b'"),
        ("\tx\n", 1, 2, "it does not follow a rule"),
        ("a:\n\tx\n\ty\n", 3, 2, "second command"),
        ("a:\n\tx\nb:\n", 3, 1, "no command"),
        ("a:\nb:\n\tx\n", 1, 1, "no command"),
        ("a:\nexport A=1\n\tx\n", 1, 1, "no command"),
        ("A := x\nb:\n\tx\n", 1, 1, "no command; if this is meant to be a variable"),
        ("a:\n\techo $X\n", 2, 7, "'X' is not defined"),
        ("a: $X\n\tx\n", 1, 4, "'X' is not defined"),
        ("A=$X\n", 1, 3, "'X' is not defined"),
        ("a:\n\techo $$\n", 2, 7, "expected the name of a variable"),
        ("a:\n\techo $(ls x)\n", 2, 7, "lacks its closing ')'"),
        ('a:\n\techo "x\n', 2, 7, 'no closing "'),
        ("a:\n\techo it's\n", 2, 9, "no closing '"),
        ('a "b: c\n\tx\n', 1, 3, 'no closing "'),
        ("A='x\n", 1, 3, "no closing '"),
        ("A?=x\n", 1, 2, "unknown operator '?='"),
        ("A.B=x\n", 1, 2, "expected = after the name 'A'"),
        ("=x\n", 1, 1, "expected the name of a variable"),
        ("export\n", 1, 1, "export needs the names"),
        ("export A $B\n", 1, 10, "expected the name of a variable"),
        ("a: ->b\n\tx\n", 1, 4, "expected a file before"),
        ("a: b->\n\tx\n", 1, 5, "expected a name after"),
        (".FOO x\n", 1, 1, "unknown directive '.FOO'"),
        (".MAKEFLOW FOO 1\n", 1, 11, "does not support 'FOO'"),
        (".MAKEFLOW CORES many\n", 1, 17, "CORES must be a number, not 'many'"),
        (".MAKEFLOW CORES\n", 1, 1, "takes exactly"),
        (".MAKEFLOW CATEGORY a b\n", 1, 22, "takes exactly"),
        (".MAKEFLOW MODE x\n", 1, 16, "unknown MODE 'x'"),
        (".SIZE a big\n", 1, 9, "'big' is not a size"),
        (".UMBRELLA X y\n", 1, 11, "SPEC only"),
        ("a:\n\tMAKEFLOW\n", 2, 2, "exactly one name of a workflow file"),
        ("a:\n\tMAKEFLOW b c\n", 2, 2, "exactly one name of a workflow file"),
        ("a: b\n\tx\0\n", 2, 3, "zero byte"),
        ("A=\\$A\nb:\n\t$A\n", 3, 2, "refers to itself"),
    ],
)
def test_a_syntax_error_points_to_its_position(text: str, line: int, column: int, part: str) -> None:
    error = error_of(text)
    assert (error.file, error.line, error.column) == ("w.mf", line, column)
    assert part in str(error).split("\n")[0]
    assert str(error).endswith("\n    " + " " * (column - 1) + "^")


def test_the_caret_stands_under_the_place_even_behind_tabs_and_control_characters() -> None:
    assert str(error_of("a:\n\t\x01 $X\n")).split("\n")[1:] == ["     \ufffd $X", "       ^"]


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: x\n\ty\nb: x\n\ty\na: x\n\ty\n", 5, "two tasks make 'a'"),
        ("a: b\n\tx\nb: a\n\ty\n", None, "cycle"),
        ("a: a\n\tx\n", 1, "cycle"),
    ],
)
def test_a_file_with_two_producers_or_a_cycle_is_refused(text: str, line: int | None, part: str) -> None:
    error = error_of(text)
    assert part in error.message
    assert line is None or error.line == line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("o:\n\tx\n", {"cores": FRACTION}),
        ("CORES=2\nMEMORY=100\nDISK=7\nGPUS=1\no:\n\tx\n", (2, 100, 7, 1)),
        (".MAKEFLOW CORES 2\n.MAKEFLOW MEMORY 100\n.MAKEFLOW DISK 7\n.MAKEFLOW GPUS 1\no:\n\tx\n", (2, 100, 7, 1)),
        ("o:\nCORES=2\nMEMORY=100\nDISK=7\n.MAKEFLOW GPUS 1\n\tx\n", (2, 100, 7, 1)),
        ("MEMORY=2G\nCORES=0.5\no:\n\tx\n", {"cores": FRACTION // 2, "memory": 2**31}),
        ("DISK=/dev/sda\nGPUS=0\no:\n\tx\n", {"cores": FRACTION}),
        ("CORES=3\n.MAKEFLOW CATEGORY a\nMEMORY=1\no:\n\tx\n", {"cores": 3 * FRACTION, "memory": MEGABYTE}),
        (".MAKEFLOW CATEGORY a\nMEMORY=1\n.MAKEFLOW CATEGORY b\no:\n\tx\n", {"cores": FRACTION}),
    ],
)
def test_resources_come_from_the_rule_the_category_and_the_default(
    text: str, expected: dict[str, int] | tuple[int, int, int, int]
) -> None:
    if isinstance(expected, tuple):
        cores, memory, disk, gpus = expected
        expected = {
            "cores": cores * FRACTION,
            "memory": memory * MEGABYTE,
            "disk": disk * MEGABYTE,
            "gpus": gpus * FRACTION,
        }
    assert dict(profile_of(text).resources.amounts) == expected


def test_the_last_resource_of_a_category_counts_for_all_its_rules() -> None:
    graph = graph_of("CORES=1\na:\n\tx\nCORES=2\nb:\n\tx\n")
    assert [graph.profile_of(task).resources.get("cores") for task in (0, 1)] == [2 * FRACTION, 2 * FRACTION]


def test_resources_not_given_in_the_file_come_from_the_environment() -> None:
    assert profile_of("o:\n\tx\n", {"CORES": "3"}).resources.get("cores") == 3 * FRACTION


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("o:\n\tx\n", False),
        ("CORES=1\no:\n\tx\n", True),
        ("o:\nCORES=1\n\tx\n", True),
        (".MAKEFLOW CATEGORY c\nCORES=1\no:\n\tx\n", True),
        ("CORES=0\no:\n\tx\n", False),
    ],
)
def test_one_declared_core_is_distinguished_from_none(text: str, declared: bool) -> None:
    profile = profile_of(text)
    assert profile.resources.get("cores") == FRACTION
    assert profile.declares("cores") is declared


def test_one_core_in_the_environment_is_what_the_task_around_was_given_and_no_wish() -> None:
    assert not profile_of("o:\n\tx\n", {"CORES": "1"}).declares("cores")
    assert profile_of("o:\n\tx\n", {"CORES": "2"}).declares("cores")


def test_wall_time_is_the_timeout() -> None:
    assert profile_of(".MAKEFLOW WALL_TIME 50\no:\n\tx\n").timeout == 50
    assert profile_of("o:\n\tx\n").timeout is None


def test_the_default_category_is_the_executable() -> None:
    assert profile_of("o:\n\t./bin/tool x\n").category == "tool"


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("o:\n\tx\n", {}, {"CORES": "1", "OMP_NUM_THREADS": "1"}),
        ("o:\n\tx\n", {"CORES": "3"}, {"CORES": "3", "OMP_NUM_THREADS": "3"}),
        ("o:\n\tx\n", {"OMP_NUM_THREADS": "4"}, {"CORES": "4"}),
        ("CORES=2\nGPUS=0\no:\n\tx\n", {}, {"CORES": "2", "GPUS": "0", "OMP_NUM_THREADS": "2"}),
        ("OMP_NUM_THREADS=2\nCORES=1\no:\n\tx\n", {}, {"CORES": "2"}),
        (".MAKEFLOW CATEGORY z\no:\n\tx\n", {}, {"CATEGORY": "z", "CORES": "1", "OMP_NUM_THREADS": "1"}),
        ("export A B\no:\n\tx\n", {"B": "7"}, {"CORES": "1", "OMP_NUM_THREADS": "1"}),
        ('export A="x  y"\no:\n\tx\n', {}, {"A": '"x  y"', "CORES": "1", "OMP_NUM_THREADS": "1"}),
        ("export A=1\no:\nA=2\n\tx\n", {}, {"A": "2", "CORES": "1", "OMP_NUM_THREADS": "1"}),
        ("B=5\no:\n\tx\n", {}, {"CORES": "1", "OMP_NUM_THREADS": "1"}),
    ],
)
def test_jobs_find_exported_variables_in_their_environment(
    text: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert dict(profile_of(text, environment).environment) == expected


def test_an_exported_variable_has_the_value_of_the_rules_place_in_the_file() -> None:
    graph = graph_of("A=1\na:\n\tx\nA=2\nA+=3\nb:\n\tx\nA+=4\nexport A\n")
    assert [dict(graph.profile_of(task).environment)["A"] for task in (0, 1)] == ["1", "2 3"]


def test_rules_alike_share_one_profile() -> None:
    graph = graph_of("".join(f"o{number}: i\nMEMORY={number % 2}\n\tx\nN={number}\n" for number in range(20)))
    assert len({graph.profile[task] for task in range(20)}) == 2


def test_a_rule_whose_command_is_only_local_does_nothing() -> None:
    assert graph_of("o:\n\tLOCAL\n").actions == [":"]


def test_a_task_without_outputs_is_named_by_its_command() -> None:
    assert graph_of(": i\n\techo  hello\n").names == ["echo hello"]
