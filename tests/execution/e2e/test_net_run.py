"""Nets on the command line: examples, kills and resumes, tokens from another terminal, pictures, and refusals."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.ledger.records import NetMarked
from shoal.ui.cli.main import main
from support.command import SHOAL, environment, shoal, start, wait_until
from support.ledgers import accepted, ledger_path, records, run_ids

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "nets"
SAID = {
    "newton": "{2.0: 1.414213562, 3.0: 1.732050808, 10.0: 3.16227766}",
    "knapsack": "86",
    "tree": "1181",
    "words": "a 5, is 4, rose 4, daisy 2, and 1, but 1, no 1, so 1",
    "backoff": "an answer at try 4",
    "render": "{'plain': 100}",
    "commands": "1 2 3",
}


class Said(NamedTuple):
    """What a command wrote."""

    stdout: str
    stderr: str


Inside = Callable[..., Said]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """Runs `shoal WORDS` in this process, which is much quicker, where nothing has to be killed."""

    def command(*words: str, expect: int = 0) -> Said:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        status = main(words)
        said = Said(*capsys.readouterr())
        assert status == expect, said
        return said

    return command


def example(directory: Path, name: str) -> Path:
    return Path(shutil.copy(EXAMPLES / f"{name}.py", directory))


@pytest.mark.parametrize("name", SAID)
def test_an_example_gives_its_result(tmp_path: Path, name: str, inside: Inside) -> None:
    example(tmp_path, name)
    assert inside("run", f"{name}.py", "--quiet").stdout.strip() == SAID[name]


def test_every_example_is_run_by_some_test() -> None:
    elsewhere = {"two_nodes"}  # with the run-time system
    assert {path.stem for path in EXAMPLES.glob("*.py")} - elsewhere == {*SAID, "stream"}


def test_the_faster_of_two_implementations_gets_most_of_the_tasks(tmp_path: Path, inside: Inside) -> None:
    example(tmp_path, "render")
    # On a machine that is busy with other things the faster one may look like the slower one: then it is tried again.
    assert any(rendered_by_vectors(inside) > 60 for _ in range(5))


def rendered_by_vectors(inside: Inside) -> int:
    said = inside("run", "render.py", "--label", "vector=yes", "--json", "--force").stdout.splitlines()
    result = json.loads(said[-1])["result"]
    assert result["plain"] + result["vector"] == 100
    return int(result["vector"])


def test_a_search_stops_early_when_its_best_value_is_good_enough(tmp_path: Path, inside: Inside) -> None:
    example(tmp_path, "knapsack")
    # How many tasks are done before somebody has seen the first value depends on who is quicker; not so of none at all.
    told = inside("run", "knapsack.py", "enough=0").stdout
    assert "ended: 0 tasks done" in told and told.endswith("result: 0\n")
    result = inside("run", "knapsack.py", "enough=1", "--force").stdout.splitlines()[-1]
    assert 1 <= int(result.removeprefix("result: ")) <= 86


def test_retries_that_come_to_nothing_are_given_up(tmp_path: Path, inside: Inside) -> None:
    example(tmp_path, "backoff")
    done = inside("run", "backoff.py", "failures=9", "tries=2", "--quiet")
    assert done.stdout.startswith("given up: ") and not done.stderr


# ---- again, anew, changed -------------------------------------------------------------------------------------------


def test_a_run_that_ended_tells_its_result_and_force_runs_it_again(tmp_path: Path, inside: Inside) -> None:
    flow = example(tmp_path, "tree")
    assert "91 tasks done (expand 46, add 45)" in inside("run", "tree.py").stdout
    again = inside("run", "tree.py").stdout
    assert "has ended before, with 91 tasks done; --force runs it again\nresult: 1181" in again
    assert json.loads(inside("run", "tree.py", "--json").stdout.splitlines()[-1])["result"] == 1181
    assert len(run_ids(flow)) == 1
    inside("run", "tree.py", "--force", "depth=1", "-q")
    inside("run", "tree.py", "depth=2", "-q")  # another net: it begins by itself
    assert len(run_ids(flow)) == 3


SLOW = """
import os
import time
from shoal import Net, count, each, take

