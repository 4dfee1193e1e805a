"""What is kept of a cluster that was started, and what an earlier version kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cluster.home import ClusterHome, ClusterRecord, GroupRecord
from shoal.errors import InputError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHome:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    found = ClusterHome("lab")
    found.make()
    return found


EARLIER = '{"head":%s,"nodes":[],"leaving":[],"kind":"local","options":[],"agent":[],"ssh":[],"lodgings":{}}'
A_HEAD = '{"type":"local","name":"n","pid":1,"ticks":1,"boot":"b","log":"l"}'


def test_what_was_written_is_read_again(home: ClusterHome) -> None:
    started = ClusterRecord(groups=[GroupRecord(), GroupRecord("gpu", "slurm", ["--gres=gpu"], labels=["gpu=a100"])])
    home.write_started(started)
    assert home.read_started() == started


def test_the_list_of_an_earlier_version_is_one_sentence(home: ClusterHome) -> None:
    Path(home.started).write_text(EARLIER % A_HEAD)
    with pytest.raises(InputError, match="'lab' was started by an earlier version of Shoal"):
        home.read_started()


def test_a_cluster_that_an_earlier_version_has_ended_is_none(home: ClusterHome) -> None:
    Path(home.started).write_text(EARLIER % "null")
    assert home.read_started() == ClusterRecord()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"groups":3}', '{"unheard":1}'])
def test_a_damaged_list_is_one_sentence(home: ClusterHome, text: str) -> None:
    Path(home.started).write_text(text)
    with pytest.raises(InputError, match="damaged"):
        home.read_started()


def test_a_single_group_need_not_be_named() -> None:
    started = ClusterRecord(groups=[GroupRecord("only")])
    assert started.group(None).name == "only"
    assert started.group("only").name == "only"


def test_of_several_groups_one_must_be_named() -> None:
    started = ClusterRecord(groups=[GroupRecord("a"), GroupRecord("b")])
    assert started.group("b").name == "b"
    with pytest.raises(InputError, match="several groups: a, b"):
        started.group(None)
    with pytest.raises(InputError, match="no group 'c'"):
        started.group("c")


def test_a_group_that_was_removed_is_none_any_more() -> None:
    started = ClusterRecord(groups=[GroupRecord("a"), GroupRecord("b", closing=True)])
    assert started.group(None).name == "a"
    with pytest.raises(InputError, match="no group 'b'"):
        started.group("b")
    assert started.group("b", even_closing=True).closing
