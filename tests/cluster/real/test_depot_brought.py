"""Files that are uploaded to a cluster or downloaded from it, while the other end disappears."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.unit.world import TOKEN, content, serving
from shoal.cluster.agent.messages import FilesReply, FilesRequest, StagedFileFacts, WireMessage
from shoal.cluster.agent.node_cache import NodeCache
from shoal.cluster.agent.run_store import IncompleteError
from shoal.cluster.agent.task_files import FileVersion, encode_made, object_name
from shoal.cluster.input_staging import OutputReturn
from shoal.cluster.messaging.access import make_access
from shoal.cluster.selection import Selection
from shoal.core.work import Work
from shoal.data.shelf import DamagedError

DATA = b"0123456789"
NAME = object_name("run", 0, 0)
NO_WORK = Work("", array("d"), array("i"), [], array("i"), array("i", [0]), array("i"))


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[NodeCache]:
    depot = NodeCache(str(tmp_path / "depot"), make_access("corals"), "127.0.0.1", encrypted=False)
    yield depot
    depot.close()


def partial(depot: NodeCache) -> list[str]:
    return os.listdir(Path(depot.cache.directory) / "partial")


def bring(depot: NodeCache, begin: int, end: int, checksum: int = zlib.crc32(DATA)) -> None:
    depot.take(NAME, begin, DATA[begin:end], len(DATA), checksum, False)


def test_an_abandoned_upload_is_dropped_and_can_be_repeated(depot: NodeCache) -> None:
    bring(depot, 0, 5)
    depot.keep_only(["other"])
    bring(depot, 5, 8)  # it was not given up too soon
    depot.keep_only(["run"], patience=-1.0)
    assert len(partial(depot)) == 1
    depot.keep_only(["other"], patience=-1.0)
    assert (partial(depot), depot.cache.used_bytes) == ([], 0)
    with pytest.raises(IncompleteError):
        bring(depot, 8, 10)
    bring(depot, 0, 10)
    assert bytes(depot.cache.mapped(NAME)) == DATA


def test_a_damaged_upload_leaves_nothing_and_can_be_repeated(depot: NodeCache) -> None:
    with pytest.raises(DamagedError):
        bring(depot, 0, 10, checksum=1)
    assert (partial(depot), depot.cache.used_bytes) == ([], 0)
    bring(depot, 0, 10)
    assert depot.cache.has(NAME)


def test_parts_of_an_earlier_life_go_when_there_is_no_run(depot: NodeCache) -> None:
    Path(depot.cache.begin("run/7/1", 100)).write_bytes(b"part")
    depot.cache.leave("run/7/1")
    depot.keep_only(["run"])
    assert len(partial(depot)) == 1
    depot.keep_only([])
    assert (partial(depot), depot.cache.used_bytes) == ([], 0)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same file system", "another file system"])
def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(tmp_path: Path, elsewhere: bool) -> None:
    shared = Path("/dev/shm")
    if elsewhere and (not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev):
        pytest.skip("there is one file system only")
    place = (shared / f"shoal-test-{os.getpid()}") if elsewhere else tmp_path / "targets"
    place.mkdir()
    good, bad = place / "good", place / "bad"
    bad.mkdir()  # a directory is in the way
    names = {object_name("run", 0, 1): 3000, object_name("run", 1, 1): 2000}
    try:
        with serving(tmp_path / "there", False, names) as server:
            versions = [
                encode_made(FileVersion(1, size, zlib.crc32(content(name, size)))) for name, size in names.items()
            ]

            def ask(message: WireMessage) -> WireMessage:
                assert isinstance(message, FilesRequest)
                found = [StagedFileFacts(versions[file], [f"127.0.0.1:{server.port}"]) for file in message.files]
                return FilesReply(found, TOKEN, False)

            selection = Selection([], NO_WORK, [str(good), str(bad)])
            way = OutputReturn("run", selection, str(tmp_path / "arriving"), ask)
            assert way.get([str(good)]) == []
            with pytest.raises(OSError, match="bad"):
                way.get([str(bad)])
            way.close()
        assert good.read_bytes() == content(object_name("run", 0, 1), 3000)
        assert good.stat().st_mode & 0o200
        assert sorted(os.listdir(place)) == ["bad", "good"]
        assert not (tmp_path / "arriving").exists()
    finally:
        bad.rmdir()
        good.unlink(missing_ok=True)
        place.rmdir()
