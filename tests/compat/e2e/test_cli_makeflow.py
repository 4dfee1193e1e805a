"""`shoal makeflow` where it departs from the original on purpose, and what it does to files and log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import SHOAL, shoal, start, wait_until

CHAIN = "a:\n\techo hi > a\nb: a\n\tcat a > b\nc: b\n\tcat b > c\n"


def makeflow(directory: Path, *words: str, text: str | None = None) -> tuple[int, str]:
    """Writes the workflow, runs the stand-in, and returns exit status and everything it printed."""
    if text is not None:
        (directory / "m.mf").write_text(text)
    done = shoal(directory, "makeflow", *words, "m.mf", expect=None)
    return done.returncode, done.stdout + done.stderr


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"m.mf", "m.mf.makeflowlog", ".shoal"}


def test_a_run_in_which_a_target_was_not_made_is_no_success(tmp_path: Path) -> None:
    status, said = makeflow(tmp_path, text="a:\n\techo x > a; exit 3\nb: a\n\tcp a b\nc:\n\techo c > c\n")
    assert status == 1
    assert "failed with exit code 3" in said
    assert "workflow failed." in said
    assert "# FAILED" in (tmp_path / "m.mf.makeflowlog").read_text()
    assert names(tmp_path) == {"c", "makeflow.failed.0"}


def test_the_other_rules_run_although_what_a_failed_one_made_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "makeflow.failed.0").write_text("a file, where a directory should be made")
    status, said = makeflow(tmp_path, "-j", "1", text="a:\n\techo x > a; exit 3\n" + "z:\n\techo z > z\n")
    assert status == 1
    assert "cannot move outputs" in said
    assert names(tmp_path) == {"makeflow.failed.0", "z"}


def test_nothing_is_repeated_unless_asked_for(tmp_path: Path) -> None:
    count = "a:\n\techo x >> count; false\n"
    makeflow(tmp_path, text=count)
    assert (tmp_path / "count").read_text() == "x\n"
    makeflow(tmp_path, "-r", "2")
    assert (tmp_path / "count").read_text() == "x\n" * 4


def test_a_command_that_asks_to_be_run_again_is(tmp_path: Path) -> None:
    status, _ = makeflow(tmp_path, text="a:\n\techo x >> count; test -s b && touch a || { echo > b; exit 101; }\n")
    assert status == 0
    assert (tmp_path / "count").read_text() == "x\n" * 2


def test_a_rule_put_in_front_runs_and_the_others_do_not_run_again(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    status, said = makeflow(tmp_path, text="new:\n\techo new > new\n" + CHAIN)
    assert status == 0
    assert said.count("submitting job") == 1
    assert "new" in names(tmp_path)


def test_collected_files_are_not_made_again_until_something_needs_them(tmp_path: Path) -> None:
    makeflow(tmp_path, "-g", "ref_cnt", text=CHAIN)
    assert names(tmp_path) == {"c"}
    assert "submitting job" not in makeflow(tmp_path)[1]
    (tmp_path / "c").unlink()
    status, said = makeflow(tmp_path)
    assert status == 0
    assert said.count("submitting job") == 3


def test_what_an_earlier_run_made_is_collected_as_well(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN.replace("cat b > c", "test -e go && cat b > c"))
    (tmp_path / "go").touch()
    assert makeflow(tmp_path, "-g", "ref_cnt")[0] == 0
    assert names(tmp_path) == {"c", "go"}


def test_an_output_beside_a_collected_file_is_made_again_when_it_is_gone(tmp_path: Path) -> None:
    makeflow(tmp_path, "-g", "ref_cnt", text="a b:\n\techo 1 > a; echo 2 > b\nc: a\n\tcat a > c\n")
    assert names(tmp_path) == {"b", "c"}
    (tmp_path / "b").unlink()
    status, _ = makeflow(tmp_path, "-g", "ref_cnt")
    assert status == 0
    assert names(tmp_path) == {"b", "c"}


def test_a_collected_file_that_becomes_an_output_is_made_again(tmp_path: Path) -> None:
    makeflow(tmp_path, "-g", "ref_cnt", text=CHAIN)
    assert makeflow(tmp_path, "-g", "ref_cnt", text="MAKEFLOW_OUTPUTS=b c\n" + CHAIN)[0] == 0
    assert names(tmp_path) == {"b", "c"}
    shoal(tmp_path, "run", "m.mf", "a")
    assert "a" in names(tmp_path)


def test_cleaned_intermediates_stay_away_and_cleaned_outputs_are_made_again(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    makeflow(tmp_path, "--clean=intermediates")
    assert names(tmp_path) == {"c"}
    assert "submitting job" not in makeflow(tmp_path)[1]
    makeflow(tmp_path, "--clean=outputs")
    assert makeflow(tmp_path)[0] == 0
    assert "c" in names(tmp_path)


def test_cleaning_everything_leaves_the_workflow_alone(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    makeflow(tmp_path, "-c")
    assert os.listdir(tmp_path) == ["m.mf"]


def test_cleaning_removes_the_script_of_a_dry_run_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "m.mf.sh").write_text("#!/bin/sh\necho precious\n")
    makeflow(tmp_path, "-c", text=CHAIN)
    assert names(tmp_path) == {"m.mf.sh"}
    makeflow(tmp_path, "-T", "dryrun")
    makeflow(tmp_path, "-c")
    assert names(tmp_path) == set()


def test_a_run_with_another_log_is_another_run(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    assert makeflow(tmp_path, "-l", "other.log")[1].count("submitting job") == 3
    (tmp_path / "m.mf.makeflowlog").unlink()
    assert makeflow(tmp_path)[1].count("submitting job") == 3


def test_an_edited_file_is_kept_and_its_readers_run(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    (tmp_path / "b").write_text("edited\n")
    assert makeflow(tmp_path)[1].count("submitting job") == 1
    assert (tmp_path / "c").read_text() == "edited\n"
    assert "submitting job" not in makeflow(tmp_path)[1]


@pytest.mark.parametrize("is_there", [False, True])
def test_link_of_the_user_stays_and_is_written_through(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "store").mkdir()
    out, target = tmp_path / "out", tmp_path / "store" / "out"
    if is_there:
        target.write_text("mine\n")
    out.symlink_to("store/out")
    for text in ("one\n", "two\n", "three\n"):
        (tmp_path / "source").write_text(text)
        assert makeflow(tmp_path, text="out: source\n\tcat source > out\n")[0] == 0
        assert os.readlink(out) == "store/out"
        assert target.read_text() == text


def test_link_that_a_rule_made_is_made_again(tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        (tmp_path / "source").write_text(text)
        assert makeflow(tmp_path, text="out: source\n\tln -s source out\n")[0] == 0
        assert os.readlink(tmp_path / "out") == "source"


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "m.mf").write_text("a:\n\techo hi > a\nb: a\n\ttouch begun; test -e go || sleep 60; cat a > b\n")
    process = start(tmp_path, "makeflow", "m.mf")
    wait_until((tmp_path / "begun").exists, "the second rule begins")
    process.send_signal(signal.SIGINT)
    process.wait()
    assert process.returncode == 1
    assert "# ABORTED" in (tmp_path / "m.mf.makeflowlog").read_text()
    (tmp_path / "go").touch()
    status, said = makeflow(tmp_path)
    assert status == 0
    assert said.count("submitting job") == 1


def test_outputs_of_a_killed_run_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "m.mf").write_text("a:\n\techo x >> a; test -e go || sleep 60\n")
    process = start(tmp_path, "makeflow", "m.mf")
    wait_until((tmp_path / "a").exists, "the rule begins")
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    assert makeflow(tmp_path)[0] == 0
    assert (tmp_path / "a").read_text() == "x\n"


def test_what_cannot_be_read_is_one_sentence_with_its_place_and_status_1(tmp_path: Path) -> None:
    status, said = makeflow(tmp_path, text="a: b\n\tcp b a\nb: a\n\tcp a b\n")
    assert (status, said.count("\nshoal: ")) == (1, 1)
    status, said = makeflow(tmp_path, text="CORES=5000\na:\n\ttouch a\n")
    assert status == 1
    assert "m.mf:2: 'a' asks for cores 5000" in said
    assert makeflow(tmp_path, "--docker=image")[0] == 1
    assert makeflow(tmp_path, "-T", "nonsense")[0] == 1
    assert makeflow(tmp_path, "--no-such-option")[0] == 1


def test_files_of_any_name_are_run_logged_and_resumed(tmp_path: Path) -> None:
    flow = os.path.join(os.fsencode(tmp_path), b"-m\xff.mf")
    text = '{"rules": [{"command": "touch \'a\\nb\' \'c d\'", "outputs": ["a\\nb", "c d"]}]}'
    with open(flow, "w") as file:
        file.write(text)
    words = ["makeflow", "--json", "--log-verbose", "--", os.fsdecode(os.path.basename(flow))]
    command = [*SHOAL, *words]
    first, second = (subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert b"submitting job" in first.stdout
    assert b"submitting job" not in second.stdout
    assert {"a\nb", "c d"} <= names(tmp_path)


def test_options_in_a_file_that_includes_itself_are_refused(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"argv": "options.json"}')
    status, said = makeflow(tmp_path, "--argv", "options.json", text=CHAIN)
    assert status == 1
    assert "includes itself" in said


def test_a_sandbox_does_not_change_what_a_rule_exports(tmp_path: Path) -> None:
    makeflow(tmp_path, "--sandbox", text="export base=1\nexport box=2\na:\n\techo \\$base \\$box > a\n")
    assert (tmp_path / "a").read_text() == "1 2\n"


def test_a_sub_workflow_gets_what_its_rule_declares_in_any_spelling(tmp_path: Path) -> None:
    (tmp_path / "sub.mf").write_text("a:\n\techo x > a\n")
    status, said = makeflow(tmp_path, text='a:\nCORES="1"\nMEMORY=0.5G\n\tMAKEFLOW sub.mf\n')
    assert status == 0, said
    assert "--local-cores=1 --local-memory=512" in said


def test_a_run_that_the_original_began_goes_on_where_it_was(tmp_path: Path) -> None:
    text = "a:\n\techo a >> runs; echo > a\nb: a\n\ttest -e go && cp a b\n"
    (tmp_path / "m.mf").write_text(text)
    quiet = {**os.environ, "OMPI_MCA_ess_singleton_isolated": "1"}
    subprocess.run(["makeflow", "m.mf"], cwd=tmp_path, env=quiet, capture_output=True, check=True)
    (tmp_path / "go").touch()
    status, said = makeflow(tmp_path)
    assert status == 0
    assert "1 of 2 rules were done by another program" in said
    assert (tmp_path / "runs").read_text() == "a\n"


def test_a_log_that_speaks_of_another_workflow_is_not_believed(tmp_path: Path) -> None:
    makeflow(tmp_path, text=CHAIN)
    shutil.rmtree(tmp_path / ".shoal")
    status, said = makeflow(tmp_path, text=CHAIN + "d: c\n\tcat c > d\n")
    assert status == 0
    assert said.count("submitting job") == 4
