"""Which shell runs the commands of rules files and nets, and what its choice means for what is up to date."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import SHOAL, environment, shoal
from support.ledgers import final_records

NEEDS_BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="a machine without bash")


def outcomes(workflow: Path) -> list[str]:
    return [record.outcome for record in sorted(final_records(workflow), key=lambda record: record.task)]


@NEEDS_BASH
def test_a_failure_anywhere_in_a_command_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
from shoal import task
task("pipe", run="false | cat")
task("earlier", run="false; echo on")
task("lines", run=\"\"\"
    cat no-such-file
    echo on
\"\"\")
task("unset", run="echo $NOT_SET_ANYWHERE/x")
task("sourced", run="source ./no-such-file; echo on")
task("fine", run="if false; then echo a; fi; echo b | grep -c c || true; echo ${NOT_SET_ANYWHERE:-nothing}")
""")
    shoal(tmp_path, "run", "flow.py", "--quiet", expect=1)
    assert outcomes(tmp_path / "flow.py") == ["failed"] * 5 + ["ok"]


def test_shell_is_chosen_for_a_task_and_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(f"""
import sys
from shoal import directory, include, shell, task
task("strict", run="false; echo on")
shell("sh")
task("sh", run="false; echo on")
task("strict again", run="false; echo on", shell="strict")
include("part.py")
task("python", run="import os; open('made', 'w').write('x')", shell={sys.executable!r})
task("still sh", run="false; echo on")
task("options", run="false; echo on", shell="sh -e -c")
shell(sys.executable)
task("words", run=["test", "a b", "=", "a b"])
task("python too", needs=directory("made here"), run="import sys; assert sys.argv == ['-c']")
shell("sh")
task("none", run="echo $HOME", shell="no-such-shell")
""")
    (tmp_path / "part.py").write_text("""
from shoal import shell, task
task("part", run="false; echo on")
shell("sh -e")
task("strict part", run="false; echo on")
""")
    shoal(tmp_path, "run", "flow.py", "--quiet", expect=1)
    assert outcomes(tmp_path / "flow.py") == [
        *("failed", "ok", "failed", "ok", "failed", "ok", "ok", "failed"),
        *("ok", "ok", "ok", "failed"),
    ]
    assert (tmp_path / "made").read_text() == "x"
    message = [record.message for record in final_records(tmp_path / "flow.py")]
    assert "cannot start no-such-shell: No such file or directory" in message


def test_choosing_a_shell_runs_a_task_again_and_naming_the_usual_one_does_not(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    for shell, done in (("", 1), (", shell='strict'", 1), (", shell='sh'", 2), (", shell='sh'", 2)):
        flow.write_text(f"from shoal import file\nfile('out', run='echo x | cat > {{out}}'{shell})\n")
        shoal(tmp_path, "run", "flow.py", "--quiet")
        assert len(final_records(flow)) == done


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run='true', shell=3", "shell must be a program and its options, such as 'bash -e', not 3"),
        ("run='true', shell='bash \"'", "shell='bash \"' cannot be parsed: no closing quotation"),
        ("run='true', shell=' '", "shell=' ' names no program; write a program and its options: 'bash -e'"),
        ("run='true', shell='-e'", "shell='-e' names no program; write a program and its options: 'bash -e'"),
        ("run=lambda: 1, shell='sh'", "shell= is for commands, and this runs a function"),
        ("run=['true'], shell='sh'", "shell= is for a command given as text, and this one is a list of words"),
    ],
)
def test_shell_that_cannot_be_one_is_refused(tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "flow.py").write_text(f"from shoal import task\n\ntask('t', {words})\n")
    said = shoal(tmp_path, "run", "flow.py", expect=2).stderr
    assert "flow.py:3: " in said and sentence in said


def test_shell_of_a_decorated_function_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import rule\n@rule('{x}.txt', shell='sh')\ndef make(t):\n    pass\n")
    assert "shell= is for commands, and this runs a function" in shoal(tmp_path, "run", "flow.py", expect=2).stderr


def test_without_bash_commands_are_strict_as_far_as_sh_is_and_that_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "true", "env", "mkdir", "rm"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "flow.py").write_text("""
from shoal import task
task("earlier", run="false; echo on")
task("fine", run="echo a | cat")
task("plain", run="true")
""")
    surroundings = environment() | {"PATH": str(tmp_path / "bin")}
    words = [*SHOAL, "run", "flow.py"]
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and outcomes(tmp_path / "flow.py") == ["failed", "ok", "ok"]
    assert (done.stdout + done.stderr).count("bash is not installed: commands run with 'sh -eu'") == 1
    words.append("plain")
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300)
    assert "bash" not in done.stdout + done.stderr, "nothing that is to run needs one"


