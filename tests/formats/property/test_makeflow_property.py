"""The Makeflow parser under arbitrary input: it parses or says where it cannot, in linear time, by either path."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InputError
from shoal.formats.makeflow import Makeflow, build_graph, parse_makeflow

VALID = """\
TOOL=./step 'a b' "$HOME"
export LANG=C
MAKEFLOW_OUTPUTS=report.txt
.MAKEFLOW CATEGORY slice
.MAKEFLOW MEMORY 500
.SIZE raw.dat 3G
part.1 "part 1": raw.dat->x step
	$(TOOL) -n 1 < raw.dat > part.1
part.2: raw.dat \\
 step
@MEMORY=900
	LOCAL ${TOOL} "x $HOME 'y'" '\\z' > part.2 # comment
sum.txt: part.1 part.2
	MAKEFLOW merge.mf
plain.1: plain.0 tool
	./tool plain.0 > plain.1
"""
FRAGMENTS = [
    *" \t\n\r\\\"'$#:=-><@.+(){}abA0",
    *("->", "\\\n", "$A", "$(A)", "A=", "A+=", "export ", "LOCAL ", "MAKEFLOW ", ".MAKEFLOW CORES 2\n"),
    *("\n\t", "o: i", "CATEGORY=c\n", ".SIZE f 1\n", "\0", "\ufeff", "\xa0", "\u2028", "\x0c", "\r\n", "\\$A"),
]
PLAIN = "abcXYZ019._/+,%@-"


def read(content: bytes | str) -> Makeflow | None:
    """Parses and builds; None if the content is refused. Anything but an `InputError` escapes."""
    try:
        makeflow = parse_makeflow(content, source="w.mf", environment={"HOME": "/h", "A": "a b"})
    except InputError as error:
        assert error.message
        assert error.file == "w.mf"
        text = content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else content
        assert error.line is not None and 1 <= error.line <= text.count("\n") + 1
        assert error.column is not None and error.column >= 1
        assert "\n" not in str(error).replace("\n    ", "")
        return None
    try:
        graph = build_graph(makeflow)
    except InputError as error:
        assert error.message
    else:
        assert len(graph) == len(makeflow.rules)
    return makeflow


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_parse_or_give_one_error_with_a_position(content: bytes) -> None:
    read(content)


@settings(max_examples=700, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join))
def test_any_mixture_of_the_languages_pieces_parses_or_gives_one_error(text: str) -> None:
    read(text)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """A valid file with a few stretches cut, repeated, replaced or inserted."""
    content = VALID.encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 30)))
        piece = draw(
            st.one_of(st.just(b""), st.binary(max_size=4), st.sampled_from([part.encode() for part in FRAGMENTS]))
        )
        content = content[:start] + piece + content[draw(st.sampled_from([start, end])) :]
    return content


@settings(max_examples=700, deadline=None)
@given(damaged_files())
def test_a_damaged_file_parses_or_gives_one_error(content: bytes) -> None:
    read(content)


def test_the_file_the_damage_starts_from_is_valid() -> None:
    makeflow = parse_makeflow(VALID, source="w.mf", environment={"HOME": "/h"})
    assert len(makeflow.rules) == 4


blanks = st.sampled_from([" ", "  ", "\t", " \t "])
plain_names = st.text(PLAIN, min_size=1, max_size=6).filter(lambda name: not name.startswith("@"))
values = {"A": "a  b", "E": "", "B": " \t", "L": " LOCAL", "Q": "'q  r'", "C": "c:d", "R": "p->r", "U": "\xa0"}
values |= {"O": "--n=2 -v", "Z": "z;é", "W": "w\\t"}
references = st.sampled_from([form.format(name) for name in values for form in ("${}", "$({})", "x${{{}}}y")])
names = st.one_of(plain_names, references)
quoted = st.sampled_from(
    ["'$E'", '"a  b"', "'x # y'", '"$A"', "'\t'", '"\'"', '"\xe4\xa0"', "'\\$1  \\n'", '"\\n"', '"it\'s $A"', '"  $O "']
)
escaped = st.sampled_from(["\\$A", "\\'", '\\"', "\\ ", "\\#", "\\LOCAL", "x\\ny", "\\\\", "$Aé", "é"])
own_variables = st.sampled_from(
    ["", "", "X=1\n", "@A= y z \nMEMORY=2\n", "BATCH_LOCAL=1\n", "CATEGORY=c\n", "X=1\nX = 2\n"]
)
command_words = st.one_of(
    names, st.sampled_from([">", "<", "2>&1", "|", "a=b", "c:d", "LOCAL", "MAKEFLOW"]), quoted, escaped
)


@st.composite
def plain_files(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """File lists, variables of rules and commands, most of which the short path takes whole."""

    def spread(words: list[str]) -> str:
        return "".join(word + draw(blanks) for word in words).rstrip() + draw(st.sampled_from(["", " ", "\t"]))

    rules = []
    for _ in range(draw(st.integers(1, 4))):
        outputs = spread(draw(st.lists(names, min_size=1, max_size=3)))
        inputs = spread(draw(st.lists(names, max_size=3)))
        command = spread(draw(st.lists(command_words, min_size=1, max_size=5)))
        ending = draw(st.sampled_from(["", "#", " # c", "\n", "\n\t # c", "\n# c\n \t\n"]))
        files = f"{outputs}:{draw(st.sampled_from(['', ' ']))}{inputs}"
        rules.append((files, draw(own_variables), f"{draw(blanks)}{command}{ending}"))
    return rules


@settings(max_examples=300, deadline=None)
@given(plain_files())
def test_plain_rules_read_the_same_by_the_short_path_and_by_the_lexer(rules: list[tuple[str, str, str]]) -> None:
    def outcome(text: str) -> object:
        try:
            return parse_makeflow(text, source="w.mf", environment=values).rules
        except InputError as error:
            return (error.message, error.line)

    short = "".join(f"{files}\n{own}{command}\n" for files, own, command in rules)
    # A comment behind the file list changes nothing, except that only the lexer reads such lines.
    exact = "".join(f"{files} #\n{own}{command}\n" for files, own, command in rules)
    assert outcome(short) == outcome(exact)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8).filter(lambda name: not set(name) & set("\n\0\r\ufeff")), min_size=1))
def test_every_name_can_be_written_with_backslashes(files: list[str]) -> None:
    line = "o: " + " ".join("".join(f"\\{character}" for character in name) for name in files)
    (rule,) = parse_makeflow(f"{line}\n\tx\n", source="w.mf", environment={}).rules
    assert list(rule.inputs) == files


SIZE = 300_000
FAMILIES = {
    "quotes": "o:\n\t" + "'a" * SIZE,
    "even quotes": "o:\n\t" + "\"a'b'\"" * (SIZE // 6),
    "open quote on every line": "".join(f"o{number}: i\n\techo \"it's\n" for number in range(SIZE // 20)),
    "one long name": "a" * SIZE + ":\n\tx\n",
    "one long line without meaning": "a " * SIZE,
    "backslashes": "o: " + "\\" * SIZE,
    "dollars": "o:\n\t" + "\\$" * SIZE + "\n",
    "colons": ":" * SIZE + "\n\tx\n",
    "blank lines": "o:\n" + " \n" * SIZE,
    "appends": "A+=x\n" * (SIZE // 5) + "o:\n\t$A\n",
    "appends between rules": "".join(f"A+=x\no{number}: $A\n\tx\n" for number in range(SIZE // 20)),
    "appends in a rule": "o:\n" + "A+=x\n" * (SIZE // 5) + "\t$A\n",
    "categories": "".join(f"CATEGORY=c{number}\nA={number}\n" for number in range(SIZE // 20)),
    "doubling": "A=x\n" + "A=$A$A\n" * 100,
    "values in values": "A0=x\n" + "".join(f"A{n + 1}=\\$A{n}\\$A{n}\n" for n in range(40)) + "o:\n\t$A30\n",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_time_grows_no_faster_than_the_text(family: str) -> None:
    started = time.process_time()
    read(FAMILIES[family])
    # A linear parser needs well under a second; a quadratic one would need minutes.
    assert time.process_time() - started < 15
