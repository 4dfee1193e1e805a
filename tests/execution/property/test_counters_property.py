"""The accounts over random texts: what was written is what is read, and damage is never an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.execution.processes.kernel_counters import (
    CpuCounters,
    DiskCounters,
    InterfaceCounters,
    cpu_shares,
    parse_cpu,
    parse_disks,
    parse_links,
    parse_load,
    parse_number,
    parse_process,
    parse_waited,
)

COUNT = st.integers(0, 1 << 62)
NAMES = st.text("abcdefghij-.0123456789@", min_size=1, max_size=12)
TICKS = st.tuples(*[COUNT] * 5).map(lambda numbers: CpuCounters(*numbers))


@given(st.lists(COUNT, min_size=10, max_size=10), st.lists(st.lists(COUNT, min_size=10, max_size=10), max_size=5))
def test_ticks_that_were_written_are_read(whole: list[int], each: list[list[int]]) -> None:
    lines = ["cpu  " + " ".join(map(str, whole))]
    lines += [f"cpu{number} " + " ".join(map(str, counts)) for number, counts in enumerate(each)]
    text = "\n".join([*lines, "intr 5 0", "procs_running 3", ""]).encode()
    cpu = parse_cpu(text)
    assert cpu is not None
    assert cpu.total == sum(whole[:8])
    assert cpu.user + cpu.system + cpu.iowait + cpu.steal + whole[3] == cpu.total
    some = parse_cpu(text, frozenset(range(len(each))))
    assert (some.total if some is not None else 0) == sum(sum(counts[:8]) for counts in each)
    assert parse_number(text, b"procs_running") == 3


@given(st.dictionaries(NAMES, st.lists(COUNT, min_size=17, max_size=17), max_size=6), st.sampled_from([11, 15, 17]))
def test_disks_that_were_written_are_read(disks: dict[str, list[int]], fields: int) -> None:
    lines = [f" 8 {at} {name} " + " ".join(map(str, disks[name][:fields])) for at, name in enumerate(disks)]
    found = parse_disks("\n".join([*lines, ""]).encode(), {name.encode() for name in disks})
    for name, numbers in disks.items():
        requests = sum(numbers[at] for at in (0, 4, 11, 15) if at < fields)
        assert found[name.encode()] == DiskCounters(requests, numbers[10], numbers[9], numbers[2] + numbers[6])


@given(st.dictionaries(NAMES, st.lists(COUNT, min_size=16, max_size=16), max_size=6))
def test_links_that_were_written_are_read(links: dict[str, list[int]]) -> None:
    lines = [f"{name:>6}:" + " ".join(map(str, numbers)) for name, numbers in links.items()]
    found = parse_links("\n".join(["heading", "heading", *lines, ""]).encode())
    assert found == {name.encode(): InterfaceCounters(numbers[0], numbers[8]) for name, numbers in links.items()}


@given(st.binary(max_size=400) | st.text("cpu0123456789 .:=()\nsometal", max_size=400).map(str.encode))
def test_no_text_is_an_error(text: bytes) -> None:
    parse_cpu(text)
    parse_cpu(text, frozenset([0, 1]))
    parse_disks(text, frozenset(text.split()))
    parse_links(text)
    parse_load(text)
    parse_number(text, b"some")
    parse_process(text)
    parse_waited(text)


@given(TICKS, TICKS, COUNT, COUNT)
def test_shares_are_between_nothing_and_all(before: CpuCounters, after: CpuCounters, user: int, system: int) -> None:
    shares = cpu_shares(before, after, user, system)
    assert shares is None or all(0 <= part <= 1 for part in shares)