@NEEDS_BASH
def test_sh_and_capture_are_strict_unless_given_another_shell(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
from shoal import CommandFailed, capture, sh, task

@task
def default():
    for command in ("false | cat", "false; true"):
        try:
            sh(command)
        except CommandFailed as error:
            print(error.status)
    print(capture("false | cat; echo on", shell="sh"))
    sh(": " + "x" * 300_000 + "; echo long")
""")
    shoal(tmp_path, "run", "flow.py", "--quiet")
    assert shoal(tmp_path, "output", "default").stdout.splitlines() == ["1", "1", "on", "long"]


@NEEDS_BASH
def test_commands_of_nets_are_strict(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""
from shoal import Net, take
net = Net("n")
begin, done = net.place("begin", [1, 2, 3]), net.place("done")
net.task(name="strict", x=take(begin), command="test {x} != 1 | cat; echo {x}", put=done)
""")
    run = shoal(tmp_path, "run", "net.py", expect=1)
    assert "ended with status 1" in run.stdout + run.stderr
    text = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(text.replace("put=done)", "put=done, shell='sh')"))
    shoal(tmp_path, "run", "net.py")
    (tmp_path / "net.py").write_text(text.replace("put=done)", "put=done, shell=3)"))
    assert "shell must be a program and its options" in shoal(tmp_path, "run", "net.py", expect=2).stderr


def test_makeflows_keep_the_shell_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("out:\n\tfalse; false | cat; echo \\$NOT_SET > out\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    shoal(tmp_path, "convert", "Makeflow", "--to", "rules", "-o", "flow.py")
    (tmp_path / "out").unlink()
    shoal(tmp_path, "run", "flow.py", "--quiet")
    assert (tmp_path / "out").read_text() == "\n", "what is converted means the same"


@NEEDS_BASH
def test_rules_that_become_a_makeflow_stay_strict(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
from shoal import file
file("a", run="false | cat > {out}")
file("b", run="echo it\\\\'s > {out}; false; true")
file("c", run="touch {out}")
""")
    text = shoal(tmp_path, "convert", "flow.py", "--to", "makeflow").stdout
    (tmp_path / "Makeflow").write_text(text)
    shoal(tmp_path, "run", "Makeflow", "--quiet", expect=1)
    assert outcomes(tmp_path / "Makeflow") == ["failed", "failed", "ok"], text
    assert "\ttouch c\n" in text


def test_memory_limits_of_functions_are_reported_as_not_enforced(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import task\n@task(memory='50M')\ndef f(): pass\n@task(memory='60M')\ndef g(): pass\n"
    )
    run = shoal(tmp_path, "run", "flow.py")
    assert (run.stdout + run.stderr).count("memory= of functions is reserved but not enforced on this machine") == 1
    (tmp_path / "flow.py").write_text("from shoal import task\n@task(disk='1M')\ndef h(): pass\n")
    assert "disk= of functions is reserved but not enforced on this machine" in shoal(tmp_path, "run", "flow.py").stderr
    (tmp_path / "net.py").write_text(
        "from shoal import Net, take\nnet = Net('n')\nbegin, done = net.place('b', [1]), net.place('d')\n"
        "net.task(name='t', x=take(begin), command='true', put=done, memory='50M')\n"
    )
    run = shoal(tmp_path, "run", "net.py")
    assert (run.stdout + run.stderr).count("memory= of a net's tasks is reserved, but not enforced") == 1


@pytest.mark.parametrize("kind", ["native", "python"])
def test_few_descriptors_make_tasks_wait(tmp_path: Path, kind: str) -> None:
    (tmp_path / "flow.py").write_text("""
import time
from shoal import task
for i in range(150):
    task(f"c{i}", run="sleep 0.1; ulimit -S -n")
for i in range(30):
    @task(f"f{i}")
    def f():
        time.sleep(0.3)
""")
    command = 'ulimit -n 64 && exec "$@"'
    words = ["sh", "-c", command, "sh", *SHOAL, "run", "flow.py", "-j180", "--quiet"]
    surroundings = environment() | {"SHOAL_LAUNCHER": kind}
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(final_records(tmp_path / "flow.py")) == 180


def test_tasks_have_the_limit_of_descriptors_that_the_run_was_given(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
import resource
from shoal import task
task("command", run="echo $(ulimit -S -n)")

@task
def function():
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
""")
    words = ["sh", "-c", 'ulimit -S -n 123 && exec "$@"', "sh", *SHOAL, "run", "flow.py", "--quiet"]
    subprocess.run(words, cwd=tmp_path, env=environment(), check=True, timeout=300)
    said = [shoal(tmp_path, "output", name).stdout for name in ("command", "function")]
    assert said == ["123\n", "123\n"]
    assert os.path.exists(tmp_path / ".shoal")


def test_shell_of_a_function_is_strict_whatever_its_path(tmp_path: Path) -> None:
    """A PATH without bash in `env=` is for what the function runs."""
    few = tmp_path / "few"
    few.mkdir()
    (few / "cat").symlink_to(str(shutil.which("cat")))
    (tmp_path / "flow.py").write_text(
        "from shoal import sh, task\n"
        f"@task(env={{'PATH': {str(few)!r}}})\ndef f():\n    sh('cat not-there | cat; echo went on > wrong')\n"
    )
    shoal(tmp_path, "run", "flow.py", expect=1)
    assert not (tmp_path / "wrong").exists()
