"""Tasks that require or prefer labels of nodes, on three real agents with different ones."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shoal
from shoal.errors import InputError
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import PATIENCE, SHOAL, wait_until


@contextmanager
def agent_at(cluster: LocalCluster, site: str, *labels: str, hidden: Path | None = None) -> Iterator[None]:
    """An agent of one core whose tasks find the site in their environment; what is `hidden` it cannot see."""
    words = [*SHOAL, "agent", "--access", str(cluster.access), "--cores", "1", "--label", f"site={site}"]
    words += [word for label in labels for word in ("--label", label)]
    if hidden is not None:
        words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh", *words]
    with open(cluster.folder / "agent.log", "ab") as log:
        agent = subprocess.Popen(
            words, env=cluster.environment | {"SITE": site}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: f"site={site}" in cluster.shoal("cluster", "status", NAME), f"the agent of {site} is there")
        yield
    finally:
        agent.terminate()
        agent.wait(PATIENCE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three agents: one of site a, which `cluster start` has started, one of b, and one of c that has a GPU."""
    folder = tmp_path_factory.mktemp("labels")
    with (
        local_cluster(folder, 1, "--agent=--cores=1", "--agent=--label=site=a") as found,
        agent_at(found, "b"),
        agent_at(found, "c", "gpu=x100"),
    ):
        yield found


def write(folder: Path, count: int, options: str, first: str = "true") -> Path:
    """Each part notes the site at which it was made; the agent that `cluster start` started knows of none."""
    folder.mkdir()
    (folder / "flow.py").write_text(
        "from shoal import rule, task\n"
        f"for i in range({count}):\n"
        f'    rule(f"part{{i}}", run=f"{first}; echo ${{{{SITE:-a}}}} > part{{i}}", {options})\n'
        f'task("all", needs=[f"part{{i}}" for i in range({count})])\n'
    )
    return folder


def sites(folder: Path) -> Counter[str]:
    return Counter(path.read_text().strip() for path in folder.glob("part*"))


@pytest.mark.parametrize("to", ["one", "all", "site=a"])
def test_tasks_run_only_on_nodes_with_the_labels_they_require(cluster: LocalCluster, tmp_path: Path, to: str) -> None:
    folder = write(tmp_path / "w", 40, 'requires="gpu=x100", category="training"')
    cluster.shoal("run", "--cluster", NAME, "all", "--plain", "--to", to, where=folder)
    assert sites(folder) == {"c": 40}


def test_preferring_tasks_run_at_their_label_while_there_is_room(cluster: LocalCluster, tmp_path: Path) -> None:
    """A chain: there is always room, wherever the step before it ran."""
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "flow.py").write_text(
        "from shoal import rule\n"
        "for i in range(12):\n"
        '    wish = ("site=a", "site=b", "site=c")[i % 3]\n'
        '    needs = [f"part{i - 1}"] if i else []\n'
        '    rule(f"part{i}", needs, run=f"echo ${{SITE:-a}} > part{i}", prefers=wish, category=wish)\n'
    )
    cluster.shoal("run", "--cluster", NAME, "part11", "--plain", where=folder)
    followed = sum((folder / f"part{i}").read_text().strip() == "abc"[i % 3] for i in range(12))
    assert followed >= 9, f"an idle node may be quicker now and then, but: {sites(folder)}"


def test_others_help_when_preferring_tasks_would_wait(cluster: LocalCluster, tmp_path: Path) -> None:
    another = "until [ $(cat at* | sort -u | wc -l) -ge 2 ]; do sleep 0.1; done"  # wherever they begin, they wait
    folder = write(tmp_path / "w", 24, 'prefers="site=b"', f"echo ${{{{SITE:-a}}}} > at{{i}}; {another}")
    cluster.shoal("run", "--cluster", NAME, "all", "--plain", where=folder)
    assert sites(folder).total() == 24
    assert len(sites(folder)) > 1, "a preference is no requirement"


