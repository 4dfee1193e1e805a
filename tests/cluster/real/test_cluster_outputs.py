"""What stands under the names of outputs while their tasks run on a cluster: rules 16 and 17 of `docs/files.md`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

UNTIL_GO = "until test -e go; do sleep 0.05; done"
RUN = ("run", "flow.py", "out", "--plain")
THERE = (*RUN, "--cluster", NAME)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("outputs") / "cluster", 1) as found:
        yield found


def write_flow(folder: Path, command: str, options: str = "") -> None:
    (folder / "flow.py").write_text(f'from shoal import rule\nrule("out", ["source"], run="{command}"{options})\n')


@pytest.fixture
def folder(tmp_path: Path, cluster: LocalCluster) -> Path:
    """One in which `out` was made, from a source that is another one by now."""
    (tmp_path / "source").write_text("old\n")
    write_flow(tmp_path, "cp source out")
    cluster.shoal(*RUN, where=tmp_path)
    (tmp_path / "source").write_text("newer\n")
    return tmp_path


def own(folder: Path, *parts: str) -> Path:
    return folder.joinpath(".shoal", "flow.py", *parts)


def is_tidy(folder: Path) -> bool:
    return not own(folder, "aside").exists() and not own(folder, "attempts").exists()


def stood(path: Path) -> tuple[int, str]:
    return os.stat(path).st_mtime_ns, path.read_text()


def test_old_output_is_aside_while_it_is_made_again(cluster: LocalCluster, folder: Path) -> None:
    write_flow(folder, f"touch begun; {UNTIL_GO}; test ! -e out; cp source out")
    client = cluster.begin(*THERE, where=folder)
    wait_until((folder / "begun").exists, "the task runs")
    assert not (folder / "out").exists()
    assert [path.read_text() for path in own(folder, "aside").rglob("out")] == ["old\n"]
    (folder / "go").touch()
    assert client.wait(60) == 0
    assert (folder / "out").read_text() == "newer\n"
    assert is_tidy(folder)
    assert "up to date" in cluster.shoal(*RUN, where=folder)


def test_failed_attempt_restores_the_old_output_and_half_made_goes_to_partial(
    cluster: LocalCluster, folder: Path
) -> None:
    before = stood(folder / "out")
    write_flow(folder, "echo half > out; exit 3")
    said = cluster.shoal(*THERE, where=folder, expect=1)
    assert "what it had made is kept as .shoal/flow.py/partial/out" in said
    assert stood(folder / "out") == before
    assert own(folder, "partial", "out").read_text() == "half\n"
    assert is_tidy(folder)
    write_flow(folder, "cp source out")
    assert "1 task done" in cluster.shoal(*RUN, where=folder)


def test_version_changed_by_hand_is_kept(cluster: LocalCluster, folder: Path) -> None:
    (folder / "out").write_text("by hand\n")
    said = cluster.shoal(*THERE, where=folder)
    assert "kept as .shoal/flow.py/replaced/out" in said
    assert own(folder, "replaced", "out").read_text() == "by hand\n"
    assert (folder / "out").read_text() == "newer\n"


def test_detached_run_is_settled_by_attach(cluster: LocalCluster, folder: Path) -> None:
    before = stood(folder / "out")
    write_flow(folder, f"echo half > out; touch begun; {UNTIL_GO}; exit 3")
    cluster.shoal(*THERE, "--detach", where=folder)
    wait_until((folder / "begun").exists, "the task runs")
    (folder / "go").touch()
    assert own(folder, "attempts").exists()
    said = cluster.shoal("attach", "--plain", where=folder, expect=1)
    assert "what it had made is kept as .shoal/flow.py/partial/out" in said
    assert stood(folder / "out") == before
    assert is_tidy(folder)


def test_killed_client_is_followed_by_attach(cluster: LocalCluster, folder: Path) -> None:
    write_flow(folder, f"echo half > out; touch begun; {UNTIL_GO}; cp source out")
    client = cluster.begin(*THERE, where=folder)
    wait_until((folder / "begun").exists, "the task runs")
    client.kill()
    client.wait()
    (folder / "go").touch()
    cluster.shoal("attach", "--plain", where=folder)
    assert (folder / "out").read_text() == "newer\n"
    assert is_tidy(folder)
    assert "up to date" in cluster.shoal(*RUN, where=folder)


def test_run_that_was_stopped_restores_the_old_output(cluster: LocalCluster, folder: Path) -> None:
    before = stood(folder / "out")
    write_flow(folder, f"trap '' TERM; echo half > out; touch begun; {UNTIL_GO}")
    client = cluster.begin(*THERE, where=folder)
    wait_until((folder / "begun").exists, "the task runs")
    client.send_signal(signal.SIGINT)
    assert client.wait(60) == 130
    assert stood(folder / "out") == before
    assert is_tidy(folder)
    write_flow(folder, "cp source out")
    (folder / "source").write_text("old\n")
    os.utime(folder / "source", ns=(0, 0))
    assert "1 task done" in cluster.shoal(*RUN, where=folder)


def test_every_attempt_begins_without_its_outputs(cluster: LocalCluster, folder: Path) -> None:
    write_flow(folder, "echo x >> out; test -e tried || { touch tried; exit 1; }", ", retries=1")
    cluster.shoal(*THERE, where=folder)
    assert (folder / "out").read_text() == "x\n"
    assert own(folder, "partial", "out").read_text() == "x\n"


def test_own_file_in_an_output_directory_stays(cluster: LocalCluster, folder: Path) -> None:
    (folder / "flow.py").write_text(
        "from shoal import rule\n"
        'rule("d", ["source"], run="mkdir -p d; cp source d/copy; test ! -e fail || { echo half > d/half; exit 1; }")\n'
        'rule("out", ["d"], run="cp d/copy out")\n'
    )
    cluster.shoal(*THERE, where=folder)
    (folder / "d" / "own").write_text("mine\n")
    (folder / "source").write_text("newest\n")
    cluster.shoal(*THERE, where=folder)
    assert (folder / "d" / "copy").read_text() == "newest\n"
    assert (folder / "d" / "own").read_text() == "mine\n"
    (folder / "fail").touch()
    (folder / "source").write_text("other\n")
    said = cluster.shoal(*THERE, where=folder, expect=1)
    assert "what it had made is kept as .shoal/flow.py/partial/d/" in said
    assert sorted(path.name for path in (folder / "d").iterdir()) == ["copy", "own"]
    assert (folder / "d" / "copy").read_text() == "newest\n"
    assert is_tidy(folder)


@pytest.mark.parametrize("check", ["time", "content"])
def test_directory_is_as_it_was_made_in_the_way_that_the_run_checks(
    cluster: LocalCluster, tmp_path: Path, check: str
) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import file\n"
        """file("od", needs="src", run="mkdir -p od/in; cp src od/x; cp src od/in/y; ln -s x od/link")\n"""
    )
    words = ("run", "flow.py", "od", "--plain", "--cluster", NAME, "--check", check)
    for text in ("1\n", "2\n"):
        (tmp_path / "src").write_text(text)
        said = cluster.shoal(*words, where=tmp_path)
        assert "1 task done" in said
        assert "replaced" not in said
        assert (tmp_path / "od" / "in" / "y").read_text() == text
    assert "up to date" in cluster.shoal(*words, where=tmp_path)
    assert not own(tmp_path, "replaced").exists()
    cluster.shoal("clean", "flow.py", where=tmp_path)
    assert not (tmp_path / "od").exists()


def test_in_a_directory_only_what_was_changed_before_attach_is_not_ours(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("made\n")
    (tmp_path / "flow.py").write_text(
        "from shoal import file\n"
        """file("od", needs="src", run="mkdir od; cp src od/x; cp src od/y")\n"""
    )
    cluster.shoal(
        *("run", "flow.py", "od", "--plain", "--cluster", NAME, "--check", "content", "--detach"), where=tmp_path
    )
    wait_until(lambda: "all tasks have ended" in cluster.shoal("status", where=tmp_path), "it has been made")
    (tmp_path / "od" / "y").write_text("mine\n")
    (tmp_path / "od" / "z").write_text("mine\n")
    cluster.shoal("attach", "--plain", where=tmp_path)
    cluster.shoal("clean", "flow.py", where=tmp_path)
    assert sorted(path.name for path in (tmp_path / "od").iterdir()) == ["y", "z"]


def test_refused_run_leaves_everything_where_it_is(cluster: LocalCluster, folder: Path) -> None:
    viewer = folder / "viewer.json"
    cluster.shoal("cluster", "access", NAME, "--role", "viewer", "-o", str(viewer), where=folder)
    before = stood(folder / "out")
    assert "a viewer may not" in cluster.shoal(*RUN, "--cluster", str(viewer), where=folder, expect=2)
    assert stood(folder / "out") == before
    assert is_tidy(folder)


def test_managed_output_takes_the_place_of_a_changed_one_when_it_has_arrived(
    cluster: LocalCluster, folder: Path
) -> None:
    (folder / "out").write_text("by hand\n")
    write_flow(folder, "touch $HOME/begun; cp source out", f', env={{"HOME": "{folder}"}}')
    said = cluster.shoal(*THERE, "--files", "managed", where=folder)
    assert "kept as .shoal/flow.py/replaced/out" in said
    assert own(folder, "replaced", "out").read_text() == "by hand\n"
    assert (folder / "out").read_text() == "newer\n"
    assert is_tidy(folder)


def test_run_that_is_given_up_restores_the_old_output(folder: Path, tmp_path: Path) -> None:
    before = stood(folder / "out")
    write_flow(folder, f"echo half > out; touch begun; {UNTIL_GO}")
    with local_cluster(tmp_path / "gone", 1) as gone:
        gone.shoal(*THERE, "--detach", where=folder)
        wait_until((folder / "begun").exists, "the task runs")
    gone.shoal("cancel", "--forget", "flow.py", where=folder)
    write_flow(folder, "exit 3")
    assert "moved partial outputs to .shoal/flow.py/interrupted/out" in gone.shoal(*RUN, where=folder, expect=1)
    assert stood(folder / "out") == before
    assert own(folder, "interrupted", "out").read_text() == "half\n"


def test_later_attempt_renames_what_the_one_of_a_lost_node_has_begun(folder: Path, tmp_path: Path) -> None:
    write_flow(folder, f"test ! -e out; echo $$ > out; touch begun; {UNTIL_GO}")
    with local_cluster(tmp_path / "two", 2) as two:
        client = two.begin(*THERE, where=folder)
        wait_until((folder / "begun").exists, "the task runs")
        first = (folder / "out").read_text()
        wait_until(lambda: len(two.busy()) == 1, "its node says so")
        two.kill_agent(two.busy()[0])
        wait_until(
            lambda: own(folder, "partial", "out").exists() and (folder / "out").exists(), "another node has begun it"
        )
        (folder / "go").touch()
        assert client.wait(60) == 0
    assert own(folder, "partial", "out").read_text() == first
    assert (folder / "out").read_text() != first
