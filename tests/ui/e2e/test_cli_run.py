"""`shoal run` as a user meets it: exit statuses, what it says, resuming, and both ways of stopping it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import SHOAL, environment, shoal, start, wait_until

TWO_STEPS = "a.txt:\n\techo hello > a.txt\n\nb.txt: a.txt\n\tcat a.txt > b.txt\n"
ONE_FAILS = (
    "good.txt:\n\techo fine > good.txt\n\n"
    "bad.txt:\n\techo last words; exit 3\n\n"
    "later.txt: bad.txt\n\tcp bad.txt later.txt\n"
)
SLEEPER = (
    "first.txt:\n\techo 1 > first.txt\n\n"
    "slow.txt: first.txt\n\ttest -e fast || { echo \\$\\$ > pid; exec sleep 300; }; echo 2 > slow.txt\n"
)
STUBBORN = "slow.txt:\n\ttrap '' TERM INT; echo \\$\\$ > pid; while :; do sleep 1; done\n"


def write(directory: Path, text: str, name: str = "Makeflow") -> Path:
    (directory / name).write_text(text)
    return directory


def test_everything_made_is_status_0_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    assert "2 tasks done" in shoal(tmp_path, "run", "--jobs", "2").stdout
    assert (tmp_path / "b.txt").read_text() == "hello\n"
    assert shoal(tmp_path, "run").stdout == "nothing to do: 2 tasks are up to date\n"


def test_rules_file_runs_the_target_named(tmp_path: Path) -> None:
    text = 'from shoal import rule, file, task\ntask("t1", run="/bin/true")\ntask("all", needs=["t1"])\n'
    write(tmp_path, text, "flow.py")
    done = shoal(tmp_path, "run", "flow.py", "all", "--jobs", "2", "--quiet")
    assert done.stdout == done.stderr == ""
    assert "1 task is up to date" in shoal(tmp_path, "run", "all").stdout


def test_word_that_is_no_workflow_is_a_target_of_the_default_one(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    shoal(tmp_path, "run", "a.txt")
    assert not (tmp_path / "b.txt").exists()
    shoal(tmp_path, "run", "b.txt")
    shoal(tmp_path, "run", "b.txt")  # the file is there now, and still is a target
    assert (tmp_path / "b.txt").exists()


def test_failed_task_is_status_1_and_shows_its_last_words(tmp_path: Path) -> None:
    write(tmp_path, ONE_FAILS)
    done = shoal(tmp_path, "run", expect=1)
    assert "failed: bad.txt: exit status 3" in done.stderr
    assert "| last words" in done.stdout
    assert "1 task done, 1 failed, 1 not run" in done.stdout
    assert (tmp_path / "good.txt").exists()


def test_an_attempt_that_is_made_again_is_told_where_there_is_no_terminal(tmp_path: Path) -> None:
    flow = 'from shoal import task\ntask("flaky", run="test -e seen && exit 0; touch seen; exit 3", retries=1)\n'
    (tmp_path / "flow.py").write_text(flow)
    assert "\nretrying flaky: attempt 1: exit status 3\n" in shoal(tmp_path, "run", "flaky").stderr


def test_a_line_of_progress_says_what_its_times_are(tmp_path: Path) -> None:
    wait = "while ! grep -q '50 %' said; do sleep 0.05; done"  # such lines come when there is something to say
    flow = f'from shoal import task\ntask("one", run="sleep 1.2")\ntask("two", needs=["one"], run="{wait}")\n'
    (tmp_path / "flow.py").write_text(flow)
    with open(tmp_path / "said", "wb") as said:
        assert start(tmp_path, "run", "two", output=said).wait(60) == 0
    text = (tmp_path / "said").read_text()
    assert re.search(r"^50 %: 1 of 2 done, .*, (\d+ min )?\d+(\.\d)? s so far", text, re.MULTILINE), text


def test_quiet_shows_failures_and_nothing_else(tmp_path: Path) -> None:
    done = shoal(write(tmp_path, ONE_FAILS), "run", "--quiet", expect=1)
    assert done.stdout == ""
    assert done.stderr == "failed: bad.txt: exit status 3\n    | last words\n"


def test_fail_fast_starts_nothing_after_the_first_failure(tmp_path: Path) -> None:
    rules = "".join(f"o{number}:\n\techo > o{number}\n\n" for number in range(50))
    write(tmp_path, "bad:\n\texit 1\n\n" + rules)
    done = shoal(tmp_path, "run", "-j1", "--order", "fifo", "--fail-fast", expect=1)
    assert "stopping: 'bad' failed" in done.stderr
    assert not (tmp_path / "o49").exists()
    shoal(tmp_path, "run", "-j1", expect=1)
    assert (tmp_path / "o49").exists()


def test_force_runs_everything_again_and_explain_says_why(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    shoal(tmp_path, "run", "-q")
    assert "b.txt: runs because --force was given" in shoal(tmp_path, "run", "-f", "--explain").stderr
    (tmp_path / "b.txt").unlink()
    assert "b.txt: runs because its output 'b.txt' is missing" in shoal(tmp_path, "run", "--explain").stderr


def test_dry_run_runs_nothing_and_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    assert "2 tasks would run" in shoal(tmp_path, "run", "--dry-run").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["Makeflow"]


def test_json_has_one_object_per_line_for_every_task(tmp_path: Path) -> None:
    done = shoal(write(tmp_path, ONE_FAILS), "run", "--json", expect=1)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", "task_ended", "task_ended", "run_ended"]
    verdicts = {event["name"]: event["verdict"] for event in events if event["event"] == "task_ended"}
    assert verdicts == {"good.txt": "done", "bad.txt": "failed"}
    assert (events[-1]["status"], events[-1]["done"], events[-1]["not_run"]) == (1, 1, 1)


BAD_COMMANDS = [
    (["run", "--jobs", "0"], "--jobs must be a positive number"),
    (["run", "--jobs", "-2"], "--jobs must be a positive number"),
    (["run", "--jobs", "many"], "--jobs must be a positive number"),
    (["run", "--jobs"], "--jobs needs a value"),
    (["run", "--memory", "lots"], "memory 'lots' is not a size"),
    (["run", "--resource", "licence"], "has no amount"),
    (["run", "--order", "random"], "--order cannot be 'random'"),
    (["run", "--quite"], "did you mean '--quiet'?"),
    (["run", "c.txt"], "there is no task or file called 'c.txt'"),
    (["run", "absent.py"], "'absent.py' does not exist"),
    (["run", "--trace", "no/such/trace"], "cannot write trace"),
    (["rnu"], "did you mean 'run'?"),
    (["--verison"], "did you mean '--version'?"),
    (["output", "a.txt", "--attempt", "0"], "--attempt must be at least 1"),
]


@pytest.mark.parametrize(("words", "said"), BAD_COMMANDS, ids=lambda value: " ".join(value)[:30])
def test_bad_command_line_is_one_sentence_and_status_2(words: list[str], said: str, tmp_path: Path) -> None:
    done = shoal(write(tmp_path, TWO_STEPS), *words, expect=2)
    assert said in done.stderr
    assert done.stderr.startswith("shoal: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "a.txt").exists()


BAD_WORKFLOWS = [
    ("out: absent\n\tcp absent out\n", "Makeflow:1: 'absent' is needed by 'out'"),
    ("out:\n\ttouch out\nout:\n\ttouch out\n", "Makeflow:3:1: two tasks make 'out'"),
    ("a: b\n\tcp b a\nb: a\n\tcp a b\n", "the tasks form a cycle: 'a'"),
    ("CORES=4000\nout:\n\ttouch out\n", "asks for cores 4000"),
]


@pytest.mark.parametrize(("text", "said"), BAD_WORKFLOWS, ids=["missing input", "two producers", "cycle", "too large"])
def test_bad_workflow_is_one_sentence_with_its_place_and_status_2(text: str, said: str, tmp_path: Path) -> None:
    done = shoal(write(tmp_path, text), "run", expect=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_syntax_error_in_rules_shows_the_users_line(tmp_path: Path) -> None:
    done = shoal(write(tmp_path, "from shoal import rule\nrule('a', run=\n", "flow.py"), "run", expect=2)
    assert "flow.py:2:" in done.stderr
    assert "rule('a', run=" in done.stderr


def test_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    (tmp_path / ".shoal").write_text("a file where the records would go")
    assert "cannot write to the workflow's directory" in shoal(tmp_path, "run", expect=2).stderr


def test_no_workflow_at_all_is_said(tmp_path: Path) -> None:
    assert "there is no workflow here" in shoal(tmp_path, "run", expect=2).stderr


def test_summary_that_nobody_reads_does_not_change_the_status(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*SHOAL, "run"], cwd=tmp_path, env=environment(), stdout=full, stderr=full, check=False)
    assert done.returncode == 0


def test_an_answer_that_cannot_be_written_is_not_lost_in_silence(tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    shoal(tmp_path, "run", "--quiet")
    surroundings = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        why = subprocess.run([*SHOAL, "why"], cwd=tmp_path, env=surroundings, stdout=full, stderr=subprocess.PIPE)
    assert (why.returncode, why.stderr) == (1, b"shoal: No space left on device\n")


@pytest.mark.parametrize(
    ("closed", "words", "status"),
    [
        (">&-", "run --force", 0),
        (">&-", "why", 0),
        (">&-", "why nothing", 2),
        ("2>&-", "why nothing", 2),
        (">&- 2>&- <&-", "run --force", 0),
        ("<&-", "top", 2),
    ],
)
def test_standard_streams_may_be_closed(closed: str, words: str, status: int, tmp_path: Path) -> None:
    write(tmp_path, TWO_STEPS)
    shoal(tmp_path, "run", "--quiet")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *SHOAL, *words.split()],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    assert not done.stdout, "what is meant for standard error does not go there instead"
    assert "damaged" not in shoal(tmp_path, "status").stdout


def test_a_name_that_the_locale_has_not_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, "\u00fc.txt:\n\ttouch \u00fc.txt\n")
    surroundings = environment({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    plan = subprocess.run([*SHOAL, "plan"], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert plan.returncode == 2
    assert plan.stderr.startswith("shoal: '\\xfc.txt' is not a valid file name in this locale")
    assert plan.stderr.count("\n") == 1


def test_second_run_of_a_workflow_is_kept_apart_from_the_first(tmp_path: Path) -> None:
    write(tmp_path, SLEEPER)
    first = start(tmp_path, "run")
    try:
        wait_until((tmp_path / "pid").exists, "the slow task has started")
        done = shoal(tmp_path, "run", expect=2)
        assert f"Makeflow is being run by process {first.pid}" in done.stderr
    finally:
        first.terminate()
        assert first.wait(60) == 143


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def started_pid(directory: Path) -> int:
    path = directory / "pid"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the slow task has started")
    return int(path.read_text())


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=["int", "term", "hup"],
)
def test_signal_ends_the_tasks_and_the_next_run_goes_on(number: int, status: int, tmp_path: Path) -> None:
    write(tmp_path, SLEEPER)
    run = start(tmp_path, "run")
    task = started_pid(tmp_path)
    run.send_signal(number)
    assert run.wait(60) == status
    assert gone(task)
    (tmp_path / "fast").touch()
    done = shoal(tmp_path, "run")
    assert "1 task done, 1 up to date" in done.stdout
    assert (tmp_path / "slow.txt").read_text() == "2\n"


def test_second_interrupt_kills_what_does_not_want_to_end(tmp_path: Path) -> None:
    write(tmp_path, STUBBORN)
    run = subprocess.Popen(
        [*SHOAL, "run"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    task = started_pid(tmp_path)
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    said = ""
    while "stopping: received SIGINT" not in said:
        line = run.stderr.readline()
        assert line, f"it ended without a word: {said}"
        said += line
    run.send_signal(signal.SIGINT)
    _, rest = run.communicate(timeout=60)
    assert "killing running tasks" in rest
    assert run.returncode == 130
    assert gone(task)


def test_interrupt_before_anything_runs_is_status_130(tmp_path: Path) -> None:
    write(tmp_path, "import time\nopen('loading', 'w').close()\ntime.sleep(300)\n", "flow.py")
    run = subprocess.Popen([*SHOAL, "run"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "loading").exists, "the rules file is being read")
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said == "shoal: interrupted\n"


def test_reader_that_goes_away_is_not_complained_of(tmp_path: Path) -> None:
    write(tmp_path, "".join(f"some/long/name/of/an/output/{n}:\n\ttrue\n\n" for n in range(3000)))
    plan = subprocess.Popen(
        [*SHOAL, "plan", "--verbose"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert plan.stdout is not None
    assert plan.stderr is not None
    assert plan.stdout.readline() == b"3,000 tasks would run, 0 up to date\n"
    plan.stdout.close()
    assert plan.stderr.read() == b""
    plan.stderr.close()
    plan.wait(60)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["graph", "--help"]], ids=" ".join)
def test_help_needs_nothing_of_the_engine(words: list[str]) -> None:
    program = (
        "import sys; from shoal.ui.cli.main import main; "
        f"assert main({words!r}) == 0; "
        "heavy = ('msgspec', 'numpy', 'shoal.core', 'shoal.execution', 'shoal.formats', 'shoal.ledger'); "
        "heavy = [name for name in sys.modules if name.startswith(heavy)]; "
        "assert not heavy, heavy"
    )
    subprocess.run([SHOAL[0], "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_failing_python_function_shows_its_error(tmp_path: Path) -> None:
    function = "def divide(t):\n    print('about to divide')\n    return 1 / 0\n\n"
    text = f"from shoal import task\n\n{function}task('sum', run=divide)\n"
    done = shoal(write(tmp_path, text, "flow.py"), "run", "sum", expect=1)
    assert "failed: sum: " in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "about to divide" in shoal(tmp_path, "output", "sum").stdout


FAILING_CALLS = """from shoal import rule, task