net = Net("slow")


def hold():
    file = os.open("begun", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"x")
    number = os.lseek(file, 0, os.SEEK_CUR)
    os.close(file)
    while os.path.exists("most") and number > int(open("most").read()):
        time.sleep(0.02)


todo, seen = net.place("todo", [(1, 0)]), net.place("seen")


@net.task(node=take(todo))
def expand(node):
    number, depth = node
    time.sleep(0.01)
    hold()
    return {todo: each((number * 2 + kid, depth + 1) for kid in range(2)) if depth < 6 else each([]), seen: number}


@net.task(a=take(seen), b=take(seen), left=count(todo), when=lambda left: left == 0)
def add(a, b, left):
    time.sleep(0.01)
    hold()
    return {seen: a + b}


@net.step(total=take(seen), others=count(seen), left=count(todo), when=lambda others, left: others == 1 and left == 0)
def finish(total, others, left):
    return net.result(total)
"""
"""Tasks count themselves, and while the file `most` says how many may go on, the others wait to be killed."""
SLOW_SUM = sum(range(1, 128))
SLOW_TASKS = 127 + 126
KILLS = 3


def test_a_killed_net_goes_on_and_accepts_no_result_twice(tmp_path: Path) -> None:
    flow = tmp_path / "slow.py"
    flow.write_text(SLOW)
    dice = random.Random(8)
    ended = []
    for moment in sorted(dice.sample(range(SLOW_TASKS - 60), KILLS)):
        hold_after(tmp_path, moment)
        process = start(tmp_path, "run", "slow.py", "-q", "-j2")
        wait_until(partial(is_so_far, flow, moment), f"{moment} tasks are done")
        process.send_signal(signal.SIGKILL)
        ended.append(process.wait())
    assert ended == [-signal.SIGKILL] * KILLS
    (tmp_path / "most").unlink()
    assert "'shoal run' goes on from there" in shoal(tmp_path, "status", "slow.py").stdout
    assert shoal(tmp_path, "run", "slow.py", "-q").stdout == f"{SLOW_SUM}\n"
    results = Counter(record.task for record in accepted(flow))
    assert set(results.values()) == {1} and len(results) == SLOW_TASKS
    assert f"{SLOW_TASKS} tasks done" in shoal(tmp_path, "status", "slow.py").stdout


def hold_after(directory: Path, number: int) -> None:
    """Lets a run of the slow net go on until so many tasks are done, and a little further."""
    flow, begun = directory / "slow.py", directory / "begun"
    done = len(accepted(flow)) if ledger_path(flow).exists() else 0
    before = begun.stat().st_size if begun.exists() else 0
    (directory / "most").write_text(str(before + max(0, number - done) + 2))


def is_so_far(flow: Path, number: int) -> bool:
    return ledger_path(flow).exists() and len(run_ids(flow)) > 0 and len(accepted(flow)) >= number


def interrupted(tmp_path: Path, number: signal.Signals) -> int:
    """The exit status of a run that gets a signal when it has done something."""
    flow = tmp_path / "slow.py"
    flow.write_text(SLOW)
    hold_after(tmp_path, 5)
    process = start(tmp_path, "run", "slow.py", "-q")
    wait_until(lambda: is_so_far(flow, 5), "some tasks are done")
    process.send_signal(number)
    try:
        return process.wait(60)
    finally:
        (tmp_path / "most").unlink()


def test_an_interrupted_net_is_kept_and_another_net_cannot_go_on_from_it(tmp_path: Path) -> None:
    assert interrupted(tmp_path, signal.SIGINT) == 130
    assert "stopped (received SIGINT)" in shoal(tmp_path, "status", "slow.py").stdout
    flow = tmp_path / "slow.py"
    flow.write_text(SLOW.replace("others == 1", "others <= 1"))
    done = shoal(tmp_path, "run", "slow.py", expect=2)
    assert "is another one than when its run was cut short" in done.stderr and "--force" in done.stderr
    flow.write_text(SLOW.replace("time.sleep(0.01)", "time.sleep(0)"))  # a task may be mended
    done = shoal(tmp_path, "run", "slow.py", "--plain")
    assert "going on with net 'slow'" in done.stderr and f"result: {SLOW_SUM}" in done.stdout


def test_cancel_stops_a_net_that_then_goes_on(tmp_path: Path) -> None:
    flow = tmp_path / "slow.py"
    flow.write_text(SLOW)
    hold_after(tmp_path, 5)
    process = start(tmp_path, "run", "slow.py", "-q")
    wait_until(lambda: is_so_far(flow, 5), "some tasks are done")
    shoal(tmp_path, "cancel", "slow.py")
    assert process.wait(60) == 143
    (tmp_path / "most").unlink()
    assert shoal(tmp_path, "run", "slow.py", "-q").stdout == f"{SLOW_SUM}\n"


def test_a_net_that_fails_says_what_and_tries_it_again_when_mended(tmp_path: Path, inside: Inside) -> None:
    flow = example(tmp_path, "tree")
    text = flow.read_text()
    flow.write_text(text.replace("number, depth = node", "number, depth = node\n    assert number != 5, 'no fives'"))
    done = inside("run", "tree.py", expect=1)
    assert "could not come to a result" in done.stdout and "tries again what failed" in done.stdout
    assert "the task 'expand' failed with AssertionError: no fives" in done.stdout
    assert "failed: expand" in done.stderr
    assert "no fives" in inside("status", "tree.py").stdout
    flow.write_text(text)
    done = inside("run", "tree.py")
    assert "going on with net 'tree'" in done.stderr and "result: 1181" in done.stdout


def last_mark(flow: Path) -> NetMarked:
    return [record for record in records(flow) if isinstance(record, NetMarked)][-1]


# ---- tokens from another terminal -----------------------------------------------------------------------------------


def feed(tmp_path: Path, flow: Path) -> None:
    """What other terminals say while the stream is run."""
    wait_until(lambda: ledger_path(flow).exists() and len(records(flow)) >= 4, "the net is there")
    assert shoal(tmp_path, "put", "stream.py", "arrived", "3", "4").stdout == "put 2 tokens on 'arrived'\n"
    for words, complaint in {
        ("arrived", "5", '"x"'): "takes tokens of type int, not 'x' of type str",
        ("arivd", "1"): "the place 'arivd', which the net does not have",
    }.items():
        assert complaint in shoal(tmp_path, "put", "stream.py", *words, expect=2).stderr
    wait_until(lambda: last_mark(flow).done == {"square": 2}, "the tokens are worked on")
    told = shoal(tmp_path, "why", "stream.py").stdout
    assert "square: waits for 1 token on 'arrived'" in told and "the net 'stream' is running" in told
    shoal(tmp_path, "put", "stream.py", "end", "true", "--close")


def test_tokens_from_another_terminal_reach_a_running_net(tmp_path: Path) -> None:
    flow = example(tmp_path, "stream")
    refused = shoal(tmp_path, "put", "stream.py", "arrived", "3", expect=2)
    assert "stream.py is not being run" in refused.stderr
    with subprocess.Popen(
        [*SHOAL, "run", "stream.py", "-q"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            feed(tmp_path, flow)
            assert process.communicate(timeout=60)[0] == "25\n"
        finally:
            process.kill()
    assert "stream.py is not being run" in shoal(tmp_path, "put", "stream.py", "end", "1", expect=2).stderr


def test_a_net_kept_open_ends_when_it_is_closed(tmp_path: Path) -> None:
    example(tmp_path, "stream")
    process = start(tmp_path, "run", "stream.py", "-q")
    flow = tmp_path / "stream.py"
    wait_until(lambda: ledger_path(flow).exists() and len(records(flow)) >= 4, "the net is there")
    assert shoal(tmp_path, "put", "stream.py", "--close").stdout == "told the net that no more will come\n"
    assert process.wait(60) == 0


def test_a_workflow_that_is_no_net_takes_no_tokens(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("from shoal import task\ntask('all', run='sleep 100')\n")
    process = start(tmp_path, "run", "flow.py", "-q")
    wait_until(lambda: ledger_path(flow).exists() and bool(run_ids(flow)), "it is being run")
    done = shoal(tmp_path, "put", "flow.py", "place", "1", expect=2)
    assert "is no net and takes no tokens" in done.stderr
    process.terminate()
    process.wait()


# ---- looking at it --------------------------------------------------------------------------------------------------


def test_graph_draws_a_net(tmp_path: Path, inside: Inside) -> None:
    example(tmp_path, "tree")
    drawn = inside("graph", "tree.py").stdout
    assert drawn.startswith('digraph "tree"') and '"place todo" -> "transition expand"' in drawn
    told = json.loads(inside("graph", "tree.py", "--format", "json").stdout)
    assert [transition["name"] for transition in told["transitions"]] == ["expand", "add", "finish"]
    assert "leave out --by" in inside("graph", "tree.py", "--by", "category", expect=2).stderr
    if shutil.which("dot"):
        assert "<svg" in inside("graph", "tree.py", "--format", "svg").stdout


def test_status_and_why_show_the_marking(tmp_path: Path, inside: Inside) -> None:
    flow = example(tmp_path, "newton")
    assert "has not run yet; this is its initial marking" in inside("why", "newton.py").stdout
    inside("run", "newton.py", "squares=2", "-q")
    status = inside("status").stdout
    assert "net 'newton' came to its end" in status and "asked for: squares=2" in status
    assert re.search(r"place +tokens\n +guesses +0\n", status) and re.search(r"improve +0 +\d+", status)
    told = json.loads(inside("status", "newton.py", "--json").stdout)
    assert told["net"] == "newton" and told["outcome"] == "ok" and told["tokens"]["guesses"] == 0
    assert told["done"]["improve"] == len(accepted(flow))
    ended = f"improve: has ended: {len(accepted(flow))} tasks done, no token left\n"
    assert inside("why", "improve", "newton.py").stdout == ended
    assert "no transition 'nobody'" in inside("why", "nobody", "newton.py", expect=2).stderr


def test_json_lines_tell_tasks_marks_and_the_end(tmp_path: Path, inside: Inside) -> None:
    example(tmp_path, "tree")
    lines = [json.loads(line) for line in inside("run", "tree.py", "--json").stdout.splitlines()]
    events = Counter(line["event"] for line in lines)
    assert events["run_started"] == events["run_ended"] == 1 and events["task_ended"] == 91 and events["marked"] >= 1
    assert lines[0]["event"] == "run_started" and lines[-1]["status"] == 0 and lines[-1]["result"] == 1181
    assert {line["transition"] for line in lines if line["event"] == "task_ended"} == {"expand", "add"}


def test_what_functions_print_is_not_mixed_with_the_result(tmp_path: Path, inside: Inside) -> None:
    flow = example(tmp_path, "tree")
    flow.write_text(flow.read_text().replace("number, depth = node", "number, depth = node\n    print('at', number)"))
    said = inside("run", "tree.py", "depth=1", "--quiet")
    assert said.stdout == "6\n" and sorted(said.stderr.split("\n")) == ["", "at 1", "at 2", "at 3"]


# ---- bad input ------------------------------------------------------------------------------------------------------

NET = "from shoal import Net, rule, take\nnet = Net('a')\nnet.place('p')\n"


@pytest.mark.parametrize(
    ("text", "words", "complaint"),
    [
        (NET + "other = Net('b')\n", [], "defines 2 nets, 'a' and 'b'"),
        (NET + "rule('{x}.out', run='touch {out}')\n", [], "defines the net 'a' and rules"),
        (NET, ["all"], "a net has no targets"),
        (NET, ["--order", "lifo"], "--order means nothing for the net 'a'"),
        (NET, ["--check", "content"], "--check means nothing for the net 'a'"),
        (NET, ["--fail-fast"], "--fail-fast means nothing for the net 'a'"),
        (NET, ["m=3"], "there is no parameter 'm'"),
        (NET + "net.task(x=take(net.place('q', [1])), gpus=77)(abs)\n", [], "can never run"),
        (NET + "net.step(y=take(net.place('q')))(lambda x: x)\n", [], "has a port 'y' that is not a parameter"),
        (NET + "net.place('q', [1], type=str)\n", [], "takes tokens of type str, not 1 of type int"),
        (NET, ["--dry-run"], "defines the net 'a', which has no tasks that are known beforehand"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    tmp_path: Path, text: str, words: list[str], complaint: str, inside: Inside
) -> None:
    (tmp_path / "net.py").write_text(text)
    said = inside("run", "net.py", *words, expect=2)
    assert complaint in said.stderr and said.stderr.startswith("shoal: ") and not said.stdout
    assert not (tmp_path / ".shoal").exists()


def test_a_sub_net_and_a_second_name_are_the_same_net(tmp_path: Path, inside: Inside) -> None:
    text = "from shoal import Net\nnet = Net('a')\nagain, left = net, net.sub('left')\nleft.place('p', [1])\n"
    (tmp_path / "net.py").write_text(text)
    assert "tokens: left.p 1" in inside("run", "net.py").stdout


def test_tokens_may_be_of_classes_that_the_file_defines_also_after_a_kill(tmp_path: Path) -> None:
    flow = tmp_path / "shapes.py"
    flow.write_text(
        "import os, time\nfrom dataclasses import dataclass\nfrom shoal import Net, take\n"
        "@dataclass(frozen=True)\nclass Shape:\n    size: int\n"
        "net = Net('shapes')\n"
        "small = net.place('small', [Shape(1), Shape(2)], type=Shape)\n"
        "large = net.place('large', type=Shape)\n"
        "@net.task(s=take(small), put=large)\n"
        "def grow(s):\n"
        "    while s.size == 2 and not os.path.exists('go'):\n        time.sleep(0.01)\n"
        "    return Shape(s.size * 10)\n"
        "@net.step(a=take(large), b=take(large))\n"
        "def both(a, b):\n    return net.result(sorted([a.size, b.size]))\n"
    )
    process = start(tmp_path, "run", "shapes.py", "-q")
    wait_until(lambda: is_so_far(flow, 1), "one has grown")
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    assert shoal(tmp_path, "run", "shapes.py", "-q").stdout == "[10, 20]\n"


TRIED = """\
import os

