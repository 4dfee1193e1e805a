"""The kernel's accounts as numbers, on texts as a machine has given them."""

from __future__ import annotations

import pytest

from shoal.execution.processes.kernel_counters import (
    CpuCounters,
    DiskCounters,
    InterfaceCounters,
    cpu_shares,
    disk_latency,
    parse_cpu,
    parse_disks,
    parse_links,
    parse_load,
    parse_number,
    parse_process,
    parse_waited,
)

STAT = b"""cpu  4439218 615369 1578208 2688420 23161 7 25268 102360 11 0
cpu0 2145827 305239 777943 1437294 7718 3 8915 51665 5 0
cpu1 2293391 310129 800264 1251126 15442 4 16353 50695 6 0
intr 48836271 0 0 17 0 9475
ctxt 112325752
btime 1794782708
processes 9119883
procs_running 10
procs_blocked 2
softirq 45815591 0 4346574 34950
"""
DISKSTATS = b"""   7       0 loop0 11 0 22 33 0 0 0 0 0 44 55 0 0 0 0 0 0
 254 0 vda 891312 117683 77266042 820891 1820362 2058811 285566368 2948748 1 718096 4183166 1559402 821 29 298 432 9
 254       1 vda1 891000 117683 77266000 820891 1820000 2058811 285566000 2948748 0 718000 4183000
   8       0 sda 100 5 800 40 200 6 1600 60 0 90 100
"""
NET_DEV = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 352117055853 12122248    0    0    0     0          0         0 352117055853 12122248    0    0    0     0
  eth0:996024885   33217    0    0    0     0          0         0  2767565   24499    0    0    0     0     0
eth0:1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0
"""
PRESSURE = b"""some avg10=85.39 avg60=68.50 avg300=67.36 total=19418316017
full avg10=0.00 avg60=0.00 avg300=0.00 total=3
"""


def test_nice_counts_as_user_and_interrupts_as_system() -> None:
    cpu = parse_cpu(STAT)
    assert cpu is not None
    assert (cpu.user, cpu.system) == (4439218 + 615369, 1578208 + 7 + 25268)
    assert (cpu.iowait, cpu.steal) == (23161, 102360)
    assert cpu.total == 4439218 + 615369 + 1578208 + 2688420 + 23161 + 7 + 25268 + 102360


def test_only_the_processors_asked_for_are_added_up() -> None:
    one = parse_cpu(STAT, frozenset([1]))
    assert one is not None
    assert (one.user, one.steal) == (2293391 + 310129, 50695)
    both = parse_cpu(STAT, frozenset([0, 1, 7]))
    assert both is not None
    assert both.steal == 51665 + 50695
    assert parse_cpu(STAT, frozenset([7])) is None


def test_a_number_is_found_by_the_name_that_begins_its_line() -> None:
    assert parse_number(STAT, b"procs_running") == 10
    assert parse_number(STAT, b"procs_blocked") == 2
    assert parse_number(b"MemFree:  1 kB\nMemAvailable:   23801852 kB\n", b"MemAvailable:") == 23801852
    assert parse_number(b"xprocs_running 3\n", b"procs_running") is None
    assert parse_number(b"procs_running \nprocs_blocked 4\n", b"procs_running") is None


def test_flushes_and_discards_are_requests_as_well() -> None:
    found = parse_disks(DISKSTATS, frozenset([b"vda"]))
    assert found == {b"vda": DiskCounters(891312 + 1820362 + 1559402 + 432, 4183166, 718096, 77266042 + 285566368)}


def test_a_disk_of_an_old_kernel_has_no_discards() -> None:
    assert parse_disks(DISKSTATS, frozenset([b"sda"])) == {b"sda": DiskCounters(300, 100, 90, 2400)}


def test_links_are_read_also_where_no_blank_follows_the_name() -> None:
    assert parse_links(NET_DEV) == {
        b"lo": InterfaceCounters(352117055853, 352117055853),
        b"eth0": InterfaceCounters(996024885, 2767565),
        b"eth0:1": InterfaceCounters(5, 6),
    }


def test_pressure_is_that_of_some_task_and_not_of_all() -> None:
    assert parse_waited(PRESSURE) == 19418316017
    assert parse_waited(b"") is None
    assert parse_waited(PRESSURE.partition(b"\n")[2]) is None


def test_a_program_with_brackets_and_blanks_in_its_name_is_read() -> None:
    text = b"12 (a ) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 37 41 500 600 20 0 1 0 99 1000 20\n"
    assert parse_process(text) == (37, 41)
    assert parse_process(b"12 (cut off") is None


def test_the_load_of_the_last_minute_is_read() -> None:
    assert parse_load(b"4.09 4.25 3.64 5/117 4573\n") == pytest.approx(4.09)
    assert parse_load(b"") is None


def test_our_own_ticks_are_taken_off() -> None:
    before, after = CpuCounters(100, 50, 10, 0, 1000), CpuCounters(160, 70, 15, 5, 1100)
    shares = cpu_shares(before, after, own_user=10, own_system=30)
    assert shares is not None
    assert shares == pytest.approx((0.50, 0.0, 0.05, 0.05))  # more own time than there was is no negative use


def test_no_share_is_reported_when_no_tick_has_passed() -> None:
    cpu = CpuCounters(1, 1, 1, 1, 4)
    assert cpu_shares(cpu, cpu) is None


def test_latency_is_that_of_the_requests_since_the_last_reading() -> None:
    before = {b"a": DiskCounters(100, 5000, 0, 0)}
    assert disk_latency(
        before, {b"a": DiskCounters(110, 5080, 0, 0), b"new": DiskCounters(9, 9000, 0, 0)}
    ) == pytest.approx(0.008)
    assert disk_latency(before, before) == 0.0