def inner():
    import no_such_package

def make(action):
    inner()

rule("{name}.txt", run=make)
task("call", run=inner)
task("all", needs=["a.txt", "call"])
"""


def test_a_failing_function_is_shown_once_and_without_frames_of_ours(tmp_path: Path) -> None:
    write(tmp_path, FAILING_CALLS, "flow.py")
    done = subprocess.run(
        [*SHOAL, "run", "all"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode()
    assert done.returncode == 1
    assert text.count("import no_such_package") == 2, text  # once for each of the two tasks
    assert text.count("No module named 'no_such_package'") == 4, text  # as it failed, and in the summary
    assert "shoal/execution" not in text and "worker.py" not in text, text


def test_the_summary_has_the_last_words_where_nothing_else_has_shown_them(tmp_path: Path) -> None:
    write(tmp_path, FAILING_CALLS, "flow.py")
    done = subprocess.run([*SHOAL, "run", "all"], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stdout.count("import no_such_package") == done.stderr.count("import no_such_package") == 2


def test_what_a_long_plan_says_can_be_done(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(f"t{number}:\n\ttouch t{number}\n" for number in range(60)))
    told = shoal(tmp_path, "run", "--dry-run").stdout
    command = re.search(r"'shoal ([^']*)' lists every task", told)
    assert command is not None, told
    assert "t59: " in shoal(tmp_path, *command[1].split()).stdout
