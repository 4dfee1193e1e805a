"""Objects on the disk: in, out, evicted, and whole after the process was killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data.cache import SPARE, ArrivingError, Cache, DepotFullError, key_of
from shoal.data.listener import Lender
from shoal.data.shelf import AbsentError, DamagedError
from shoal.data.transfer_messages import CHUNK_BYTES
from shoal.errors import InputError


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(str(tmp_path / "cache"))
    yield cache
    cache.close()


def put(cache: Cache, name: str, data: bytes, *, precious: bool = False) -> None:
    path = cache.begin(name, len(data))
    Path(path).write_bytes(data)
    cache.commit(name, len(data), zlib.crc32(data), precious=precious)


def content(cache: Cache, name: str) -> bytes:
    return bytes(cache.mapped(name))


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES + 1])
def test_a_committed_object_is_there_and_the_same_after_reopening(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cache = Cache(str(tmp_path / "cache"))
    assert not cache.has("a/b c")
    put(cache, "a/b c", data)
    assert (cache.has("a/b c"), cache.size("a/b c"), content(cache, "a/b c")) == (True, size, data)
    about = cache.describe("a/b c")
    cache.close()
    cache = Cache(str(tmp_path / "cache"))
    assert (cache.names(), cache.describe("a/b c"), content(cache, "a/b c")) == (["a/b c"], about, data)
    assert cache.used_bytes == size
    cache.close()


def test_bytes_that_are_not_what_was_promised_do_not_become_an_object(cache: Cache) -> None:
    path = cache.begin("x", 4)
    Path(path).write_bytes(b"data")
    with pytest.raises(DamagedError):
        cache.commit("x", 4, zlib.crc32(b"date"))
    with pytest.raises(DamagedError):
        cache.commit("x", 5, zlib.crc32(b"data"))
    assert not cache.has("x")
    cache.commit("x", 4, zlib.crc32(b"data"))
    assert cache.has("x")


def test_an_output_is_adopted_without_a_copy_and_can_no_longer_be_written(cache: Cache, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"result")
    output.chmod(0o755)
    inode = output.stat().st_ino
    about = cache.adopt(str(output), "out")
    assert (about.size, about.checksum, about.executable, about.precious) == (6, zlib.crc32(b"result"), True, True)
    assert not output.exists()
    cache.link("out", str(tmp_path / "input"))
    assert (tmp_path / "input").stat().st_ino == inode
    assert (tmp_path / "input").stat().st_mode & 0o777 == 0o555


def test_a_file_that_is_to_stay_is_copied_and_left_as_it_was(cache: Cache, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"result")
    before = output.stat()
    cache.adopt(str(output), "out", keep=True)
    assert (output.stat().st_mode, output.stat().st_nlink) == (before.st_mode, 1)
    output.write_bytes(b"change")
    assert content(cache, "out") == b"result"


def test_a_folder_is_not_adopted_and_stays(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises((InputError, OSError)):
        cache.adopt(str(tmp_path / "folder"), "folder")
    assert (tmp_path / "folder").is_dir()
    assert cache.used_bytes == 0


def test_an_object_is_copied_to_another_file_system(cache: Cache, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    put(cache, "x", b"data")
    target = other / f"shoal-test-{os.getpid()}"
    try:
        cache.link("x", str(target))
        assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"data", 0o444)
        assert os.listdir(other).count(target.name) == 1
        target.chmod(0o644)
        cache.adopt(str(target), "y")
        assert (content(cache, "y"), target.exists()) == (b"data", False)
    finally:
        target.unlink(missing_ok=True)


def test_a_link_replaces_what_was_there_and_leaves_nothing_beside_it(cache: Cache, tmp_path: Path) -> None:
    put(cache, "x", b"data")
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "input").write_bytes(b"old")
    for _ in range(2):
        cache.link("x", str(folder / "input"))
        assert (folder / "input").read_bytes() == b"data"
    assert os.listdir(folder) == ["input"]
    with pytest.raises(AbsentError):
        cache.link("y", str(folder / "other"))


def test_the_least_valuable_unpinned_object_makes_room(tmp_path: Path) -> None:
    now = 0.0
    cache = Cache(str(tmp_path / "cache"), 100, clock=lambda: now)
    for name in ("pinned", "oldest", "older", "precious"):
        now += 10
        put(cache, name, b"x" * 25, precious=name == "precious")
    assert cache.pin("pinned")
    now += 10
    put(cache, "new", b"x" * 20)
    assert cache.names() == ["pinned", "older", "precious", "new"]
    cache.unpin("pinned")
    now += 10
    put(cache, "newer", b"x" * 25)
    assert cache.names() == ["pinned", "precious", "new", "newer"]  # being pinned is being used
    now += 10
    put(cache, "newest", b"x" * 25)
    assert cache.names() == ["precious", "new", "newer", "newest"]
    assert cache.used_bytes <= 100
    cache.close()


def test_what_may_not_go_stays_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), 100)
    put(cache, "only copy", b"x" * 60, precious=True)
    put(cache, "spare", b"x" * 30)
    with pytest.raises(DepotFullError, match="limit is 100 bytes"):
        cache.begin("large", 50)
    assert cache.names() == ["only copy", "spare"]
    cache.set_precious("only copy", False)
    cache.close()
    cache = Cache(str(tmp_path / "cache"), 100)
    cache.begin("large", 50)
    assert cache.used_bytes <= 100
    cache.close()


def test_partial_files_are_kept_for_the_next_time_and_go_first(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), 100)
    put(cache, "x", b"x" * 40)
    Path(cache.begin("partial", 50)).write_bytes(b"y" * 30)
    with pytest.raises(ArrivingError):
        cache.begin("partial", 50)
    cache.leave("partial")
    assert cache.used_bytes == 70
    cache.close()
    cache = Cache(str(tmp_path / "cache"), 100)
    assert cache.used_bytes == 70
    assert Path(cache.begin("partial", 50)).read_bytes() == b"y" * 30
    cache.leave("partial")
    put(cache, "z", b"z" * 60)
    assert cache.names() == ["x", "z"]
    assert os.listdir(tmp_path / "cache" / "partial") == []
    cache.close()


def test_damage_to_what_is_known_of_an_object_costs_that_object_only(tmp_path: Path) -> None:
    for spoil in ("first", "last"):
        folder = tmp_path / spoil
        cache = Cache(str(folder))
        for name in ("a", "b", "c", "d"):
            put(cache, name, name.encode() * 10)
        cache.close()
        about = folder / "catalogue"
        told = about.read_bytes()
        half = len(told) // 8
        about.write_bytes(b"\xff" * half + told[half:] if spoil == "first" else told[:-half])
        damaged = folder / "objects" / key_of("b")
        damaged.chmod(0o644)
        damaged.write_bytes(b"short")
        expected = ["c", "d"] if spoil == "first" else ["a", "c"]
        for _ in range(2):
            cache = Cache(str(folder))
            assert cache.names() == expected
            assert all(content(cache, name) == name.encode() * 10 for name in expected)
            assert len(os.listdir(folder / "objects")) == 2
            cache.close()


def test_what_is_known_of_objects_that_are_gone_does_not_pile_up(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"))
    put(cache, "kept", b"data")
    most = 0
    for number in range(3 * SPARE):
        cache.set_precious("kept", number % 2 == 0)
        most = max(most, (tmp_path / "cache" / "catalogue").stat().st_size)
    assert most < 200 * SPARE
    cache.set_precious("kept", True)
    cache.close()
    cache = Cache(str(tmp_path / "cache"))
    assert cache.describe("kept").precious
    cache.close()


def test_partial_files_can_be_dropped_without_what_is_arriving(cache: Cache) -> None:
    for name in ("left", "arriving"):
        Path(cache.begin(name, 10)).write_bytes(b"12345")
    cache.leave("left")
    cache.drop_partial()
    assert os.listdir(Path(cache.directory) / "partial") == [key_of("arriving")]
    assert cache.used_bytes == 10


def test_an_object_whose_file_somebody_removed_is_absent(cache: Cache) -> None:
    put(cache, "x", b"data")
    for file in (Path(cache.directory) / "objects").iterdir():
        file.unlink()
    assert cache.open("x") is None
    assert not cache.has("x")


def test_two_agents_do_not_share_a_cache(cache: Cache) -> None:
    with pytest.raises(InputError, match="in use by another agent"):
        Cache(cache.directory)


def test_a_lent_file_that_was_changed_is_not_given_away(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"one")
    lender = Lender()
    assert lender.lend(str(path), "input").size == 3
    opened = lender.open("input")
    assert opened is not None
    assert os.pread(opened.descriptor, 10, 0) == b"one"
    os.close(opened.descriptor)
    path.write_bytes(b"three")
    assert lender.open("input") is None
    path.unlink()
    assert lender.open("input") is None


WRITER = """
import sys, zlib, random
from pathlib import Path
from shoal.data.cache import Cache
folder, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
cache = Cache(folder + "/cache")
for number in range(1000000):
    name = f"object {seed} {number}"
    data = random.Random(name).randbytes(chance.randrange(200000))
    if chance.random() < 0.5:
        output = Path(folder, "output")
        output.write_bytes(data)
        cache.adopt(str(output), name, keep=chance.random() < 0.3)
    else:
        Path(cache.begin(name, len(data))).write_bytes(data)
        cache.commit(name, len(data), zlib.crc32(data))
    if chance.random() < 0.3:
        cache.set_precious(name, False)
    print("+", name, len(data), flush=True)
    if chance.random() < 0.3:
        victim = chance.choice(cache.names())
        print("-", victim, 0, flush=True)
        cache.drop(victim)