from shoal import Net, take

net = Net("tried")
todo, made = net.place("todo", ["good", "bad"]), net.place("made")


@net.task(word=take(todo), put=made, retries=2)
def attempt(word):
    number = len([name for name in os.listdir() if name.startswith(word)]) + 1
    print(f"{word} for the {number}. time")
    open(f"{word}{number}", "w").close()
    if word == "bad" or number < 3:
        raise ValueError(f"not at the {number}. time")
    return word
"""


def test_attempts_of_tasks_are_recorded_with_what_they_wrote(tmp_path: Path, inside: Inside) -> None:
    (tmp_path / "net.py").write_text(TRIED)
    inside("run", "net.py", "--quiet", expect=1)
    tasks = json.loads(inside("status", "net.py", "--tasks", "--json").stdout)
    good = next(task for task in tasks if task["state"] == "done")
    bad = next(task for task in tasks if task["state"] == "failed")
    assert good["attempts"] == bad["attempts"] == 3 and good["seconds"] > 0 and bad["seconds"] > 0
    assert inside("output", good["name"], "net.py").stdout == "good for the 3. time\n"
    first = inside("output", good["name"], "net.py", "--attempt", "1").stdout
    assert first.startswith("good for the 1. time\nTraceback") and first.endswith("ValueError: not at the 1. time\n")
    said = inside("output", bad["name"], "net.py").stdout
    assert said.startswith("bad for the 3. time\nTraceback") and "in attempt" in said
    assert json.loads(inside("status", "net.py", "--json").stdout)["done"] == {"attempt": 1}
    (tmp_path / "net.py").write_text(TRIED.replace('word == "bad" or', ""))
    inside("run", "net.py", "--quiet")
    assert json.loads(inside("status", "net.py", "--json").stdout)["done"] == {"attempt": 2}
