"""What happens to whatever stands under the name of an output: the rules of `docs/files.md`, each with its test."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from shoal.ledger.file import LedgerReader
from shoal.ledger.records import TaskEnded, decode, encode
from support.command import shoal, start, wait_until

ONE = 'from shoal import file\nfile("out", needs="source", run="sh act.sh")\n'
DIRECTORY = 'from shoal import file\nfile("made", needs="source", run="sh act.sh")\n'
MAKE = "cat source > out"
HALF = "echo half > out"
FAIL = f"{HALF}; exit 1"
HANG = f"{HALF}; touch begun; sleep 600"
CHECKS = ["time", "content"]


class Project:
    """A workflow of one task, whose command does what the file `act.sh` says at that time."""

    def __init__(self, root: Path, flow: str = ONE, act: str = MAKE) -> None:
        self.root = root
        self.records = root / ".shoal" / "flow.py"
        self.write("flow.py", flow)
        self.write("act.sh", act)
        self.write("source", "one\n")

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *words: str, expect: int = 0) -> str:
        done = shoal(self.root, "run", "flow.py", *words, expect=expect)
        return done.stdout + done.stderr

    def change(self, source: str, act: str) -> None:
        """Another source, so that the task runs again, and another thing that it does."""
        self.write("source", source)
        self.write("act.sh", act)

    def begin(self) -> subprocess.Popen[bytes]:
        """Starts a run and waits until the task says that it has begun."""
        process = start(self.root, "run", "flow.py")
        wait_until((self.root / "begun").exists, "the task has begun")
        (self.root / "begun").unlink()
        return process

    def kill_run(self) -> None:
        process = self.begin()
        process.kill()
        process.wait()

    def asides(self) -> list[str]:
        """Files that are put aside."""
        return sorted(path.name for path in (self.records / "aside").rglob("*") if path.is_file() or path.is_symlink())

    def is_settled(self) -> bool:
        """Nothing is aside and no attempt is noted as under way."""
        return not (self.records / "aside").exists() and not (self.records / "attempts").exists()


def test_old_output_is_aside_while_it_is_made_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    project.change("two\n", "ls > seen; ls -a .shoal/flow.py/aside/% > aside; cat source > out")
    project.run()
    assert "out" not in (project / "seen").read_text().split()
    assert "out" in (project / "aside").read_text().split()
    assert (project / "out").read_text() == "two\n"
    assert project.is_settled()
    assert not (project.records / "replaced").exists(), "what was ours is deleted"


@pytest.mark.parametrize("check", CHECKS)
def test_version_changed_by_hand_is_kept(tmp_path: Path, check: str) -> None:
    project = Project(tmp_path)
    project.run("--check", check)
    for number, name in enumerate(("out", "out.1", "out.2")):
        project.write("out", f"mine {number}\n")
        said = project.run("--check", check)
        assert (project / "out").read_text() == "one\n"
        assert (project.records / "replaced" / name).read_text() == f"mine {number}\n"
        assert f".shoal/flow.py/replaced/{name}" in said
    assert project.is_settled()


TWO = """
from shoal import file, task
file("first", run="echo mine > out; echo 1 > first")
file("out", needs="first", run="sh act.sh")
"""


def test_file_that_appears_before_the_start_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, TWO)
    said = project.run("out")
    assert (project / "out").read_text() == "one\n"
    assert (project.records / "replaced" / "out").read_text() == "mine\n"
    assert ".shoal/flow.py/replaced/out" in said


def test_directory_that_another_task_made_stays(tmp_path: Path) -> None:
    """Also when the task that fills it fails, and is tried again."""
    (tmp_path / "flow.py").write_text(
        "from shoal import file\n"
        "file('d', run='mkdir -p d/sub; echo 1 > d/sub/first')\n"
        "file('d/sub', needs='d', retries=1, run='echo 2 > d/sub/second; test -e again || { touch again; exit 1; }')\n"
    )
    shoal(tmp_path, "run", "--quiet")
    assert {path.name for path in (tmp_path / "d" / "sub").iterdir()} == {"first", "second"}
    assert shoal(tmp_path, "run").stdout == "nothing to do: 2 tasks are up to date\n"


def test_a_file_that_the_task_did_not_make_is_not_accepted(tmp_path: Path) -> None:
    project = Project(tmp_path, TWO, act="true")
    said = project.run("out", expect=1)
    assert "did not make 'out'" in said
    assert (project / "out").read_text() == "mine\n", "it is where it was before the task began"
    assert project.is_settled()


def test_failed_attempt_restores_the_old_output(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    before = os.stat(project / "out")
    project.change("two\n", FAIL)
    project.run(expect=1)
    after = os.stat(project / "out")
    assert (project / "out").read_text() == "one\n"
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert project.is_settled()
    project.change("one\n", MAKE)
    assert "nothing to do" not in project.run(), "after a failure it does not count as up to date"
    assert not (project.records / "replaced").exists(), "what a failure has put back is ours"


def test_failed_attempt_restores_a_version_changed_by_hand(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    project.write("out", "mine\n")
    project.write("act.sh", FAIL)
    for _ in range(2):
        project.run(expect=1)
        assert (project / "out").read_text() == "mine\n"
    project.write("act.sh", MAKE)
    project.run()
    assert (project.records / "replaced" / "out").read_text() == "mine\n"


def test_half_made_output_goes_to_partial(tmp_path: Path) -> None:
    project = Project(tmp_path, act="echo 0 > out; exit 1")
    for text in ("half", "0"):
        project.write("act.sh", f"echo {text} > out; exit 1")
        said = project.run(expect=1)
        assert not (project / "out").exists()
        assert (project.records / "partial" / "out").read_text() == f"{text}\n"
        assert ".shoal/flow.py/partial/out" in said
    assert os.listdir(project.records / "partial") == ["out"], "only the latest is kept"


RETRIED = 'from shoal import file\nfile("out", needs="source", retries=2, run="sh act.sh")\n'


def test_every_attempt_begins_without_its_outputs(tmp_path: Path) -> None:
    project = Project(tmp_path, RETRIED)
    project.run()
    again = "echo x >> tries; echo part >> out; test $(wc -l < tries) = 3"
    project.change("two\n", again)
    project.run()
    assert (project / "out").read_text() == "part\n"
    assert project.is_settled()


def interrupted(project: Project) -> None:
    process = project.begin()
    assert project.asides() == ["out"]
    process.send_signal(signal.SIGINT)
    process.wait()


def cancelled(project: Project) -> None:
    process = project.begin()
    shoal(project.root, "cancel", "flow.py", "out")
    process.wait()


@pytest.mark.parametrize("end", [interrupted, cancelled])
def test_cancelled_attempt_restores_the_old_output(tmp_path: Path, end: object) -> None:
    project = Project(tmp_path)
    project.run()
    project.change("two\n", HANG)
    assert callable(end)
    end(project)
    assert (project / "out").read_text() == "one\n"
    assert project.is_settled()
    assert (project.records / "partial" / "out").read_text() == "half\n"
    project.change("two\n", MAKE)
    project.run()
    assert (project / "out").read_text() == "two\n"


def test_cancelled_attempt_counts_as_before(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    project.write("act.sh", HANG)
    process = start(project.root, "run", "flow.py", "--force")
    wait_until((project / "begun").exists, "the task has begun")
    process.send_signal(signal.SIGINT)
    process.wait()
    project.write("act.sh", MAKE)
    assert "nothing to do" in project.run()


def test_killed_run_restores_the_old_output(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.run()
    before = os.stat(project / "out")
    project.change("two\n", HANG)
    project.kill_run()
    assert (project / "out").read_text() == "half\n"
    assert project.asides() == ["out"]
    project.change("one\n", FAIL)
    said = project.run(expect=1)
    assert "put 1 output back" in said
    after = os.stat(project / "out")
    assert (project / "out").read_text() == "one\n"
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert project.is_settled()


@pytest.mark.parametrize("words", [("adopt", "flow.py"), ("clean", "flow.py")])
def test_other_commands_restore_what_a_killed_run_had_put_aside(tmp_path: Path, words: tuple[str, str]) -> None:
    project = Project(tmp_path)
    project.run()
    project.write("out", "mine\n")
    project.write("act.sh", HANG)
    project.kill_run()
    project.write("act.sh", MAKE)
    shoal(tmp_path, *words)
    assert (project / "out").read_text() == "mine\n", "it was changed by hand: neither command touches it"
    if words[0] == "adopt":
        assert "nothing to do" in project.run()
        assert (project / "out").read_text() == "mine\n"


def test_killed_remake_is_not_up_to_date(tmp_path: Path) -> None:
    """Also if nothing of it has changed: it was asked for with `--force`."""
    project = Project(tmp_path)
    project.run()
    project.write("act.sh", HANG)
    process = start(project.root, "run", "flow.py", "--force")
    wait_until((project / "begun").exists, "the task has begun")
    process.kill()
    process.wait()
    project.write("act.sh", MAKE)
    assert "interrupted last time" in project.run("--explain")
    assert "nothing to do" in project.run()


def test_half_made_output_of_a_killed_run_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, act=HANG)
    project.kill_run()
    assert (project / "out").read_text() == "half\n"
    project.write("act.sh", "test ! -e out && exit 1; exit 0")
    said = project.run(expect=1)
    assert ".shoal/flow.py/interrupted/out" in said
    assert not (project / "out").exists()
    assert (project.records / "interrupted" / "out").read_text() == "half\n"


@pytest.mark.parametrize("name", ["out", "out/notes"])
def test_what_was_written_after_a_kill_survives_a_failure(tmp_path: Path, name: str) -> None:
    """Also those of later commands, and another kill."""
    project = Project(tmp_path, act="touch begun; sleep 600")
    project.kill_run()
    project.write(name, "by hand\n")
    project.write("act.sh", FAIL)
    said = project.run(expect=1)
    assert "moved partial outputs to .shoal/flow.py/interrupted/out\n" in said
    assert "what it had made is kept as .shoal/flow.py/partial/out" in said
    project.run(expect=1)
    project.write("act.sh", HANG)
    project.kill_run()
    project.write("act.sh", FAIL)
    assert "moved partial outputs to .shoal/flow.py/interrupted/out.1\n" in project.run(expect=1)
    assert (project.records / "interrupted" / name).read_text() == "by hand\n"
    assert (project.records / "partial" / "out").read_text() == "half\n"
    assert project.is_settled()


def test_own_file_survives_the_failures_of_the_task_in_whose_directory_it_was_put(tmp_path: Path) -> None:
    """It was put there while the task ran, so it may be of the attempt as well: it goes with what that has made."""
    fill = "mkdir made; echo $(wc -l < tries) > made/a; touch begun; until test -e go; do sleep 0.02; done; exit 1"
    text = 'from shoal import file\nfile("made", needs="source", retries=1, run="echo x >> tries; sh act.sh")\n'
    project = Project(tmp_path, text, fill)
    process = project.begin()
    project.write("made/sub/notes", "mine\n")
    project.write("go", "")
    process.wait()
    assert (project / "tries").read_text() == "x\nx\n"
    assert tree(project.records / "partial") == {"made/a": "2\n", "made/sub/notes": "mine\n"}
    project.write("act.sh", "echo a file > made; exit 1")
    project.run(expect=1)
    assert (project.records / "partial" / "made").read_text() == "a file\n"
    assert (project.records / "partial" / "made.1/sub/notes").read_text() == "mine\n"


CALL = """
from shoal import file
import time
@file("out", needs="source")
def make(task):
    with open("out", "w") as stream:
        stream.write("half")
        stream.flush()
        if "hang" in open("act.sh").read():
            open("begun", "w").close()
            time.sleep(600)
        stream.write(open("source").read())
