"""`shoal why` asks a live run, and nothing that it asks can harm that run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command import PATIENCE, SHOAL, environment, shoal, wait_until

GATED = """from shoal import task
task("slow", run="while ! test -e go; do sleep 0.05; done", cores=1)
for name in ("one", "two"):
    task(name, run="true", cores=1)
"""


@contextmanager
def gated(folder: Path, flow: str, *targets: str, ends: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A run on one core whose first task waits for the file `go`."""
    (folder / "flow.py").write_text(flow)
    words = [*SHOAL, "run", "flow.py", *targets, "--jobs", "1", "--order", "fifo", "--quiet"]
    run = subprocess.Popen(words, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: " running" in shoal(folder, "why", "slow", "flow.py", expect=None).stdout, "it runs")
        yield run
        (folder / "go").touch()
        assert run.wait(PATIENCE) == ends
    finally:
        if run.poll() is None:
            run.kill()
        run.wait()


def requests(folder: Path) -> Path:
    return folder / ".shoal" / "flow.py" / "requests"


def why(folder: Path, *words: str) -> str:
    return shoal(folder, "why", *words, "flow.py").stdout


def test_a_task_that_was_cancelled_in_the_queue_is_told_so(tmp_path: Path) -> None:
    with gated(tmp_path, GATED, "slow", "one", ends=1):
        shoal(tmp_path, "cancel", "flow.py", "one")
        wait_until(lambda: "cancelled" in why(tmp_path, "one"), "it is known")
        assert why(tmp_path, "one") == "'one' was cancelled.\n"
        told = json.loads(shoal(tmp_path, "why", "one", "flow.py", "--json").stdout)
        assert (told["cause"], told["cancelled"]) == ("failed", True)
        assert "  1 was cancelled" in why(tmp_path)


def test_questions_that_nobody_of_ours_asks_leave_the_run_alone(tmp_path: Path) -> None:
    with gated(tmp_path, GATED, "slow", "one") as run:
        place = requests(tmp_path)
        for name, content in (
            ("1", b"\xff\xfe not json"),
            ("2", json.dumps({"task": "9" * 5000}).encode()),
            ("3", json.dumps({"task": "one", "since": {"0": 1e300}}).encode()),
            ("4", b'{"task": 12}'),
        ):
            (place / f"{name}.why").write_bytes(content)
        os.mkfifo(place / "5.why")
        os.kill(run.pid, signal.SIGUSR1)
        wait_until(lambda: not list(place.glob("*.why")), "all were taken")
        assert "'one' is queued and waits for cores" in why(tmp_path, "one")
        assert "nothing makes the target '999" in shoal(tmp_path, "why", "9" * 5000, "flow.py", expect=2).stderr


def test_a_name_that_is_no_text_can_be_asked_for(tmp_path: Path) -> None:
    flow = GATED + 'task("b\\udcff.txt", run="true", cores=1)\ntask("last", needs=["b\\udcff.txt"], run="true")\n'
    with gated(tmp_path, flow, "slow", "last"):
        assert "'last' waits for the task 'b\ufffd.txt'" in why(tmp_path, "last")
        told = json.loads(shoal(tmp_path, "why", "last", "flow.py", "--json").stdout)
        assert "b\ufffd.txt" in told["names"].values()


def test_a_run_that_is_still_planning_is_not_ended_by_a_question(tmp_path: Path) -> None:
    """It looks at the content of a large file first, which takes longer than anybody waits."""
    (tmp_path / "flow.py").write_text('from shoal import rule\nrule("copy", ["source"], run="cp source copy")\n')
    with open(tmp_path / "source", "wb") as file:
        file.truncate(1 << 40)
    words = [*SHOAL, "run", "flow.py", "copy", "--check", "content", "--quiet"]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL)
    try:
        lock = tmp_path / ".shoal" / "flow.py" / "lock"
        wait_until(lambda: lock.exists() and lock.stat().st_size > 0, "it holds the lock")
        os.kill(run.pid, signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):  # it would be gone at once
            run.wait(0.2)
    finally:
        run.kill()
        run.wait()


def test_what_was_asked_of_an_earlier_run_is_not_asked_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text('from shoal import task\ntask("one", run="true")\n')
    place = requests(tmp_path)
    place.mkdir(parents=True)
    (place / "1.cancel").write_text('["one"]')
    shoal(tmp_path, "run", "flow.py", "one", "--quiet")
    assert not list(place.iterdir())


