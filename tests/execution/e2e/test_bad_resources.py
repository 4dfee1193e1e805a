"""Resources that cannot be meant: one sentence with place and remedy, a status that is not 0, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import shoal


def refused(directory: Path, *words: str, expect: int = 2) -> str:
    """What is said; it is short, and no traceback."""
    done = shoal(directory, *words, expect=expect)
    assert "Traceback" not in done.stderr
    assert not (directory / "out").exists(), "something was run"
    first = done.stderr.splitlines()[0]
    assert len(first) < 500
    return first


RULES = [
    ("licence=1", "unknown option 'licence'"),
    ("memory='-1G'", "memory '-1G' is not a size"),
    ("memory=-5", "memory must be a positive number, not -5"),
    ("memory='lots'", "memory 'lots' is not a size"),
    ("disk='3Q'", "disk '3Q' is not a size"),
    ("cores=-1", "cores must be a positive number, not -1"),
    ("cores='two'", "cores must be a number such as 1 or 0.5, not 'two'"),
    ("gpus=float('nan')", "gpus must be a positive number"),
    ("resources={'licence': -1}", "licence must be a positive number"),
    ("resources={'memory': '1G'}, memory='2G'", "memory is given twice"),
    ("timeout=-1", "timeout must be a number of seconds greater than 0"),
    ("memory='900T'", "'out' asks for memory 900 TiB, but this machine has"),
    ("cores=4000", "'out' asks for cores 4000, but this machine has"),
    ("gpus=1", "'out' asks for gpus 1, but this machine has 0"),
    ("resources={'licence': 1}", "'out' asks for licence 1, but this machine has 0"),
]


@pytest.mark.parametrize(("option", "said"), RULES)
def test_a_rules_file(tmp_path: Path, option: str, said: str) -> None:
    (tmp_path / "flow.py").write_text(f"from shoal import rule\n\nrule('out', run='touch out', {option})\n")
    sentence = refused(tmp_path, "run", "flow.py", "out")
    assert sentence.startswith("shoal: flow.py:3: ")
    assert said in sentence


def test_what_the_node_has_not_got_can_be_offered_as_the_sentence_says(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule\nrule('out', run='touch out', resources={'licence': 2})\n"
    )
    assert "--resource licence=N" in refused(tmp_path, "run", "flow.py", "out")
    assert "licence 2, but this machine has 1" in refused(tmp_path, "run", "flow.py", "out", "--resource", "licence=1")
    shoal(tmp_path, "run", "flow.py", "out", "--resource", "licence=2", "--quiet")
    assert (tmp_path / "out").exists()


MAKEFLOW = [
    (".MAKEFLOW MEMROY 5", 1, "does not support 'MEMROY'"),
    (".MAKEFLOW MEMORY -5", 1, "MEMORY must be a number, not '-5'"),
    (".MAKEFLOW CORES two", 1, "CORES must be a number, not 'two'"),
    ("MEMORY=lots", 2, "MEMORY must be a non-negative number, not 'lots'"),
    ("DISK=3Q", 2, "DISK must be a non-negative number, not '3Q'"),
    ("CORES=-2", 2, "CORES must be a non-negative number, not '-2'"),
    ("WALL_TIME=soon", 2, "WALL_TIME must be a non-negative number, not 'soon'"),
    ("CORES=4000", 2, "'out' asks for cores 4000, but this machine has"),
    ("MEMORY=900000000", 2, "'out' asks for memory"),
    ("DISK=900000000000", 2, "'out' asks for disk"),
    ("GPUS=9", 2, "'out' asks for gpus 9, but this machine has 0"),
]


@pytest.mark.parametrize(("setting", "line", "said"), MAKEFLOW)
def test_a_makeflow(tmp_path: Path, setting: str, line: int, said: str) -> None:
    (tmp_path / "Makeflow").write_text(f"{setting}\nout:\n\ttouch out\n")
    sentence = refused(tmp_path, "run", "Makeflow")
    assert sentence.startswith(f"shoal: Makeflow:{line}:")
    assert said in sentence


def test_a_variable_of_one_rule_is_refused_at_that_rule(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("first:\n\ttouch first\nout:\nMEMORY=-7\n\ttouch out\n")
    assert "Makeflow:3:1: MEMORY must be" in refused(tmp_path, "run", "Makeflow")
    assert not (tmp_path / "first").exists()


def test_a_path_is_a_variable_of_the_user_and_the_environment_is_no_part_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY", "much")
    (tmp_path / "Makeflow").write_text("DISK=/dev/sda\nout:\n\ttouch out\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    assert (tmp_path / "out").exists()


JX = [
    ('"memory": "lots"', 'memory must be a non-negative whole number, not "lots"'),
    ('"memory": -5', "memory must be a non-negative whole number, not -5"),
    ('"cores": [1]', "cores must be a non-negative whole number, not a list"),
    ('"disk": 1.5', "disk must be a non-negative whole number, not 1.5"),
    ('"wall-time": "soon"', 'wall-time must be a non-negative whole number, not "soon"'),
    ('"licence": 1', "unknown resource 'licence'"),
    ('"cores": 4000', "'out' asks for cores 4000, but this machine has"),
    ('"gpus": 2', "'out' asks for gpus 2, but this machine has 0"),
]


@pytest.mark.parametrize(("resources", "said"), JX)
@pytest.mark.parametrize("of", ["rule", "category"])
def test_a_json_workflow(tmp_path: Path, resources: str, said: str, of: str) -> None:
    text = """{"categories": {"c": {"resources": {OF-CATEGORY}}},
 "rules": [{"command": "touch out", "outputs": ["out"], "category": "c", "resources": {OF-RULE}}]}
