"""The memory layer with real segments, sockets, processes and agents: exact, without copies, mended, and given back."""

from __future__ import annotations

import os
import pickle
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import msgspec
import numpy
import pytest

import shoal
from shoal import memory as layer
from shoal.cluster import memory_access
from shoal.cluster.memory_access import ClusterMemory, node_here, open_node
from shoal.cluster.messaging.access import read
from shoal.data.listener import DataListener
from shoal.data.memory import service
from shoal.data.memory import service as service_module
from shoal.data.memory.client import Attached
from shoal.data.memory.handle import Allocation
from shoal.data.memory.mount import MemoryFiles
from shoal.data.memory.protocol import MemoryNode, Peers, RoomRequest, as_allocation
from shoal.data.memory.segments import PREFIX, NodeExtents, Segments, shared_memory
from shoal.data.memory.server import MemoryServer
from shoal.data.memory.service import MemoryService
from shoal.errors import InputError
from shoal.resources.memory_layout import PAGE, AllocationExtent, FullError, Range, with_holders
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

MB = 1 << 20
CLUSTER = "memtest"
RUN = "some-run"


@contextmanager
def opened(count: int, *, limit: int = 64 * MB, encrypted: bool = False) -> Iterator[list[MemoryServer]]:
    """So many nodes in this process, which know each other."""
    token = secrets.token_bytes(32)
    listeners = [DataListener(token, encrypted=encrypted) for _ in range(count)]
    nodes = [open_node(CLUSTER, listener, limit) for listener in listeners]
    places = {number: MemoryNode(f"node{number}", node.address, encrypted) for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        node.tell(number, places, [RUN])
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
        for listener in listeners:
            listener.close()


@pytest.fixture(scope="module")
def three() -> Iterator[list[MemoryServer]]:
    with opened(3) as nodes:
        yield nodes


@pytest.fixture
def alone() -> Iterator[layer.Memory]:
    memory = layer.local("256M")
    yield memory
    memory.close()


def address_of(view: memoryview) -> int:
    found: int = numpy.frombuffer(view, dtype="u1").__array_interface__["data"][0]
    return found


def mapped_file_at(address: int) -> str:
    """Which file this process sees at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return line.split()[-1]
    return ""


def cluster_of(lab: LocalCluster) -> str:
    return read(str(lab.access)).cluster


def extents_in_shared_memory(cluster: str) -> list[str]:
    """Files of extents that agents of a cluster hold on this machine."""
    folders = Path(shared_memory()).glob(f"{PREFIX}{cluster}-*")
    return [path.name for folder in folders for path in folder.glob("*.*") if path.suffix[1:].isdigit()]


# ---- one process -----------------------------------------------------------------------------------------------------


def test_a_hundred_megabytes_of_this_node_are_got_without_a_copy(alone: layer.Memory) -> None:
    allocation = layer.alloc(100_000_000)
    view = layer.get(allocation)
    assert len(view) == 100_000_000 and view.readonly
    assert mapped_file_at(address_of(view)).endswith(f"{allocation.id}.0")
    layer.put(allocation, 99_999_990, b"later")
    assert bytes(view[99_999_990:99_999_995]) == b"later"
    array = allocation.array("f8", 0, 80_000_000)
    assert not array.flags.owndata and array.shape == (10_000_000,)


def test_what_was_got_stays_readable_after_the_allocation_is_freed(alone: layer.Memory) -> None:
    allocation = layer.alloc(10_000, b"x" * 10_000)
    view = allocation.get()
    allocation.free()
    assert bytes(view) == b"x" * 10_000


def test_wrong_uses_are_one_sentence_each(alone: layer.Memory) -> None:
    allocation = layer.alloc(100, name="a")
    with pytest.raises(InputError, match="bytes 90 to 101 are out of bounds"):
        allocation.get(90, 101)
    with pytest.raises(InputError, match="bytes 99 to 102 are out of bounds"):
        allocation.put(99, b"abc")
    with pytest.raises(InputError, match="already has an object 'a'"):
        layer.alloc(5, name="a")
    with pytest.raises(InputError, match="cannot begin with 3"):
        layer.alloc(5, b"abc")
    with pytest.raises(FullError, match="300 MiB of shared memory are asked for, and 256 MiB are free"):
        layer.alloc(300 * MB)
    allocation.free()
    with pytest.raises(InputError, match="is already freed"):
        allocation.free()
    with pytest.raises(InputError, match="is already freed"):
        allocation.get(0, 5)
    stranger = Allocation("r", "f" * 16, 100, allocation.extents)
    with pytest.raises(InputError, match="there is no allocation"):
        stranger.get(0, 5)


@pytest.mark.parametrize("as_a_task", [False, True], ids=["from a program", "from a task"])
def test_what_cannot_be_asked_for_is_one_sentence(alone: layer.Memory, as_a_task: bool) -> None:
    array: Any = numpy.arange(20, dtype="f8").reshape(4, 5)
    task = Attached(os.environ["SHOAL_MEMORY"])
    memory: Any = task if as_a_task else alone
    made = memory.alloc(numpy.int64(160), array)
    longer = msgspec.structs.replace(made, size=320, extents=(*made.extents, AllocationExtent(160, 320, (0,))))
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: memory.alloc("1M"), "must be a whole number, not '1M'"),
        (lambda: memory.alloc(1e3), r"must be a whole number, not 1000\.0"),
        (lambda: memory.alloc(1 << 70), "the size of an allocation cannot be"),
        (lambda: memory.alloc(160, array.T), "not C-contiguous"),
        (lambda: memory.alloc(3, "abc"), "a str cannot be written"),
        (lambda: memory.alloc(5, name=5), "must be a string, not 5"),
        (lambda: memory.alloc(5, run="../x"), r"'\.\./x' cannot be the name of a run"),
        (lambda: memory.get(made, 0, 1.5), r"the bounds of a range must be integers, not 0 and 1\.5"),
        (lambda: memory.prefetch(made, (0, 10)), "ranges cannot be"),
        (lambda: memory.partition(longer), "is damaged"),
        (lambda: memory.get(msgspec.structs.replace(made, id="../x"), 0, 5), "is damaged"),
    ]
    for deed, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            deed()
    assert numpy.array_equal(numpy.frombuffer(memory.get(made, 0, 160)).reshape(4, 5), array)
    task.close()


def test_names_that_are_not_ours_make_no_files(tmp_path: Path) -> None:
    here = NodeExtents(Segments("namestest"), MB)
    try:
        for identity, run in ((f"{tmp_path}/planted", RUN), ("../planted", RUN), ("f" * 16, "../x"), ("f" * 15, RUN)):
            with pytest.raises(InputError, match="cannot be the"):
                here.reserve(Allocation(run, identity, 8, (AllocationExtent(0, 8, (0,)),)), [0])
        assert list(tmp_path.iterdir()) == [] and here.objects("") == []
    finally:
        here.close()


def test_an_extent_for_which_the_system_has_no_room_takes_no_other_with_it() -> None:
    here = NodeExtents(Segments("roomtest"), 1 << 50)
    huge = 4096 + (1 << 45)
    made = Allocation(
        RUN, "ab" * 8, huge, (AllocationExtent(0, 4096, (0,)), AllocationExtent(4096, huge, (1,))), replicas=2
    )
    try:
        here.reserve(made, [0])
        free = here.free_bytes()
        with pytest.raises(FullError, match="more than is free in"):
            here.reserve(as_allocation(with_holders(made, 1, (1, 0))), [1], coming=True)
        os.close(here.open(made, 0, 0, 4096))
        assert here.record(made) == (made, [0]) and here.free_bytes() == free
        assert sorted(path.name for path in Path(here.segments.folder).glob("*.*")) == [f"{made.id}.0"]
    finally:
        here.close()


def test_a_forked_process_that_ends_leaves_the_memory_of_its_parent() -> None:
    program = (
        "import os, sys\n"
        "from shoal import memory\n"
        "opened = memory.local('8M')\n"
        "made = opened.alloc(3, b'abc')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    with opened:\n"
        "        sys.exit(made.get() != b'abc')\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert made.get() == b'abc' and opened.alloc(5).size == 5\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def open_descriptors() -> list[str]:
    """What the memory without a name is that this process has open."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close theirs meanwhile
            found.append(os.readlink(path))
    return [name for name in found if "memfd:shoal" in name]


def test_a_file_that_does_not_fit_leaves_the_old_object_and_one_that_does_keeps_its_replicas() -> None:
    with opened(2, limit=2 * MB) as nodes:
        memory = nodes[0].service
        memory.alloc(MB, b"o" * MB, replicas=2, name="safe", run=RUN)
        files = MemoryFiles(memory, RUN)
        for amount, size in ((2 * MB, MB), (5000, 5000)):
            number = files.open("/safe", anew=True)
            files.write(number, bytes(amount), 0)
            with pytest.raises(OSError, match="No space") if size != amount else nullcontext():
                files.keep(number)
            files.close(number)
            assert [(each.size, each.replicas) for each in memory.objects(RUN)] == [(size, 2)]
        with pytest.raises(OSError, match="No space"):
            files.cut("/safe", 3 * MB)
        assert files.describe("/safe")["st_size"] == 5000


def test_files_that_are_removed_leave_neither_a_name_nor_a_descriptor(alone: layer.Memory) -> None:
    files, before = MemoryFiles(alone, alone.run), len(open_descriptors())
    number = files.open("/written", anew=True)
    files.write(number, b"hello", 0)
    files.remove("/written")
    files.keep(number)
    files.close(number)
    number = files.open("/empty", anew=True)
    files.keep(number)
    files.close(number)
    files.remove("/empty")
    assert files.names(alone.run) == [] and alone.objects() == []
    assert len(open_descriptors()) == before


def test_another_process_uses_a_handle_without_a_copy(alone: layer.Memory) -> None:
    allocation = layer.alloc(5_000_000, bytes(5_000_000))
    program = (
        "import pickle, sys\n"
        "from shoal import memory\n"
        "allocation = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "view = allocation.get()\n"
        "allocation.put(4_999_000, b'from another process')\n"
        "assert view[4_999_000:4_999_020] == b'from another process'\n"
        "made = memory.alloc(3, b'abc', name='made there')\n"
    )
    subprocess.run([sys.executable, "-c", program, pickle.dumps(allocation).hex()], check=True, timeout=60)
    assert bytes(allocation.get(4_999_000, 4_999_020)) == b"from another process"
    made = next(each for each in alone.objects() if each.name == "made there")
    assert bytes(made.get()) == b"abc"


def test_calls_of_a_local_executor_use_a_handle(alone: layer.Memory) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    handle = layer.alloc(1008, bytes(range(250)) * 4 + bytes(8))
    with shoal.Executor(1) as executor:
        assert executor.submit(total, handle, 0, 1000).result(timeout=60) == sum(range(250)) * 4
    assert int.from_bytes(handle.get(1000), "little") == sum(range(250)) * 4


def test_a_process_without_memory_gets_an_error_with_a_remedy() -> None:
    with pytest.raises(InputError, match="not attached to a memory"):
        layer.alloc(5)


def test_what_a_killed_process_left_is_swept_by_the_next() -> None:
    program = (
        "import os, sys\n"
        "from shoal.data.memory.segments import Segments\n"
        "segments = Segments('sweeptest')\n"
        "segments.make('a', 0, 5000)\n"
        "print(segments.folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        Segments("sweeptest").close()
        assert (folder / "a.0").stat().st_size == 5000  # it lives, so it keeps what it has
        process.kill()
    assert folder.exists()
    Segments("sweeptest").close()
    assert not folder.exists()


# ---- several nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("spread", ["even", "turns", "here"])
def test_every_node_reads_what_any_node_wrote(encrypted: bool, spread: str) -> None:
    data = bytearray(os.urandom(9_000_001))
    with opened(3, encrypted=encrypted) as nodes:
        made = nodes[0].service.alloc(len(data), data, spread=spread, block_bytes=None, run=RUN)
        nodes[2].service.put(made, 4_000_000, b"changed" * 1000)
        data[4_000_000:4_007_000] = b"changed" * 1000
        for node in nodes:
            assert node.service.get(made, 0, made.size) == data
            assert node.service.get(made, 3_000_001, 6_000_007) == data[3_000_001:6_000_007]


def test_allocations_of_one_block_in_turns_go_round_all_nodes() -> None:
    with opened(3) as nodes:
        made = [nodes[1].service.alloc(PAGE, spread="turns", run=RUN) for _ in range(24)]
        holders = [each.extents[0].holders[0] for each in made]
        assert sorted(holders) == [0] * 8 + [1] * 8 + [2] * 8
        assert nodes[0].service.alloc(PAGE, spread="even", run=RUN).extents[0].holders == (0,)


def test_a_partition_tells_who_holds_what(three: list[MemoryServer]) -> None:
    made = three[1].service.alloc(3 * MB, run=RUN)
    expected: dict[str, list[Range]] = {f"node{at}": [(at * MB, at * MB + MB)] for at in range(3)}
    for node in three:
        assert node.service.partition(made) == expected
    three[2].service.free(made)
    with pytest.raises(InputError, match="is already freed"):
        three[0].service.partition(made)


def test_a_task_gets_remote_ranges_through_its_own_node(three: list[MemoryServer]) -> None:
    data = os.urandom(3 * MB)
    made = three[0].service.alloc(len(data), data, run=RUN)
    task = Attached(three[1].socket_path, RUN)
    before = three[1].service.peers.received_bytes
    assert task.get(made, MB, 2 * MB) == data[MB : 2 * MB]
    assert three[1].service.peers.received_bytes == before, "what lies on its node did not travel"
    assert task.get(made, MB - 10, 2 * MB + 10) == data[MB - 10 : 2 * MB + 10]
    assert three[1].service.peers.received_bytes == before + 20, "and of the rest only what was asked for"
    task.put(made, MB - 2, b"1234")
    assert three[2].service.get(made, MB - 3, MB + 3) == data[MB - 3 : MB - 2] + b"1234" + data[MB + 2 : MB + 3]
    task.free(made)
    task.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_task_gets_a_large_range_of_another_node_and_from_a_replica_when_that_is_gone(encrypted: bool) -> None:
    data = os.urandom(9 * MB)
    with opened(3, encrypted=encrypted) as nodes:
        made = nodes[0].service.alloc(len(data), data, replicas=2, spread="here", run=RUN)
        reader = next(number for number in range(3) if number not in made.extents[0].holders)
        task = Attached(nodes[reader].socket_path, RUN)
        view = task.get(made, 1, made.size)
        assert view == data[1:] and view.readonly
        assert nodes[reader].service.peers.received_bytes == len(data) - 1
        nodes.pop(0).close()
        assert task.get(made, 0, made.size) == data
        task.close()


def test_a_replica_on_a_node_that_the_other_holder_has_not_heard_of_yet_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (service, service_module):
        monkeypatch.setattr(module, "NEWS_SECONDS", 60.0)  # the news may be late on a busy machine
    data = os.urandom(MB)
    with opened(2) as (first, second):
        places = dict(first.service.nodes)
        first.service.nodes, first.service._seen = {0: places[0]}, {0}  # as if the second had just joined
        timer = threading.Timer(0.3, lambda: first.service.tell(0, places))
        timer.start()
        made = second.service.alloc(len(data), data, replicas=2, run=RUN)
        timer.join()
        assert {holder for extent in made.extents for holder in extent.holders} == {0, 1}
        for each, number in ((first, 0), (second, 1)):
            each.service.nodes = {number: places[number]}
            assert each.service.get(made, 0, len(data)) == data, f"node {number} has all of it"
            each.service.nodes = places
        second.service.free(made)


def test_what_was_fetched_ahead_does_not_travel_again(three: list[MemoryServer]) -> None:
    data = os.urandom(3 * MB)
    made = three[0].service.alloc(len(data), data, run=RUN)
    task = Attached(three[1].socket_path, RUN)
    before = three[1].service.peers.received_bytes
    ahead = pickle.loads(pickle.dumps(task.prefetch(made, [(0, MB), (2 * MB, 3 * MB)])))
    wait_until(lambda: three[1].service.peers.received_bytes == before + 2 * MB, "both ranges have come")
    assert task.get(made, 100, 200, ahead=ahead) == data[100:200]
    assert task.get(made, 0, MB, ahead=ahead) == data[:MB]
    assert task.get(made, 2 * MB, 3 * MB, ahead=ahead) == data[2 * MB :]
    assert three[1].service.peers.received_bytes == before + 2 * MB
    assert task.get(made, 0, MB, ahead=ahead) == data[:MB], "taken before: got anew"
    task.free(made)
    task.close()


def test_what_was_fetched_ahead_gives_way_when_there_is_no_room() -> None:
    with opened(2, limit=4 * MB) as nodes:
        made = nodes[0].service.alloc(3 * MB, spread="here", run=RUN)
        service = nodes[1].service
        first = service.prefetch(made, [(0, 3 * MB)])
        wait_until(lambda: service.peers.received_bytes == 3 * MB, "the first has come")
        second = service.prefetch(made, [(0, 2 * MB)])
        wait_until(lambda: service.peers.received_bytes == 5 * MB, "the second has come")
        assert service.get(made, 0, 2 * MB, ahead=second) == bytes(2 * MB)
        assert service.peers.received_bytes == 5 * MB
        assert service.get(made, 0, 3 * MB, ahead=first) == bytes(3 * MB)
        assert service.peers.received_bytes == 8 * MB, "it had to be got anew"


def test_what_was_fetched_ahead_and_not_claimed_goes_with_the_service() -> None:
    before = len(open_descriptors())
    with opened(2) as nodes:
        made = nodes[0].service.alloc(MB, spread="here", run=RUN)
        for _ in range(8):
            nodes[1].service.prefetch(made, [(0, MB)])
        assert len(open_descriptors()) > before
    wait_until(lambda: len(open_descriptors()) == before, "all of them are closed")


def test_a_full_cluster_takes_nothing_and_keeps_what_it_has(three: list[MemoryServer]) -> None:
    with pytest.raises(FullError, match="193 MiB of shared memory are asked for, and 192 MiB are free on 3 nodes"):
        three[0].service.alloc(193 * MB, run=RUN)
    made = three[0].service.alloc(60 * MB, replicas=2, run=RUN)
    with pytest.raises(FullError, match="are free on 3 nodes"):
        three[1].service.alloc(100 * MB, run=RUN)
    three[0].service.free(made)
    three[1].service.free(three[1].service.alloc(192 * MB, run=RUN))


def test_strangers_are_not_let_in(three: list[MemoryServer]) -> None:
    with pytest.raises(OSError, match=r"token|closed|reset"):
        Peers(b"x" * 32).ask(MemoryNode("", three[0].address, False), RoomRequest())


def test_replicas_survive_a_node_and_are_mended_and_a_write_reaches_them_all() -> None:
    data = bytearray(os.urandom(6 * MB))
    with opened(3) as nodes:
        made = nodes[0].service.alloc(len(data), data, replicas=2, spread="turns", block_bytes=MB, run=RUN)
        single = nodes[0].service.alloc(3 * MB, run=RUN, name="single")
        nodes[1].close()
        left = {number: MemoryNode(f"node{number}", nodes[number].address, False) for number in (0, 2)}
        assert nodes[2].service.get(made, 0, made.size) == data, "before anybody has said that it is gone"
        for number in left:
            nodes[number].tell(number, left, [RUN])
        everything = {"node0": [(0, made.size)], "node2": [(0, made.size)]}
        wait_until(lambda: nodes[0].service.partition(made) == everything, "each has got what the other has")
        nodes[2].service.put(made, 2 * MB - 5, b"0123456789")
        data[2 * MB - 5 : 2 * MB + 5] = b"0123456789"
        for number in left:
            assert nodes[number].service.get(made, 0, made.size) == data
        with pytest.raises(InputError, match=r"of allocation 'single' .* were lost with their nodes"):
            nodes[0].service.get(single, 0, single.size)
        nodes.pop(1)


@pytest.mark.parametrize("seed", range(4))
def test_random_uses_give_what_plain_arrays_give_while_nodes_come_and_go(seed: int) -> None:
    draw = random.Random(seed)
    with opened(4, limit=8 * MB) as nodes:
        alive = dict(enumerate(nodes))
        places = {number: MemoryNode(f"node{number}", node.address, False) for number, node in alive.items()}
        model: dict[str, tuple[Allocation, bytearray]] = {}
        for step in range(120):
            service = alive[draw.choice(sorted(alive))].service
            if step in (50, 100):  # every extent has two holders, and time to find another between two losses
                number = draw.choice(sorted(alive))
                alive.pop(number).close()
                del places[number]
                for each, node in alive.items():
                    node.tell(each, places, [RUN])
                some = [handle for handle, _ in model.values()]
                wait_until(lambda some=some: all(copies(alive, each) == 2 for each in some), "all is there twice")  # type: ignore[misc]
            elif len(model) < 3 or draw.random() < 0.1:
                data = bytearray(draw.randbytes(draw.randrange(1, 600_000)))
                spread = draw.choice(["even", "turns", "free", "here"])
                made = service.alloc(len(data), data, replicas=2, spread=spread, block_bytes=65536, run=RUN)
                model[made.id] = made, data
            else:
                handle, data = model[draw.choice(sorted(model))]
                begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
                if draw.random() < 0.5:
                    data[begin:end] = draw.randbytes(end - begin)
                    service.put(handle, begin, data[begin:end])
                elif draw.random() < 0.1:
                    service.free(handle)
                    del model[handle.id]
                else:
                    assert service.get(handle, begin, end) == data[begin:end]
        for handle, data in model.values():
            for node in alive.values():
                assert node.service.get(handle, 0, len(data)) == data
        nodes[:] = alive.values()


def copies(alive: dict[int, MemoryServer], handle: Allocation) -> int:
    """How many nodes hold each byte of an allocation, at the least."""
    record, held = next(iter(alive.values())).service.holding(handle)
    return min(sum(index in indexes for indexes in held.values()) for index in range(len(record.extents)))


def test_what_a_run_allocated_goes_with_it(three: list[MemoryServer]) -> None:
    made = three[0].service.alloc(3 * MB, run=RUN)
    places = three[0].service.nodes
    for number, node in enumerate(three):
        node.tell(number, places, ["another"])
    wait_until(lambda: not any(made.id in name for name in extents_in_shared_memory(CLUSTER)), "all nodes gave it back")
    with pytest.raises(InputError, match=r"is already freed|no allocation"):
        three[1].service.get(made, 0, 10)


# ---- a real cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(
        tmp_path_factory.mktemp("lab"), 3, "--agent=--cores=1", "--agent=--shared-memory=64M"
    ) as cluster:
        cluster.await_nodes(3)
        yield cluster


def total(handle: Allocation, begin: int, end: int) -> int:
    """Adds up a part, and notes the result in the last bytes of the allocation."""
    result = int(handle.array("u1", begin, end).sum())
    handle.put(handle.size - 8, result.to_bytes(8, "little"))
    return result


@contextmanager
def session(lab: LocalCluster) -> Iterator[MemoryService]:
    memory = layer.connect(str(lab.access))
    assert isinstance(memory, MemoryService)
    try:
        wait_until(lambda: len(memory.room()) == len(lab.agents()), "all nodes have said where their memory is")
        yield memory
    finally:
        memory.close()


def listening_ports(process: int) -> set[int]:
    """TCP ports at which a process listens."""
    links: set[str] = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.add(os.readlink(link))
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return {listening[link] for link in links if link in listening}


def test_a_node_listens_at_one_port_for_messages_and_at_one_for_data(lab: LocalCluster) -> None:
    with session(lab) as memory:
        for number, process in lab.agents().items():
            ports = listening_ports(process)
            assert len(ports) == 2
            assert int(memory.nodes[number].address.rpartition(":")[2]) in ports


def test_calls_on_a_cluster_use_an_allocation_by_its_handle(lab: LocalCluster) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    data = os.urandom(3 * MB) + bytes(8)
    with session(lab) as memory, shoal.Executor(cluster=str(lab.access)) as executor:
        handle = memory.alloc(len(data), data)
        assert len(handle.partition()) == 3
        parts = [(at, at + MB // 2) for at in range(0, 3 * MB, MB // 2)]
        futures = [executor.submit(total, handle, begin, end) for begin, end in parts]
        sums = [future.result(timeout=60) for future in futures]
        assert sums == [sum(data[begin:end]) for begin, end in parts]
        assert int.from_bytes(handle.get(3 * MB), "little") in sums


def test_a_session_that_ends_gives_back_what_it_allocated(lab: LocalCluster) -> None:
    with session(lab) as memory:
        made = memory.alloc(MB)
        assert any(made.id in name for name in extents_in_shared_memory(cluster_of(lab)))
    assert not any(made.id in name for name in extents_in_shared_memory(cluster_of(lab)))


def test_a_session_whose_connections_break_makes_them_anew(lab: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_access, "KEEP_SECONDS", 0.1)
    with session(lab) as memory:
        assert isinstance(memory, ClusterMemory)
        memory.alloc(3 * MB)
        broken = dict(memory._keepers)
        for channel in broken.values():
            channel.end()
        wait_until(
            lambda: (
                memory._keepers.keys() == broken.keys()
                and all(memory._keepers[each] is not broken[each] for each in broken)
            ),
            "all nodes know again that it is there",
        )
        with memory._keeping:  # as after a first attempt that failed
            for channel in memory._keepers.values():
                channel.close()
            memory._keepers.clear()
        wait_until(lambda: memory._keepers.keys() == broken.keys(), "and again")


@pytest.mark.parametrize("near", [True, False], ids=["through a node of this machine", "from elsewhere"])
def test_files_show_what_lies_on_several_nodes(lab: LocalCluster, near: bool) -> None:
    data = bytearray(os.urandom(9 * MB))
    with session(lab) as memory:
        handle = memory.alloc(len(data), data, name="spread")
        seen = (
            node_here(str(lab.access), memory.run)
            if near
            else ClusterMemory(str(lab.access), memory.run, visiting=True)
        )
        assert seen is not None
        files = MemoryFiles(seen, "")
        assert files.names(memory.run) == ["spread"]
        number = files.open(f"/{memory.run}/spread", anew=False)
        found = b"".join(files.read(number, MB, at) for at in range(0, len(data), MB))
        assert found == data
        files.write(number, b"0123456789", 3 * MB - 5)
        data[3 * MB - 5 : 3 * MB + 5] = b"0123456789"
        assert files.read(number, MB, 3 * MB - 100) == data[3 * MB - 100 : 4 * MB - 100]
        files.close(number)
        number = files.open(f"/{memory.run}/new", anew=True)
        files.write(number, b"made there", 0)
        files.keep(number)
        files.close(number)
        seen.close()
        assert handle.get() == data
        assert [bytes(each.get()) for each in memory.objects(memory.run) if each.name == "new"] == [b"made there"]


FLOW = """
from shoal import rule
rule("handle", run="{python} make.py")
rule("sum", "handle", run="{python} use.py")
"""
MAKE = """
import pickle
from shoal import memory
made = memory.alloc(300_000, bytes(range(250)) * 1200, replicas=2, name="numbers")
open("handle", "wb").write(pickle.dumps(made))
"""
USE = """
import pickle
made = pickle.load(open("handle", "rb"))
open("sum", "w").write(f"{made.run} {sum(made.get())} {len(made.partition())}")
"""


def test_tasks_of_a_run_share_an_allocation_that_goes_with_the_run(lab: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW.format(python=sys.executable))
    (tmp_path / "make.py").write_text(MAKE)
    (tmp_path / "use.py").write_text(USE)
    lab.shoal("run", "--cluster", NAME, "--files", "shared", "--plain", "sum", where=tmp_path)
    run, result, holders = (tmp_path / "sum").read_text().split()
    assert (run != "", int(result), int(holders)) == (True, sum(range(250)) * 1200, 3)
    made = pickle.loads((tmp_path / "handle").read_bytes())
    held = extents_in_shared_memory
    wait_until(lambda: not any(made.id in name for name in held(cluster_of(lab))), "the run's memory is given back")


def test_an_allocation_with_replicas_outlives_an_agent_that_is_killed(lab: LocalCluster) -> None:
    data = os.urandom(6 * MB)
    with session(lab) as memory:
        handle = memory.alloc(len(data), data, replicas=2)
        dead = handle.extents[0].holders[0]
        name = memory.nodes[dead].name
        lab.kill_agent(dead)
        assert handle.get() == data, "from the other replicas, at once"
        assert name not in handle.partition(), "and nobody says that it is there"

        def is_mended() -> bool:
            held = handle.partition()
            return name not in held and sum(end - begin for each in held.values() for begin, end in each) == 12 * MB

        wait_until(is_mended, "every byte is on two nodes again")
        assert handle.get() == data
        handle.put(0, data[::-1])
        assert handle.get() == data[::-1]

    def is_swept() -> bool:
        Segments("another").close()
        return not any(Path(shared_memory()).glob(f"{PREFIX}{cluster_of(lab)}-{name.partition('/')[2]}-*"))

    wait_until(is_swept, "what a killed agent leaves goes when another begins")


def test_an_agent_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "brief", 1) as brief:
        brief.await_nodes(1)
        identity = cluster_of(brief)
        folders = Path(shared_memory())
        wait_until(lambda: any(folders.glob(f"{PREFIX}{identity}-*/door")), "the agent's folder is there")
    wait_until(lambda: not any(folders.glob(f"{PREFIX}{identity}-*")), "and goes with it")