"""


def test_every_committed_object_outlives_sigkill_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(7)
    expected: dict[str, int] = {}
    for seed in range(12):
        words = [sys.executable, "-c", WRITER, str(tmp_path), str(seed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = []
            for _ in range(chance.randrange(1, 60)):
                lines.append(writer.stdout.readline())
            for _ in range(chance.randrange(20_000)):
                pass  # a moment that has nothing to do with the line just read
            os.kill(writer.pid, signal.SIGKILL)
            lines += writer.stdout.readlines()
        for line in lines:
            sign, name, size = line.strip()[0], line.strip()[2:].rsplit(" ", 1)[0], int(line.rsplit(" ", 1)[1])
            if sign == "+":
                expected[name] = size
            else:
                expected.pop(name, None)
        cache = Cache(str(tmp_path / "cache"))
        assert set(expected) <= set(cache.names())
        for name in cache.names():
            data = content(cache, name)
            assert data == random.Random(name).randbytes(len(data))
            assert zlib.crc32(data) == cache.describe(name).checksum
            assert len(data) == expected.get(name, len(data))
        assert cache.used_bytes == sum(
            entry.stat().st_size for part in ("objects", "partial") for entry in (tmp_path / "cache" / part).iterdir()
        )
        cache.close()
    assert len(expected) > 50


FILLER = """
import sys, zlib
from pathlib import Path
from shoal.data.cache import Cache, DepotFullError
cache = Cache(sys.argv[1])
kept = []
try:
    for number in range(1000):
        data = str(number).encode() * 50000
        Path(sys.argv[1], "output").write_bytes(b"")
        path = cache.begin(f"object {number}", len(data))
        with cache._disk():
            Path(path).write_bytes(data)
        cache.commit(f"object {number}", len(data), zlib.crc32(data))
        kept.append(number)
except DepotFullError as error:
    print(error)
cache.close()
cache = Cache(sys.argv[1])
assert kept and cache.names(), kept
for number in kept:
    assert bytes(cache.mapped(f"object {number}")) == str(number).encode() * 50000
cache.drop("object 0")
data = Path(sys.argv[1], "small")
data.write_bytes(b"again")
cache.adopt(str(data), "again")
print(len(kept))
"""


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    script = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FILLER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    sentence, kept = done.stdout.splitlines()
    assert sentence == f"the disk that holds {tmp_path} is full; existing objects are kept"
    assert int(kept) > 5