"""
    for place in ("rule", "category"):
        text = text.replace(f"OF-{place.upper()}", resources if of == place else "")
    (tmp_path / "flow.jx").write_text(text)
    sentence = refused(tmp_path, "run", "flow.jx")
    assert sentence.startswith("shoal: flow.jx:")
    assert said in sentence


OPTIONS = [
    (("--sizing", "magic"), "--sizing cannot be 'magic'"),
    (("--memory", "-3"), "memory '-3' is not a size"),
    (("--memory", "lots"), "memory 'lots' is not a size"),
    (("--disk", "nan"), "disk 'nan' is not a size"),
    (("--jobs", "-1"), "--jobs must be a positive number of cores, not '-1'"),
    (("--resource", "x=-1"), "x must be a positive number, not '-1'"),
    (("--resource", "x"), "--resource 'x' has no amount"),
]


@pytest.mark.parametrize(("words", "said"), OPTIONS)
def test_the_options_of_run(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "Makeflow").write_text("out:\n\ttouch out\n")
    assert said in refused(tmp_path, "run", "Makeflow", *words)


LIMITS = [
    ("memroy: 4", "unknown limit 'memroy'"),
    ("memory: -4", "'-4' is not a valid limit of memory"),
    ("memory: lots", "'lots' is not a valid limit of memory"),
    ("memory: nan", "'nan' is not a valid limit of memory"),
    ("memory", "'memory' is not a limit"),
]


@pytest.mark.parametrize(("limit", "said"), LIMITS)
def test_the_limits_of_the_monitor(tmp_path: Path, limit: str, said: str) -> None:
    assert said in refused(tmp_path, "monitor", "-L", limit, "--", "touch", "out", expect=4)


TRACES = [
    ("peak,time\n-3,1\n", (), "trace.csv:2: peak must be a positive number, not '-3'"),
    ("peak,time\n3,1\nlots,1\n", (), "trace.csv:3: peak must be a number, not 'lots'"),
    ("peak,time\n3,-1\n", (), "trace.csv:2: time must be a positive number"),
    ("size,time\n3,1\n", (), "trace.csv:1: the trace has no column 'peak'"),
    ("peak,time,resource\n3,1,memory\n", ("--node", "dsk=5"), "the trace has no resource 'dsk'"),
    ("peak,time\n3,1\n", ("--node", "-5"), "--node must be a positive number, not '-5'"),
    ("peak,time\n3,1\n", ("--node", "2"), "task 1 peaks at 3, but a node has only 2"),
    ("peak,time\n3,1\n", ("--mode", "magic"), "there is no mode 'magic'"),
]


@pytest.mark.parametrize(("trace", "words", "said"), TRACES)
def test_a_trace_for_sizing(tmp_path: Path, trace: str, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "trace.csv").write_text(trace)
    assert said in refused(tmp_path, "sizing", "trace.csv", *words)


def test_a_plot_that_cannot_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("made:\n\ttouch made\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    assert "--plot needs --categories or --throttle; add" in refused(tmp_path, "status", "--plot", "x.svg")
    sentence = refused(tmp_path, "status", "--categories", "--plot", "no/where.svg")
    assert "the plot 'no/where.svg' cannot be written: No such file or directory" in sentence