def test_first_tasks_go_where_they_are_submitted_to(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write(tmp_path / "w", 1, "retries=0")
    cluster.shoal("run", "--cluster", NAME, "all", "--plain", "--to", "site=b", where=folder)
    assert sites(folder) == {"b": 1}
    many = write(tmp_path / "many", 300, "retries=0")
    cluster.shoal("run", "--cluster", NAME, "all", "--plain", "--to", "all", where=many)
    assert set(sites(many)) == {"a", "b", "c"}


def test_a_task_that_no_node_can_run_waits_for_one_and_why_says_so(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write(tmp_path / "w", 30, 'requires="site=d", category="far"')
    client = cluster.begin("run", "--cluster", NAME, "all", "--plain", where=folder)
    said = cluster.folder / "begun.log"
    sentence = "no node of the cluster has the label site=d"
    wait_until(lambda: sentence in said.read_text(), "the run says what it waits for")
    wait_until(lambda: sentence in cluster.shoal("why", "part7", where=folder, expect=None), "so does why")
    assert not sites(folder)
    with agent_at(cluster, "d"):
        assert client.wait(PATIENCE * 2) == 0, said.read_text()
    assert sites(folder) == {"d": 30}
    assert said.read_text().count(sentence) == 1


def test_waiting_tasks_can_be_cancelled(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write(tmp_path / "w", 3, 'requires="site=e"')
    cluster.shoal("run", "--cluster", NAME, "all", "--detach", "--quiet", where=folder)
    sentence = "no node of the cluster has the label site=e"
    wait_until(lambda: sentence in cluster.shoal("why", "part1", where=folder, expect=None), "it waits")
    cluster.shoal("cancel", where=folder)
    cluster.shoal("attach", "--plain", where=folder, expect=1)


@pytest.mark.parametrize(("to", "options"), [("all", "retries=0"), ("one", 'prefers="site=blind"')])
def test_a_node_that_does_not_see_the_directory_keeps_nothing_that_goes_to_it(
    cluster: LocalCluster, tmp_path: Path, to: str, options: str
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    folder = write(seen / "w", 60, options)
    with agent_at(cluster, "blind", hidden=seen):
        said = cluster.shoal("run", "--cluster", NAME, "all", "--plain", "--to", to, where=folder)
    assert "so the node does not take part" in said
    assert sites(folder).total() == 60
    assert "blind" not in sites(folder)


def test_a_label_that_no_node_has_is_no_place_to_submit_to(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write(tmp_path / "w", 1, "retries=0")
    said = cluster.shoal("run", "--cluster", NAME, "all", "--to", "site=z", where=folder, expect=2)
    assert "no node of the cluster has the label site=z; there are gpu=x100, " in said
    wrong = cluster.shoal("run", "--cluster", NAME, "all", "--to", "some", where=folder, expect=2)
    assert "--to 'some' is not one, all or a label" in wrong


def test_calls_of_an_executor_run_on_nodes_with_the_labels_they_require(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", cluster.environment["SHOAL_HOME"])
    with shoal.Executor(cluster=NAME) as executor:
        on_gpu = executor.with_options(requires="gpu=x100")
        found = [on_gpu.submit(site_of, number) for number in range(10)]
        assert {future.result(PATIENCE) for future in found} == {"c"}
        with pytest.raises(InputError, match="requires the label gpu=y, and no agent of the cluster 'lab' has it"):
            executor.with_options(requires="gpu=y")


def site_of(number: int) -> str:
    import os

    return os.environ.get("SITE", "a")


def test_on_one_machine_a_required_label_is_declared_or_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", 2, 'requires="site=d", prefers="gpu=x100"')
    here = LocalCluster(tmp_path)
    said = here.shoal("run", "all", where=folder, expect=2)
    assert "flow.py:3: 'part0' requires a node with the label site=d, which this machine does not have; " in said
    assert "--label site=d" in said
    here.shoal("run", "all", "--label", "site=d", "--plain", where=folder)
    assert sites(folder) == {"a": 2}
    assert "--label 'site' is not a label" in here.shoal("run", "all", "--label", "site", where=folder, expect=2)
