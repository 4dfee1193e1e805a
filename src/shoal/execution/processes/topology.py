"""Detects this machine's hardware: sockets, NUMA nodes, cores, threads, GPUs and memory.

Only what this process may use is included: processors of its affinity mask and control group, memory up to the limit of
its control group, devices in `CUDA_VISIBLE_DEVICES`. Where the system does not report the topology (macOS), all cores
are in one socket. Machines that cannot be inspected are described in a file, which `shoal.resources.machine` parses.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from shoal.errors import InputError
from shoal.execution.processes.pinning import number_list
from shoal.resources.machine import CORE, GPU, NODE, NUMA, SOCKET, THREAD, MachinePart, read_description

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_GROUPS = "sys/fs/cgroup"
_DRIVER = "proc/driver/nvidia/gpus"
_PATIENCE = 10.0
"""Seconds to wait for `nvidia-smi`, which wakes sleeping devices."""
_DEVICE = re.compile(r"nvidia([0-9]+)")


def this_machine(
    *,
    name: str | None = None,
    labels: Sequence[str] = (),
    root: str = "/",
    allowed: Iterable[int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> MachinePart:
    """Returns this machine, or the one whose system files are below `root`, restricted to the processors in
    `allowed`."""
    variables = os.environ if environment is None else environment
    if allowed is None and root == "/" and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    cpus = _online(root)
    for limit in (allowed, _cpuset(root)):
        if limit is not None:
            wanted = set(limit)
            cpus = [cpu for cpu in cpus if cpu in wanted] or cpus
    sockets = _sockets(root, cpus)
    gpus = [MachinePart(GPU, f"gpu{at}", device=device) for at, device in enumerate(_devices(root, variables))]
    memory = 0 if any(inside.memory for each in sockets for inside in each.parts) else _memory(root)
    return MachinePart(NODE, name or socket.gethostname(), (*sockets, *gpus), memory, tuple(labels))


def described_machines(path: str) -> list[MachinePart]:
    """Returns the machines of a description file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InputError(f"cannot read the description of machines: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise InputError("the description of machines is not valid UTF-8", file=path) from None
    return read_description(text, path)


def _online(root: str) -> list[int]:
    """Returns the online processors in ascending order."""
    found = number_list(_read(root, f"{_CPUS}/online"))
    return sorted(set(found)) or list(range(os.cpu_count() or 1))


def _cpuset(root: str) -> list[int] | None:
    """Returns the processors of our control group; None if it does not restrict them."""
    for folder in _group_folders(root, "cpuset"):
        for file in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            found = number_list(_read(root, f"{folder}/{file}"))
            if found:
                return found
    return None


def _group_folders(root: str, controller: str) -> list[str]:
    """Returns the directories of our control group and its ancestors, innermost first; version 1 has a tree per
    controller."""
    folders: list[str] = []
    for line in _read(root, "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = f"{_GROUPS}/{controller}" if controllers else _GROUPS
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return folders


def _sockets(root: str, cpus: list[int]) -> list[MachinePart]:
    """Returns the sockets, with their NUMA nodes and cores."""
    home = _numa_of(root)
    tree: dict[int, dict[int, dict[int, list[int]]]] = {}
    for cpu in cpus:
        package = _number(root, f"{_CPUS}/cpu{cpu}/topology/physical_package_id")
        siblings = _siblings(root, cpu)
        core = min(siblings) if siblings else cpu
        tree.setdefault(max(package, 0), {}).setdefault(home.get(cpu, 0), {}).setdefault(core, []).append(cpu)
    banks = _bank_sizes(root, {home.get(cpu, 0): None for cpu in cpus})
    pieces: dict[int, int] = {}
    for numas in tree.values():
        for numa in numas:
            pieces[numa] = pieces.get(numa, 0) + 1  # a NUMA node that spans several sockets is divided among them
    return [
        MachinePart(
            SOCKET,
            f"socket{package}",
            tuple(
                MachinePart(NUMA, f"numa{numa}", _cores(cores), banks.get(numa, 0) // pieces[numa])
                for numa, cores in sorted(numas.items())
            ),
        )
        for package, numas in sorted(tree.items())
    ]


def _siblings(root: str, cpu: int) -> list[int]:
    """Returns the threads of a processor's core; older kernels have another name for the list."""
    where = f"{_CPUS}/cpu{cpu}/topology"
    return number_list(_read(root, f"{where}/core_cpus_list") or _read(root, f"{where}/thread_siblings_list"))


def _cores(cores: dict[int, list[int]]) -> tuple[MachinePart, ...]:
    return tuple(
        MachinePart(
            CORE,
            f"core{core}",
            tuple(MachinePart(THREAD, f"thread{at}", cpu=cpu) for at, cpu in enumerate(sorted(threads))),
        )
        for core, threads in sorted(cores.items())
    )


def _numa_of(root: str) -> dict[int, int]:
    """Returns the NUMA node of each processor."""
    homes: dict[int, int] = {}
    for numa in number_list(_read(root, f"{_NODES}/online")):
        for cpu in number_list(_read(root, f"{_NODES}/node{numa}/cpulist")):
            homes[cpu] = numa
    return homes


def _bank_sizes(root: str, numas: Iterable[int]) -> dict[int, int]:
    """Returns the bytes of each NUMA node, scaled down if the control group may not use all of them."""
    sizes = {}
    for numa in numas:
        match = re.search(r"MemTotal:\s*([0-9]+) kB", _read(root, f"{_NODES}/node{numa}/meminfo"))
        if match:
            sizes[numa] = int(match[1]) * 1024
    limit, in_all = _memory_limit(root), sum(sizes.values())
    if limit is not None and limit < in_all:
        sizes = {numa: size * limit // in_all for numa, size in sizes.items()}
    return sizes


def _memory_limit(root: str) -> int | None:
    limits = []
    for folder in _group_folders(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = _read(root, f"{folder}/{file}").strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=None)


def _memory(root: str) -> int:
    """Returns the bytes of memory of the machine, for systems that do not report it per NUMA node."""
    match = re.search(r"MemTotal:\s*([0-9]+) kB", _read(root, "proc/meminfo"))
    try:
        size = int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
    limit = _memory_limit(root)
    return size if limit is None else min(size, limit)


def _devices(root: str, environment: Mapping[str, str]) -> list[str]:
    """Returns the GPUs as `CUDA_VISIBLE_DEVICES` names them; if it is set, exactly those that it lists."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
        # CUDA itself stops at the first invalid entry.
        valid = [bool(re.fullmatch(r"[0-9]+|(?:GPU|MIG)-\S+", entry)) for entry in entries]
        return entries[: valid.index(False)] if False in valid else entries
    if root == "/":
        asked = _ask_for_devices()
        if asked is not None:
            return asked
    try:
        known = len(os.listdir(os.path.join(root, _DRIVER)))
    except OSError:
        try:
            known = sum(1 for name in os.listdir(os.path.join(root, "dev")) if _DEVICE.fullmatch(name))
        except OSError:
            known = 0
    return [str(at) for at in range(known)]


def _ask_for_devices() -> list[str] | None:
    """Returns the numbers of the GPUs from `nvidia-smi`; None if it is not installed or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in listing.splitlines() if line.strip().isdigit()]


def _number(root: str, path: str) -> int:
    """Returns the number in a file; -1 if there is none."""
    try:
        return int(_read(root, path))
    except ValueError:
        return -1


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), errors="replace") as file:
            return file.read()
    except OSError:
        return ""
