"""Damaged inputs for every parser, each made from a number: valid texts with bytes, words and lines mistreated.

An input is known by its language and its number, so one that makes trouble can be made again:
`damaged(LANGUAGES["jx"], 4711)`. Judging what a parser does with it is left to the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from shoal.formats.jx import evaluate, parse_json, parse_jx
from shoal.formats.makeflow import build_graph, parse_makeflow
from shoal.formats.makeflow.json_form import read_json_workflow, read_jx_workflow
from shoal.formats.wfformat import read_wfformat, trace_graph

SOURCE = "w.mf"
ENVIRONMENT = {"HOME": "/h", "A": "a b", "MEMORY": "5"}
MOST_DAMAGES = 4
LONGEST_STRETCH = 24


@dataclass(frozen=True)
class Language:
    """How a language is read, texts that are valid in it, and pieces it is made of."""

    name: str
    read: Callable[[bytes], object]
    texts: tuple[bytes, ...]
    pieces: tuple[bytes, ...]


def damaged(language: Language, number: int) -> bytes:
    """The input of this number; the same in every process."""
    random = Random(f"{language.name} {number}")
    kind = random.random()
    if kind < 0.04:
        return random.randbytes(random.randrange(80))
    if kind < 0.12:
        return b"".join(random.choices(language.pieces, k=random.randrange(1, 30)))
    text = random.choice(language.texts)
    for _ in range(random.randint(1, MOST_DAMAGES)):
        text = random.choice(_DAMAGES)(text, random, language)
    return text


def _flip(text: bytes, random: Random, language: Language) -> bytes:
    if not text:
        return text
    place = random.randrange(len(text))
    return text[:place] + bytes([text[place] ^ 1 << random.randrange(8)]) + text[place + 1 :]


def _insert_piece(text: bytes, random: Random, language: Language) -> bytes:
    place = random.randint(0, len(text))
    return text[:place] + random.choice(language.pieces) + text[place:]


def _insert_bytes(text: bytes, random: Random, language: Language) -> bytes:
    place = random.randint(0, len(text))
    return text[:place] + random.randbytes(random.randint(1, 4)) + text[place:]


def _remove(text: bytes, random: Random, language: Language) -> bytes:
    start, end = _stretch(text, random)
    return text[:start] + text[end:]


def _repeat(text: bytes, random: Random, language: Language) -> bytes:
    start, end = _stretch(text, random)
    return text[:end] + text[start:end] * random.choice((1, 1, 2, 40)) + text[end:]


def _replace(text: bytes, random: Random, language: Language) -> bytes:
    start, end = _stretch(text, random)
    return text[:start] + random.choice(language.pieces) + text[end:]


def _cut(text: bytes, random: Random, language: Language) -> bytes:
    return text[: random.randint(0, len(text))]


def _swap_lines(text: bytes, random: Random, language: Language) -> bytes:
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _swap_words(text: bytes, random: Random, language: Language) -> bytes:
    words = text.split(b" ")
    one, other = random.randrange(len(words)), random.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    return b" ".join(words)


def _join(text: bytes, random: Random, language: Language) -> bytes:
    """The beginning of one text with the end of another."""
    other = random.choice(language.texts)
    return text[: random.randint(0, len(text))] + other[random.randint(0, len(other)) :]


def _stretch(text: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(text))
    return start, min(len(text), start + random.randint(1, LONGEST_STRETCH))


_DAMAGES = (
    *(_flip, _insert_piece, _insert_piece, _insert_bytes, _remove, _remove),
    *(_repeat, _replace, _replace, _cut, _swap_lines, _swap_words, _join),
)


def _read_makeflow(content: bytes) -> object:
    return build_graph(parse_makeflow(content, source=SOURCE, environment=ENVIRONMENT))


def _read_jx(content: bytes) -> object:
    return evaluate(parse_jx(content, SOURCE), {"N": 3, "names": ["a", "b"]})


def _read_json_workflow(content: bytes) -> object:
    return build_graph(read_json_workflow(parse_json(content, SOURCE), SOURCE, ENVIRONMENT))


def _read_jx_workflow(content: bytes) -> object:
    return build_graph(read_jx_workflow(content, SOURCE, environment=ENVIRONMENT, context={"N": 2}))


def _read_wfformat(content: bytes) -> object:
    return trace_graph(read_wfformat(content, SOURCE), SOURCE)


_MAKEFLOW_TEXTS = (
    b"TOOL=./step 'a b' \"$HOME\"\nexport LANG=C\nMAKEFLOW_OUTPUTS=report.txt\n.MAKEFLOW CATEGORY slice\n"
    b'.MAKEFLOW MEMORY 500\n.SIZE raw.dat 3G\npart.1 "part 1": raw.dat step\n\t$(TOOL) -n 1 < raw.dat > part.1\n'
    b"part.2: raw.dat \\\n step\n@MEMORY=900\n\tLOCAL ${TOOL} \"x $HOME 'y'\" '\\z' > part.2 # comment\n",
    b"sum.txt: part.1 part.2\n\tMAKEFLOW merge.mf\nplain.1: plain.0 tool\n\t./tool plain.0 > plain.1\n"
    b'plain.2: plain.1 tool\n\t./tool "a b" plain.1 > plain.2\n',
    b"A=1\nA+=2\nB = $A$A\\t\"q $A\" '$A' # end\nCATEGORY=c\nCORES=2\nout.$A: in->x $B\nWALL_TIME=5\n"
    b"\techo $A; echo \\$A `date` {$B} > out # x\n.MAKEFLOW MODE MIN_WASTE\nexport A B\n:\n\ttrue\n",
    b"a b:\r\n\ttouch a b\r\nc: a\r\nBATCH_LOCAL=1\r\n\tcp a c\r\nd: b c\n\tcat b c > d",
)
_MAKEFLOW_PIECES = (
    *(bytes([code]) for code in b" \t\n\r\\\"'$#:=-><@.+(){}abA0"),
    *(b"->", b"\\\n", b"$A", b"$(A)", b"${A", b"A=", b"A+=", b"export ", b"LOCAL ", b"MAKEFLOW ", b"\n\t", b"o: i"),
    *(b".MAKEFLOW CORES 2\n", b"CATEGORY=c\n", b".SIZE f 1\n", b"\0", b"\xef\xbb\xbf", b"\xa0", b"\xe2\x80\xa8"),
    *(b"\r\n", b"\\$A", b"CORES=99999999999999999999", b"MEMORY=1e400", b"\xff", b'"$A"', b"'$A'", b"A=\\$A\n"),
)
_JX_TEXTS = (
    b'{"a": 1 + 2 * 3, "b": [x * x for x in range(4) if x % 2 == 0], "c": "s" + 1, "d": not true or false}',
    b'[template("{n}.{N}", {"n": i}) for i in range(N), join(names, "-"), names[0], names[-1:], len(names)] # end',
    b'{"f": format("%d %s %f", 1, "x", 1.5), "g": basename("/a/b.c", ".c"), "h": like("abc", "a.*"), "i": ceil(1.2)}',
    b'{"define": {"k": 2, "l": [k, k + 1]}, "v": l[1] - k - 1, "w": {"a": 1}["a"], "x": -k, "y": escape("a\\"b")}',
    b'select([{"p": 1}, {"p": 2}], p > 1) + project([{"p": 1}], p + 1) + keys({"q": null}) + values({"q": 1.0e3})',
    b'"a" < "b" and 1 <= 2 || 3 != 4 && !(5 >= 6); ',
)
_JX_PIECES = (
    *(bytes([code]) for code in b' \n"\\{}[](),:;.+-*/%<>=!#019xe_'),
    *(b"==", b"!=", b"&&", b"||", b" and ", b" or ", b"not ", b" for x in ", b" if ", b"range(", b"true", b"null"),
    *(b"1e999", b"99999999999999999999", b'"\\u00e9"', b'"\\ud800"', b"\xff", b"\0", b"N", b"names", b"x", b'"x"'),
    *(b"error(", b"template(", b"format(", b"join(", b"len(", b"schema(", b"fetch(", b"listdir(", b"(" * 40, b"[" * 40),
    *(b'{"define": {"x": x}, ', b'"define": ', b"-9223372036854775808", b"0.5", b"1/0", b"// ", b"/*"),
)
_JSON_TEXTS = (
    b'{"categories": {"c": {"resources": {"cores": 1, "memory": 10}, "environment": {"X": "1"}}},\n'
    b' "default_category": "c", "environment": {"Y": "2"},\n "rules": [\n'
    b'  {"command": "cat in > out", "inputs": ["in"], "outputs": ["out"], "category": "c", "local_job": true},\n'
    b'  {"command": "cp out end", "inputs": [{"dag_name": "out", "task_name": "out"}], "outputs": ["end"],\n'
    b'   "resources": {"disk": 5, "gpus": 1, "wall-time": 60}, "allocation": "max", "environment": {"Z": "3"}}]}\n',
    b'{"rules": [{"workflow": "sub.jx", "args": {"n": 1}, "inputs": [], "outputs": ["a"]},'
    b' {"command": "true", "inputs": ["a"], "outputs": []}]}',
)
_JSON_PIECES = (
    *(bytes([code]) for code in b' \n"\\{}[],:-019.e#'),
    *(b"null", b"true", b"{}", b"[]", b'""', b'"rules": ', b'"command": ', b'"inputs": ', b'"outputs": ', b'"x"'),
    *(b'"resources": ', b'"cores": ', b'"category": ', b'"workflow": ', b"1e999", b"99999999999999999999", b"\xff"),
    *(b'{"dag_name": "x"}', b'{"task_name": "x"}', b'"allocation": ', b'"environment": ', b"[" * 40, b'"\\u0000"'),
)
_JX_WORKFLOW_TEXTS = (
    b'{"define": {"P": ["part." + i for i in range(N)]},\n "rules": [{"command": template("./step {i} > part.{i}"),'
    b' "inputs": ["step"], "outputs": ["part." + i]} for i in range(N),\n'
    b'  {"command": "cat " + join(P) + " > sum", "inputs": P, "outputs": ["sum"], "local_job": true}]}\n',
    *_JSON_TEXTS[:1],
)
_WFFORMAT_TEXTS = (
    b'{"name": "w", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": [\n'
    b' {"name": "a", "id": "a1", "parents": [], "children": ["b1"], "inputFiles": ["f"], "outputFiles": ["g"]},\n'
    b' {"name": "b", "id": "b1", "parents": ["a1"], "children": [], "inputFiles": ["g"], "outputFiles": []}],\n'
    b' "files": [{"id": "f", "sizeInBytes": 10}, {"id": "g", "sizeInBytes": 20}]},\n'
    b' "execution": {"makespanInSeconds": 3, "executedAt": "2024-01-01T00:00:00+00:00", "tasks": [\n'
    b'  {"id": "a1", "runtimeInSeconds": 1.5, "coreCount": 1, "machines": ["m"], "memoryInBytes": 1000,\n'
    b'   "command": {"program": "a", "arguments": ["-x", "f"]}}, {"id": "b1", "runtimeInSeconds": 1}],\n'
    b'  "machines": [{"nodeName": "m", "cpu": {"coreCount": 4, "speedInMHz": 2000}}]}}}\n',
    b'{"name": "v", "schemaVersion": "1.4", "createdAt": "2024-01-01T00:00:00Z", "workflow": {"makespanInSeconds": 1,'
    b' "executedAt": "20240101", "tasks": [{"name": "t", "type": "compute", "runtimeInSeconds": 2, "parents": [],'
    b' "children": [], "cores": 1, "files": [{"link": "output", "name": "o", "sizeInBytes": 5}]}]}}',
)
_WFFORMAT_PIECES = (
    *_JSON_PIECES[:29],
    *(b'"id": ', b'"tasks": ', b'"files": ', b'"parents": ', b'"children": ["a1"]', b'"runtimeInSeconds": -1', b'"b1"'),
    *(b'"sizeInBytes": 1e30', b'"1.6"', b'"coreCount": 0', b'"machines": ["n"]', b'"a1", ', b'"inputFiles": ["g"]'),
)

LANGUAGES: Mapping[str, Language] = {
    language.name: language
    for language in (
        Language("makeflow", _read_makeflow, _MAKEFLOW_TEXTS, _MAKEFLOW_PIECES),
        Language("jx", _read_jx, _JX_TEXTS, _JX_PIECES),
        Language("json workflow", _read_json_workflow, _JSON_TEXTS, _JSON_PIECES),
        Language("jx workflow", _read_jx_workflow, _JX_WORKFLOW_TEXTS, _JX_PIECES + _JSON_PIECES),
        Language("wfformat", _read_wfformat, _WFFORMAT_TEXTS, _WFFORMAT_PIECES),
    )
}