"""


def test_half_made_output_of_a_killed_call_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, CALL, act="hang")
    project.kill_run()
    project.write("act.sh", "go on")
    project.run()
    assert (project / "out").read_text() == "halfone\n"
    assert (project.records / "interrupted" / "out").read_text() == "half"


@pytest.mark.parametrize("target", ["nowhere", "precious"])
def test_link_is_not_written_through(tmp_path: Path, target: str) -> None:
    project = Project(tmp_path)
    project.write("precious", "mine\n")
    project.run()
    (project / "out").unlink()
    (project / "out").symlink_to(target)
    project.run()
    assert not (project / "out").is_symlink()
    assert (project / "out").read_text() == "one\n"
    assert not (project / "nowhere").exists()
    assert (project / "precious").read_text() == "mine\n"
    assert os.readlink(project.records / "replaced" / "out") == target


def test_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    """One that comes to stand there after the plan was made."""
    flow = TWO.replace("echo mine > out", "ln -s nowhere out")
    project = Project(tmp_path, flow)
    project.run("out")
    assert (project / "out").read_text() == "one\n"
    assert not (project / "out").is_symlink() and not (project / "nowhere").exists()
    assert os.readlink(project.records / "replaced" / "out") == "nowhere"


def test_link_that_a_task_has_made_is_ours(tmp_path: Path) -> None:
    project = Project(tmp_path, act="ln -s source out")
    project.run()
    assert "nothing to do" in project.run()
    project.change("two\n", "ln -s source out")
    project.run()
    assert os.readlink(project / "out") == "source"
    assert (project / "source").read_text() == "two\n"
    assert not (project.records / "replaced").exists()


def test_output_on_another_file_system_is_put_aside_beside_it(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system here")
    with_name = other / f"shoal-{os.getpid()}-{tmp_path.name}"
    with_name.mkdir()
    try:
        project = Project(tmp_path, ONE.replace('"out"', '"far/out"'), act="cat source > far/out")
        (project / "far").symlink_to(with_name)
        project.run()
        project.change("two\n", "ls -a far > seen; echo half > far/out; exit 1")
        project.run(expect=1)
        assert (project / "far/out").read_text() == "one\n"
        assert ".out.shoal-aside" in (project / "seen").read_text().split()
        assert (with_name / ".out.shoal-partial").read_text() == "half\n"
        project.write("far/out", "mine\n")
        project.write("act.sh", "cat source > far/out")
        project.run()
        assert (project / "far/out").read_text() == "two\n"
        assert (with_name / ".out.shoal-replaced").read_text() == "mine\n"
        project.change("three\n", HANG.replace("> out", "> far/out"))
        project.kill_run()
        project.write("far/out", "after the kill\n")
        project.write("act.sh", "echo half > far/out; exit 1")
        project.run(expect=1)
        assert (project / "far/out").read_text() == "two\n"
        assert (with_name / ".out.shoal-interrupted").read_text() == "after the kill\n"
        assert (with_name / ".out.shoal-partial").read_text() == "half\n"
    finally:
        subprocess.run(["rm", "-rf", str(with_name)], check=True)


# ---- directories -----------------------------------------------------------------------------------------------------

FILL = "mkdir -p made/sub; cat source > made/a; cat source > made/sub/b"


def tree(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def test_directory_is_made_afresh(tmp_path: Path) -> None:
    project = Project(tmp_path, DIRECTORY, FILL + "; echo old > made/old")
    project.run()
    project.change("two\n", f"ls -d made && exit 1; {FILL}")
    project.run()
    assert tree(project / "made") == {"a": "two\n", "sub/b": "two\n"}
    assert project.is_settled() and not (project.records / "replaced").exists()


def test_own_file_in_an_output_directory_stays(tmp_path: Path) -> None:
    project = Project(tmp_path, DIRECTORY, FILL + "; echo old > made/sub/old")
    project.run()
    own = [project.write("made/sub/mine", "mine\n"), project.write("made/more/mine", "mine\n")]
    before = [os.stat(path) for path in own]
    project.change("two\n", f"find made -type f | sort > seen; {FILL}")
    project.run()
    assert (project / "seen").read_text().split() == ["made/more/mine", "made/sub/mine"]
    assert tree(project / "made") == {"a": "two\n", "sub/b": "two\n", "sub/mine": "mine\n", "more/mine": "mine\n"}
    project.change("three\n", FILL)
    project.run()
    assert [(stat.st_ino, stat.st_mtime_ns) for stat in map(os.stat, own)] == [
        (stat.st_ino, stat.st_mtime_ns) for stat in before
    ]
    assert not (project.records / "replaced").exists(), "nothing of it was changed"


def test_file_in_an_output_directory_that_was_changed_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, DIRECTORY, FILL)
    project.run()
    project.write("made/sub/b", "mine\n")
    project.run()
    assert tree(project / "made") == {"a": "one\n", "sub/b": "one\n"}
    assert tree(project.records / "replaced") == {"made/sub/b": "mine\n"}
    project.write("made/own", "own\n")
    project.write("made/sub/b", "mine again\n")
    project.run()
    assert tree(project / "made") == {"a": "one\n", "sub/b": "one\n", "own": "own\n"}
    assert tree(project.records / "replaced") == {"made/sub/b": "mine\n", "made/sub/b.1": "mine again\n"}


@pytest.mark.parametrize("own", [False, True])
def test_failed_remake_of_a_directory_restores_it(tmp_path: Path, own: bool) -> None:
    project = Project(tmp_path, DIRECTORY, FILL)
    project.run()
    if own:
        project.write("made/sub/mine", "mine\n")
    before = tree(project / "made")
    project.change("two\n", "mkdir -p made/sub made/new; echo half > made/sub/b; echo half > made/new/c; exit 1")
    said = project.run(expect=1)
    assert tree(project / "made") == before
    assert tree(project.records / "partial") == {"made/sub/b": "half\n", "made/new/c": "half\n"}
    assert ".shoal/flow.py/partial/made" in said
    assert project.is_settled()


@pytest.mark.parametrize("own", [False, True])
def test_killed_remake_of_a_directory_is_not_up_to_date(tmp_path: Path, own: bool) -> None:
    project = Project(tmp_path, DIRECTORY, FILL)
    project.run()
    if own:
        project.write("made/sub/mine", "mine\n")
        project.run()
    before = tree(project / "made")
    project.write(
        "act.sh", "mkdir -p made/sub made/new; echo half > made/sub/b; echo half > made/c; touch begun; sleep 600"
    )
    process = start(project.root, "run", "flow.py", "--force")
    wait_until((project / "begun").exists, "the task has begun")
    process.kill()
    process.wait()
    project.write("act.sh", "exit 1")
    project.run(expect=1)
    assert tree(project / "made") == before
    assert tree(project.records / "interrupted") == {"made/sub/b": "half\n", "made/c": "half\n"}
    project.write("act.sh", FILL)
    project.run()
    assert "nothing to do" in project.run()


SHARED = """
from shoal import file
file("made", needs="source", run="sh act.sh")
file("made/other", run="mkdir -p made; echo other > made/other")
"""


def test_output_of_another_task_in_a_directory_stays(tmp_path: Path) -> None:
    project = Project(tmp_path, SHARED, FILL)
    project.run("made", "made/other")
    number = os.stat(project / "made/other").st_ino
    for act, status in ((f"ls made > seen; {FILL}", 0), ("echo half > made/a; exit 1", 1)):
        project.change(act, act)
        project.run("made", "made/other", expect=status)
        assert os.stat(project / "made/other").st_ino == number
    assert (project / "seen").read_text() == "other\n"


def test_overwritten_directory_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, DIRECTORY, FILL)
    project.write("made/own", "mine\n")
    project.run("--overwrite")
    assert tree(project / "made") == {"a": "one\n", "sub/b": "one\n"}
    assert tree(project.records / "replaced") == {"made/own": "mine\n"}


def test_overwritten_file_is_back_after_a_failure(tmp_path: Path) -> None:
    project = Project(tmp_path, act=FAIL)
    project.write("out", "mine\n")
    project.run("--overwrite", expect=1)
    assert (project / "out").read_text() == "mine\n"
    project.write("act.sh", MAKE)
    project.run("--overwrite")
    assert (project / "out").read_text() == "one\n"
    assert project.is_settled() and not (project.records / "replaced").exists(), "it was given up"


def test_directory_without_a_list_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, DIRECTORY, FILL)
    project.run()
    ledger = project.records / "ledger"
    records = [decode(payload) for payload in LedgerReader(str(ledger)).payloads()]
    old = [msgspec.structs.replace(each, listing=b"") if isinstance(each, TaskEnded) else each for each in records]
    ledger.write_bytes(b"".join(encode(each) for each in old if each is not None))
    assert "nothing to do" in project.run()
    project.change("two\n", "echo half > made/a; mkdir made && exit 1")
    project.run(expect=1)
    assert tree(project / "made") == {"a": "one\n", "sub/b": "one\n"}
    project.write("act.sh", FILL)
    project.run()
    assert tree(project / "made") == {"a": "two\n", "sub/b": "two\n"}
    assert tree(project.records / "replaced") == {"made/a": "one\n", "made/sub/b": "one\n"}


def test_directory_that_holds_the_workflow_is_left_alone(tmp_path: Path) -> None:
    flow = 'from shoal import file\nfile("../here", needs="source", run="sh act.sh")\n'
    (tmp_path / "here").mkdir()
    project = Project(tmp_path / "here", flow, MAKE)
    project.run("--overwrite", "../here")
    for act, status in ((MAKE, 0), (FAIL, 1)):
        project.change(act, act)
        project.run("--overwrite", "../here", expect=status)
        assert (project / "out").read_text() == ("half\n" if status else f"{act}")
        assert (project / "flow.py").exists() and (project / "source").exists()
