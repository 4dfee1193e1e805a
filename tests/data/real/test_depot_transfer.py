"""Objects fetched from real processes over real sockets: exact, resumed, repaired, from any replica."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest

from data.unit.world import (
    PATIENCE,
    TOKEN,
    assert_there,
    content,
    fetching,
    fill,
    proxy,
    results,
    serving,
    want,
)
from shoal.data.cache import Cache
from shoal.data.fetch import FetchFailureCause
from shoal.data.transfer_messages import CHUNK_BYTES, DataGrant

SIZES = {
    "empty": 0,
    "one byte": 1,
    "a chunk less one": CHUNK_BYTES - 1,
    "a chunk": CHUNK_BYTES,
    "a chunk and one": CHUNK_BYTES + 1,
    "many chunks/ünïcode": 9 * CHUNK_BYTES + 12_345,
}
LARGE = 12 * CHUNK_BYTES + 777
OVERHEAD = 200_000
"""More than heads of answers and TLS records add to a large object."""

both = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])


@both
def test_objects_of_all_sizes_arrive_byte_for_byte(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, SIZES) as server, fetching(tmp_path / "here") as fetcher:
        for name, size in SIZES.items():
            want(fetcher, name, size, server.grant())
        got = results(fetcher, len(SIZES))
        for name, size in SIZES.items():
            assert got[name].troubles == ()
            assert_there(fetcher, name, size)
        assert fetcher.received_bytes == sum(SIZES.values())


@both
def test_many_small_objects_come_through_one_connection(tmp_path: Path, encrypted: bool) -> None:
    sizes = {f"object {number}": 1000 + number for number in range(300)}
    with (
        serving(tmp_path / "there", encrypted, sizes) as server,
        proxy(server.port) as between,
        fetching(tmp_path / "here") as fetcher,
    ):
        for name, size in sizes.items():
            want(fetcher, name, size, server.grant(between.port))
            want(fetcher, name, size, server.grant(between.port))  # asking twice is asking once
        assert all(result.description for result in results(fetcher, len(sizes)).values())
        for name, size in sizes.items():
            assert_there(fetcher, name, size)
        assert between.connections == 1
        want(fetcher, "object 0", 1000, server.grant(between.port))
        assert results(fetcher, 1)["object 0"].description is not None
        assert fetcher.received_bytes == sum(sizes.values())


def test_a_program_can_still_be_run_after_its_journey(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    cache = Cache(str(tmp_path / "there"))
    about = cache.adopt(str(script), "script")
    cache.close()
    with serving(tmp_path / "there", True) as server, fetching(tmp_path / "here") as fetcher:
        fetcher.fetch("script", [server.grant()], about.size, about.checksum)
        assert results(fetcher, 1)["script"].description is not None
        fetcher.cache.link("script", str(tmp_path / "again"))
    assert subprocess.run([tmp_path / "again"], capture_output=True, text=True, check=True).stdout == "ran\n"


@both
def test_a_server_killed_in_mid_transfer_and_restarted_sends_at_most_a_chunk_twice(
    tmp_path: Path, encrypted: bool
) -> None:
    with (
        serving(tmp_path / "there", encrypted, {"large": LARGE}) as server,
        proxy(server.port) as between,
        fetching(tmp_path / "here", patience=PATIENCE) as fetcher,
    ):

        def die_and_return() -> bool:
            server.kill()
            server.start()
            return False

        between.at, between.action = LARGE // 2, die_and_return
        want(fetcher, "large", LARGE, server.grant(between.port))
        assert results(fetcher, 1)["large"].description is not None
        assert_there(fetcher, "large", LARGE)
        assert between.connections >= 2
        assert fetcher.received_bytes == LARGE
        assert between.forwarded <= LARGE + CHUNK_BYTES + OVERHEAD


FETCHING = """
import sys, zlib
from shoal.data.cache import Cache
from shoal.data.fetch import Fetcher
from shoal.data.transfer_messages import DataGrant
folder, port, token, encrypted, size, checksum = sys.argv[1:]
fetcher = Fetcher(Cache(folder))
grant = DataGrant("127.0.0.1", int(port), bytes.fromhex(token), encrypted == "True")
fetcher.fetch("large", [grant], int(size), int(checksum))
sys.stdin.read()
"""


@both
def test_a_fetching_process_killed_in_mid_transfer_goes_on_where_it_was(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, {"large": LARGE}) as server, proxy(server.port) as between:
        reached, go_on = threading.Event(), threading.Event()

        def hold() -> bool:
            reached.set()
            go_on.wait(PATIENCE)
            return False

        between.at, between.action = LARGE * 3 // 4, hold
        checksum = zlib.crc32(content("large", LARGE))
        words = [str(tmp_path / "here"), str(between.port), TOKEN.hex(), str(encrypted), str(LARGE), str(checksum)]
        with subprocess.Popen([sys.executable, "-c", FETCHING, *words], stdin=subprocess.PIPE) as child:
            partial = tmp_path / "here" / "partial"
            assert reached.wait(PATIENCE)
            while sum(entry.stat().st_size for entry in partial.iterdir()) < LARGE // 2:
                assert child.poll() is None
            os.kill(child.pid, signal.SIGKILL)
        go_on.set()
        with fetching(tmp_path / "here") as fetcher:
            want(fetcher, "large", LARGE, server.grant())
            assert results(fetcher, 1)["large"].description is not None
            assert_there(fetcher, "large", LARGE)
            assert fetcher.received_bytes <= LARGE // 2 + CHUNK_BYTES


def test_kept_bytes_that_are_wrong_are_noticed_and_fetched_again(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "here"))
    Path(cache.begin("large", LARGE)).write_bytes(b"\0" * (3 * CHUNK_BYTES))
    cache.leave("large")
    cache.close()
    with serving(tmp_path / "there", False, {"large": LARGE}) as server, fetching(tmp_path / "here") as fetcher:
        want(fetcher, "large", LARGE, server.grant())
        assert results(fetcher, 1)["large"].description is not None
        assert_there(fetcher, "large", LARGE)


@both
def test_a_damaged_chunk_is_fetched_again(tmp_path: Path, encrypted: bool) -> None:
    with (
        serving(tmp_path / "there", encrypted, {"large": LARGE}) as server,
        proxy(server.port) as between,
        fetching(tmp_path / "here") as fetcher,
    ):
        between.flip = {3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 70_000, 5 * CHUNK_BYTES}
        want(fetcher, "large", LARGE, server.grant(between.port))
        assert results(fetcher, 1)["large"].description is not None
        assert_there(fetcher, "large", LARGE)
        assert fetcher.received_bytes == LARGE + (0 if encrypted else 3 * CHUNK_BYTES)
        assert (between.connections > 1) == encrypted  # TLS notices first, and hangs up


def test_a_replica_that_sends_nothing_but_damage_is_left_for_another(tmp_path: Path) -> None:
    sizes = {"large": LARGE}
    with (
        serving(tmp_path / "one", False, sizes) as one,
        serving(tmp_path / "two", False, sizes) as two,
        proxy(one.port) as between,
        fetching(tmp_path / "here") as fetcher,
    ):
        between.flip_always = True
        want(fetcher, "large", LARGE, one.grant(between.port), two.grant())
        result = results(fetcher, 1)["large"]
        assert [(trouble.cause, trouble.grant) for trouble in result.troubles] == [
            (FetchFailureCause.CORRUPT, one.grant(between.port))
        ]
        assert_there(fetcher, "large", LARGE)
        want(fetcher, "other", 10, one.grant())
        assert results(fetcher, 1)["other"].troubles[0].cause is FetchFailureCause.ABSENT


def test_an_object_whose_bytes_rotted_on_the_disk_is_not_passed_on(tmp_path: Path) -> None:
    fill(tmp_path / "there", {"large": LARGE})
    (stored,) = (tmp_path / "there" / "objects").iterdir()
    stored.chmod(0o644)
    with stored.open("r+b") as file:
        file.seek(5 * CHUNK_BYTES)
        file.write(b"rotten")
    with serving(tmp_path / "there", True) as server, fetching(tmp_path / "here") as fetcher:
        want(fetcher, "large", LARGE, server.grant())
        result = results(fetcher, 1)["large"]
        assert (result.description, result.troubles[0].cause) == (None, FetchFailureCause.CORRUPT)
        assert not fetcher.cache.has("large")


@both
def test_an_object_dropped_in_between_is_absent_and_the_rest_comes_from_the_second_replica(
    tmp_path: Path, encrypted: bool
) -> None:
    sizes = {"large": 2 * LARGE}
    with (
        serving(tmp_path / "one", encrypted, sizes) as one,
        serving(tmp_path / "two", encrypted, sizes) as two,
        proxy(one.port) as between,
        fetching(tmp_path / "here") as fetcher,
    ):

        def drop() -> bool:
            one.drop("large")
            return True

        between.at, between.action = LARGE, drop
        want(fetcher, "large", 2 * LARGE, one.grant(between.port), two.grant())
        result = results(fetcher, 1)["large"]
        assert [trouble.cause for trouble in result.troubles] == [FetchFailureCause.ABSENT]
        assert_there(fetcher, "large", 2 * LARGE)
        assert fetcher.received_bytes == 2 * LARGE


def test_the_second_replica_is_used_when_the_first_is_gone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = DataGrant("127.0.0.1", closed.getsockname()[1], TOKEN)
    with serving(tmp_path / "there", True, {"x": 1000}) as server, fetching(tmp_path / "here") as fetcher:
        want(fetcher, "x", 1000, gone, server.grant())
        assert results(fetcher, 1)["x"].description is not None
        assert_there(fetcher, "x", 1000)


def test_a_peer_that_never_comes_back_is_given_up_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = DataGrant("127.0.0.1", closed.getsockname()[1], TOKEN)
    with fetching(tmp_path / "here", patience=0.2) as fetcher:
        want(fetcher, "x", 1000, gone)
        (trouble,) = results(fetcher, 1)["x"].troubles
        assert trouble.cause is FetchFailureCause.UNREACHABLE
        assert f"127.0.0.1:{gone.port}" in trouble.text


def test_a_peer_that_stands_still_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        serving(tmp_path / "there", True, {"x": 1000}) as server,
        fetching(tmp_path / "here") as fetcher,
    ):
        for number in range(10):
            want(fetcher, f"stuck {number}", 1000, DataGrant("127.0.0.1", mute.getsockname()[1], TOKEN))
        want(fetcher, "x", 1000, server.grant())
        assert list(results(fetcher, 1)) == ["x"]


def test_no_more_objects_are_under_way_than_allowed(tmp_path: Path) -> None:
    stall = 1.0
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        serving(tmp_path / "there", True, {"x": 1000}) as server,
        fetching(tmp_path / "here", in_all=1, stall=stall) as fetcher,
    ):
        begin = time.monotonic()
        want(fetcher, "stuck", 1000, DataGrant("127.0.0.1", mute.getsockname()[1], TOKEN))
        with mute.accept()[0]:  # now the only place is taken, until the fetcher loses patience
            want(fetcher, "x", 1000, server.grant())
            assert list(results(fetcher, 1)) == ["x"]
            assert time.monotonic() - begin >= stall


def test_a_host_that_cannot_be_a_name_is_unreachable(tmp_path: Path) -> None:
    with fetching(tmp_path / "here", patience=0.0) as fetcher:
        want(fetcher, "x", 1000, DataGrant("a..b", 1, TOKEN))
        assert results(fetcher, 1)["x"].troubles[0].cause is FetchFailureCause.UNREACHABLE


def test_an_object_of_another_size_is_not_taken(tmp_path: Path) -> None:
    with serving(tmp_path / "there", True, {"x": 1000}) as server, fetching(tmp_path / "here") as fetcher:
        fetcher.fetch("x", [server.grant()], 1001, 0)
        assert results(fetcher, 1)["x"].troubles[0].cause is FetchFailureCause.DIFFERENT
        fetcher.fetch("x", [server.grant()], 1000, 0)
        assert results(fetcher, 1)["x"].troubles[0].cause is FetchFailureCause.CORRUPT
        want(fetcher, "x", 1000, server.grant())
        assert results(fetcher, 1)["x"].description is not None


def test_an_object_that_does_not_fit_is_refused_and_the_others_come(tmp_path: Path) -> None:
    sizes = {"too large": 5000, "small": 500}
    with serving(tmp_path / "there", False, sizes) as server, fetching(tmp_path / "here") as fetcher:
        fetcher.cache.limit_bytes = 1000
        for name, size in sizes.items():
            want(fetcher, name, size, server.grant())
        got = results(fetcher, 2)
        assert got["too large"].troubles[0].cause is FetchFailureCause.FULL
        assert got["small"].description is not None


FULL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from data.unit.world import *
folder = Path(sys.argv[1])
for encrypted in (False, True):
    with serving(Path(sys.argv[3], str(encrypted)), encrypted, {"large": 9 << 20, "small": 1000}) as server:
        with fetching(folder / str(encrypted)) as fetcher:
            for name, size in {"large": 9 << 20, "small": 1000}.items():
                want(fetcher, name, size, server.grant())
            got = results(fetcher, 2)
            print(got["large"].troubles[0].cause.value, got["large"].troubles[0].text)
            fetcher.cache.leave("large", keep=False)
            want(fetcher, "small", 1000, server.grant())
            results(fetcher, 1)
            assert_there(fetcher, "small", 1000)
"""


def test_a_full_disk_fails_the_object_that_fills_it_and_nothing_else(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    script = 'mount -t tmpfs -o size=4m none "$1" && exec "$0" -c "$2" "$1" "$3" "$4"'
    tests = str(Path(__file__).parents[2])
    words = ["unshare", "--mount", "sh", "-c", script, sys.executable, str(small), FULL, tests, str(large)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for line, encrypted in zip(done.stdout.splitlines(), ("False", "True"), strict=True):
        assert line == f"full the disk that holds {small}/{encrypted} is full"