def test_a_run_that_does_not_answer_is_told_so(tmp_path: Path) -> None:
    with gated(tmp_path, GATED, "slow", "one") as run:
        wait_until(lambda: json.loads(shoal(tmp_path, "status", "flow.py", "--json").stdout)["running_tasks"], "seen")
        os.kill(run.pid, signal.SIGSTOP)
        try:
            silent = f"process {run.pid} does not answer; its ledger says: "
            short = "waits for cores: it asks for 1, and 0 of 1 are free; held by 'slow' (1)"
            assert why(tmp_path, "one") == f"{silent}'one' is queued and {short}.\n"
            told = json.loads(shoal(tmp_path, "why", "slow", "flow.py", "--json").stdout)
            assert (told["silent"], told["cause"]) == (f"process {run.pid} does not answer", "running")
            whole = json.loads(shoal(tmp_path, "why", "flow.py", "--json").stdout)
            assert whole["text"].startswith(silent)
            assert (whole["state"], whole["running"], whole["waiting"]) == ("running", 1, 1)
        finally:
            os.kill(run.pid, signal.SIGCONT)


def test_in_a_run_that_stops_nothing_is_promised(tmp_path: Path) -> None:
    """What runs may finish, and takes its time."""
    flow = GATED.replace('done", cores=1', 'done", cores=0.5') + 'task("bad", run="exit 3", cores=0.5)\n'
    flow += 'task("after", needs=["slow"], run="true")\ntask("last", needs=["after"], run="true")\n'
    reason = "'bad' failed and --fail-fast was given"
    with gated(tmp_path, flow, "slow", "one", "last", "bad", "--fail-fast", ends=1):
        wait_until(lambda: "will not start" in why(tmp_path, "one"), "it stops")
        assert why(tmp_path, "one") == f"'one' is ready and will not start: {reason}.\n"
        said = why(tmp_path, "last")
        chain = "it depends on the task 'after', which depends on 'slow'"
        assert said.startswith(f"'last' will not start: {reason}; {chain}")
        told = json.loads(shoal(tmp_path, "why", "last", "flow.py", "--json").stdout)
        assert told["cause"] == "stopping" and "starts" not in told


def test_why_a_task_is_not_part_of_the_run_is_known(tmp_path: Path) -> None:
    flow = GATED + 'task("more", run="true", cores=1)\n'
    (tmp_path / "flow.py").write_text(flow)
    shoal(tmp_path, "run", "flow.py", "one", "--quiet")
    with gated(tmp_path, flow, "slow", "one"):
        said = why(tmp_path, "one")
        assert said.startswith("'one' is not part of this run: it was up to date when the run began: done at "), said
        assert why(tmp_path, "more") == "'more' is not part of this run: no target needs it.\n"


