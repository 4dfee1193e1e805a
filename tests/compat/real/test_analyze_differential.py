"""`shoal makeflow-analyze` and `makeflow-viz` beside the original programs, on the same files.

What they print must be the same, byte for byte. Where the original is known to err (names that its drawings do not
quote, JSON it cannot read again) the files here keep clear of it, or the expectation says what ours does instead.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ui.cli.main import main

pytestmark = pytest.mark.skipif(shutil.which("makeflow_analyze") is None, reason="the original is not installed")

FLOWS = {
    "empty": "",
    "comment only": "# nothing here\n",
    "one rule": "out: in\n\tcat in > out\n",
    "no inputs": "out:\n\tdate > out\n",
    "no outputs": ": in\n\techo in\n",
    "neither": ":\n\techo\n",
    "several outputs": "a b c: in\n\ttouch a b c\n",
    "several inputs": "out: a b c d e f g\n\tcat a b c d e f g > out\n",
    "same input twice": "out: in in\n\tcat in in > out\n",
    "same output twice": "out out: in\n\tcat in > out\n",
    "chain": "b: a\n\tcp a b\nc: b\n\tcp b c\nd: c\n\tcp c d\n",
    "chain written backwards": "d: c\n\tcp c d\nc: b\n\tcp b c\nb: a\n\tcp a b\n",
    "diamond": "l r: top\n\tsplit top\nx: l\n\twc l\ny: r\n\twc r\nend: x y\n\tcat x y\n",
    "fan": "".join(f"part.{n}: whole\n\t./cut {n}\n" for n in range(20)) + "whole: in\n\tcp in whole\n",
    "fan in": "".join(f"part.{n}:\n\t./make {n}\n" for n in range(20))
    + f"sum: {' '.join(f'part.{n}' for n in range(20))}\n\tadd\n",
    "two files of one parent": "a b: in\n\tx\nc: a b\n\ty\nd: a b\n\tz\ne: a\n\tw\n",
    "grid": "".join(f"g.{r}.{c}: g.{r - 1}.{c} g.{r}.{c - 1}\n\t./cell\n" for r in range(1, 6) for c in range(1, 6)),
    "directories": "out/: in/ ./here/ sub/dir/file\n\tcp -r in out\n",
    "absolute names": "/tmp/result: /etc/passwd passwd\n\tcat /etc/passwd > /tmp/result\n",
    "renames": "out->o: in->i tool\n\t./tool i o\n",
    "sub-workflow": "out: in\n\tMAKEFLOW child.mf\n",
    "local sub-workflow": "out: in\n\tLOCAL MAKEFLOW child.mf\n",
    "local": "out: in\n\tLOCAL cp in out\n",
    "variables": "TOOL=./tool\nIN=a b\nN=3\nN+=4\nout.$N: $IN $TOOL\n\t$TOOL $(IN) ${N} \"$N\" '$N' > out\n",
    "rule's own variables": "out: in\nMEMORY=200\n@CORES=2\nX=1\n\ttool $X\n",
    "categories": ".MAKEFLOW CATEGORY big\n.MAKEFLOW CORES 4\n.MAKEFLOW MEMORY 1000\na: in\n\tx\n"
    ".MAKEFLOW CATEGORY small\nMEMORY=5\nDISK=6\nb: a\n\ty\nCATEGORY=big\nc: b\n\tz\n",
    "export": "export A=1\nB=2\nexport B C\nout: in\n\techo $A\n",
    "sizes": ".SIZE in 5M\n.SIZE elsewhere 3\nout: in\n\tcp in out\n",
    "inputs and outputs": "MAKEFLOW_INPUTS=seen\nMAKEFLOW_OUTPUTS=out\nout: in\n\tcp in out\n",
    "continuation": "out: in\n\tcat \\\n  in \\\n  > out\n",
    "blanks in names": "\"a file\": 'another file' plain\\ file\n\tcat x\n",
    "blank and comment lines": "\n# one\n\nout: in # two\n\n# three\n\tcat in # four\n\n",
    "path of program": "out: in\n\t./bin/prog in > out\n",
    "unusual names": "a+b c,d e~f g@: %h ;i x|y\n\techo\n",
    "letters": "ergebnis-größe.txt: 日本\n\techo ü\n",
}

JSON_DIFFERS = (
    "MAKEFLOW",  # resources of categories go under "resources"; a sub-workflow without arguments is "args":, there
    "->",  # the two names are the wrong way round there
    "'$",  # a single quote is escaped there, which JSON does not know
    "ü",  # every byte beyond ASCII becomes a character of its own there
    "\\\n",  # continued lines leave two blanks there
    "in #",  # a comment leaves a blank there
)

CYCLES = {
    "two rules": "a: b\n\tx\nb: a\n\tx\n",
    "itself": "a: a\n\tx\n",
}


def random_flow(seed: int) -> str:
    """Rules over random earlier files, with names of all lengths so that many buckets of the table are used."""
    chooser = random.Random(seed)
    files = [f"in{chooser.randrange(10**6)}" for _ in range(5)]
    lines = []
    for rule in range(chooser.choice([3, 30, 300])):
        made = [
            f"{'x' * chooser.randrange(20)}{rule}.{n}.{chooser.randrange(10**6)}" for n in range(chooser.randrange(4))
        ]
        read = [chooser.choice(files) for _ in range(chooser.randrange(5))]
        lines.append(f"{' '.join(made)}: {' '.join(read)}\n\t./p{chooser.randrange(5)} {rule}\n")
        files += made
    if seed % 2:
        chooser.shuffle(lines)
    return "".join(lines)


FLOWS |= {f"random {seed}": random_flow(seed) for seed in range(6)}


def original(directory: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"OMPI_MCA_ess_singleton_isolated": "1"}
    return subprocess.run(words, cwd=directory, env=environment, capture_output=True, timeout=60)


class Programs:
    """The original programs as processes, and ours in this process, which is many times quicker."""

    def __init__(self, directory: Path, printed: pytest.CaptureFixture[bytes]) -> None:
        self.directory = directory
        self.printed = printed

    def both(self, command: str, *words: str) -> tuple[bytes, bytes]:
        """What the original and what ours print for a file that both must accept."""
        theirs = original(self.directory, f"makeflow_{command}", *words)
        assert theirs.returncode == 0, theirs.stderr.decode()
        status, out, said = self.ours(command, *words)
        assert status == 0, said
        return theirs.stdout, out

    def ours(self, command: str, *words: str) -> tuple[int, bytes, str]:
        status = main([f"makeflow-{command}", *words])
        captured = self.printed.readouterr()
        return status, captured.out, captured.err.decode()


@pytest.fixture
def programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Programs]:
    monkeypatch.chdir(tmp_path)
    yield Programs(tmp_path, capsysbinary)
    gc.enable()  # the command turns it off for the rest of its process


@pytest.fixture(params=FLOWS)
def flow(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "flow.mf"
    file.write_text(FLOWS[request.param])
    return file


def test_every_listing_is_the_original_s(programs: Programs, flow: Path) -> None:
    for option in ("-k", "-i", "-I", "-O"):
        theirs, ours = programs.both("analyze", option, flow.name)
        assert ours == theirs, option


def test_every_drawing_for_graphviz_is_the_original_s(programs: Programs, flow: Path) -> None:
    for options in (
        ["-D", "dot"],
        ["--dot-merge-similar"],
        ["--dot-no-labels"],
        ["--dot-task-id", "--dot-merge-similar"],
        ["--dot-graph-attr=rankdir=LR", "--dot-node-attr", "fontsize=9", "--dot-task-attr", "penwidth=2"],
    ):
        theirs, ours = programs.both("viz", *options, flow.name)
        assert ours == theirs, options


def test_json_of_the_original_is_ours_but_for_what_it_gets_wrong(programs: Programs, flow: Path) -> None:
    theirs, ours = programs.both("viz", "-D", "json", flow.name)
    if not any(word in flow.read_text() for word in JSON_DIFFERS):
        assert ours == theirs
    back = flow.with_name("back.json")
    back.write_bytes(ours)
    rules = json.loads(ours)["rules"]
    read_again = original(flow.parent, "makeflow_analyze", "--json", "-i", back.name)
    assert read_again.returncode == 0, read_again.stderr.decode()
    assert f"num_of_tasks\t{len(rules)}\n" in read_again.stdout.decode()
    for option in ("-I", "-O"):
        listed = original(flow.parent, "makeflow_analyze", option, flow.name).stdout.split(b"\n")
        again = original(flow.parent, "makeflow_analyze", "--json", option, back.name).stdout.split(b"\n")
        assert sorted(again) == sorted(name for name in listed if name != b"elsewhere")


@pytest.mark.parametrize("name", ["one rule", "diamond", "fan", "chain written backwards", "random 1", "random 4"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--ppm-show-levels"],
        ["--ppm-highlight-row", "1"],
        ["--ppm-highlight-file", "x"],
        ["--ppm-highlight-exe", "wc"],
    ],
    ids=" ".join,
)
def test_pictures_are_the_original_s(programs: Programs, tmp_path: Path, name: str, options: list[str]) -> None:
    (tmp_path / "flow.mf").write_text(FLOWS[name])
    theirs, ours = programs.both("viz", "-D", "ppm", *options, "flow.mf")
    assert ours == theirs


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_is_an_error_where_the_original_sees_none(programs: Programs, tmp_path: Path, name: str) -> None:
    (tmp_path / "flow.mf").write_text(CYCLES[name])
    assert original(tmp_path, "makeflow_analyze", "-k", "flow.mf").returncode == 0
    status, _, said = programs.ours("analyze", "-k", "flow.mf")
    assert status == 1
    assert "cycle" in said


@pytest.mark.parametrize(
    "text",
    [
        "a:\n\tx\na: b\n\ty\n",
        "a: b\n",
        "a: b\n\tx\n\ty\n",
        "nothing that is known\n",
        ".MAKEFLOW CORES many\n",
        ".MAKEFLOW MODE SOMEHOW\n",
        ".MAKEFLOW COLOUR red\n",
        ".SIZE x\n",
        "a: $UNDEFINED_HERE\n\tx\n",
        "a: b\n\techo 'open\n",
        "export\n",
        "\tcommand\n",
        "A?=x\n",
    ],
)
def test_what_the_original_refuses_ours_refuses_with_a_place(programs: Programs, tmp_path: Path, text: str) -> None:
    (tmp_path / "flow.mf").write_text(text)
    assert original(tmp_path, "makeflow_analyze", "-k", "flow.mf").returncode != 0
    status, _, said = programs.ours("analyze", "-k", "flow.mf")
    assert status == 1
    assert "flow.mf:" in said
    assert said.rstrip().endswith("^")