def test_rules_of_which_none_is_asked_for_are_looked_at_with_the_task_as_target(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text('from shoal import rule\nrule("made{n}", run="touch made{n}")\n')
    assert "'made7' would run because it has no recorded result" in why(tmp_path, "made7")
    assert "nothing makes the target 'other'" in shoal(tmp_path, "why", "other", "flow.py", expect=2).stderr


def test_what_has_failed_is_told_with_its_cause_to_programs(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        'from shoal import task\ntask("bad", run="exit 3")\ntask("after", needs=["bad"], run="true")\n'
    )
    shoal(tmp_path, "run", "flow.py", "after", "--quiet", expect=1)
    told = json.loads(shoal(tmp_path, "why", "bad", "flow.py", "--json").stdout)
    assert (told["last"], told["cause"]) == ("failed", "would run")
    assert "3" in told["detail"]
    whole = json.loads(shoal(tmp_path, "why", "flow.py", "--json").stdout)
    assert (whole["state"], whole["outcome"], whole["failed"], whole["done"]) == ("ended", "failed", 1, 0)
    assert whole["failures"][0]["name"] == "bad"


def test_what_fails_while_the_run_goes_on_is_told_with_how_it_failed(tmp_path: Path) -> None:
    flow = 'from shoal import task\ntask("bad", run="exit 3", cores=1)\n' + GATED
    flow += 'task("child", needs=["bad"], run="true")\ntask("last", needs=["child"], run="true")\n'
    with gated(tmp_path, flow, "bad", "last", "slow", ends=1):
        told = json.loads(shoal(tmp_path, "why", "bad", "flow.py", "--json").stdout)
        assert told["cause"] == "failed" and "3" in told["detail"] and "cancelled" not in told
        said = why(tmp_path, "last")
        assert said.startswith("'last' cannot run: it depends on 'child', which depends on 'bad'; 'bad' failed: "), said
        assert "  1 failed; 2 cannot run because of that" in why(tmp_path)


NET = """from shoal import Net, take
import os, time
net = Net("search")
todo, done = net.place("todo", [1, 2]), net.place("done")
@net.task(x=take(todo))
def work(x):
    while not os.path.exists("go"):
        time.sleep(0.05)
    return {done: x}
"""


def test_a_net_is_told_before_it_runs_and_without_its_file_while_it_does(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    assert shoal(tmp_path, "why", "work", "net.py").stdout.startswith("work: has tokens on all its places")
    words = [*SHOAL, "run", "net.py", "--jobs", "1", "--quiet"]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: "is running; tasks: work" in shoal(tmp_path, "why", expect=None).stdout, "it runs")
        assert shoal(tmp_path, "why").stdout.startswith("the net 'search' is running; tasks: work ")
        (tmp_path / "go").touch()
        assert run.wait(PATIENCE) == 0
    finally:
        if run.poll() is None:
            run.kill()
        run.wait()


LARGE = """from shoal import rule
rule("ok", run="touch ok")
rule("toobig", run="touch toobig", memory="900T")
rule("gpu", ["ok"], run="touch gpu", gpus=1)
rule("lic", run="touch lic", resources={"licence": 1})
rule("here", run="touch here", requires="site=omega")
rule("after", ["toobig"], run="touch after")
"""


def test_what_run_would_refuse_as_too_large_is_told_alike(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(LARGE)
    for name in ("toobig", "gpu", "lic", "here"):
        refused = shoal(tmp_path, "run", "flow.py", name, expect=2).stderr
        message = refused.partition(": 'shoal: ")[2] or refused[refused.index(f"'{name}'") :]
        assert why(tmp_path, name).startswith(message.partition(";")[0] + ", so 'shoal run' refuses it: ")
    after = "'after' cannot run: it depends on 'toobig'. 'toobig' asks for memory 900 TiB"
    assert why(tmp_path, "after").startswith(after)
    told = json.loads(shoal(tmp_path, "why", "toobig", "flow.py", "--json").stdout)
    assert told["cause"] == "too large" and "asks for memory" in told["detail"]
    assert "would run" in why(tmp_path, "ok")
    shoal(tmp_path, "run", "flow.py", "lic", "--resource", "licence=1", "--quiet")
    (tmp_path / "lic").unlink()
    assert "'lic' would run because" in why(tmp_path, "lic")


def test_words_that_name_neither_workflow_nor_target_are_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(LARGE)
    (tmp_path / "folder").mkdir()
    for words in (("ok", "folder"), ("ok", "flow.py", "folder")):
        said = shoal(tmp_path, "why", *words, expect=2)
        assert said.stderr == (
            "shoal: 'folder' is a directory, neither a workflow nor a task; name the workflow's file\n"
        )
    assert "nothing makes the target 'nosuch'" in shoal(tmp_path, "why", "ok", "nosuch", expect=2).stderr
    assert "'ok' would run" in shoal(tmp_path, "why", "ok", "gpu").stdout


def test_a_task_without_files_or_words_is_told_without_them(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""from shoal import rule, task
rule("one", run="touch one")
task("none", run="true")
task("mute", run="exit 3")
task("loud", run="echo oh; exit 3")
""")
    shoal(tmp_path, "run", "flow.py", "one", "none", "mute", "loud", "--quiet", expect=1)
    assert why(tmp_path, "one").endswith("and since then its command and 1 output file have not changed.\n")
    assert why(tmp_path, "mute").endswith(": exit status 3.\n")
    assert why(tmp_path, "loud").endswith(": exit status 3; 'shoal output' prints what it wrote.\n")


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("[]", "it has no dependencies"),
        ("['a']", "its dependency is up to date"),
        ("'a b'.split()", "its 2 dependencies are up to date"),
    ],
)
def test_a_group_is_told_with_what_it_needs(tmp_path: Path, needs: str, said: str) -> None:
    rules = 'for name in "ab":\n    rule(name, run=f"touch {name}")\n'
    (tmp_path / "flow.py").write_text(f"from shoal import rule, task\n{rules}task('all', {needs})\n")
    shoal(tmp_path, "run", "--quiet")
    assert f"'all' runs no command; {said}" in shoal(tmp_path, "why", "all").stdout
