"""What a machine is made of, as plain data: a tree of parts, each of some class.

The steward knows no class by name: `node`, `socket`, `numa`, `core`, `thread` and `gpu` are only what the builders here
and `shoal.runner.topology` write, and a user may add classes of their own. What is done with a part is left to
`shoal.steward.forest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shoal.errors import InputError

NODE, SOCKET, NUMA, CORE, THREAD, GPU = "node", "socket", "numa", "core", "thread", "gpu"


class Part(msgspec.Struct, frozen=True):
    """One thing that can be held, with everything in it."""

    kind: str
    """Its class."""
    name: str
    """Unique among its siblings; a machine's name is unique in the forest."""
    parts: tuple[Part, ...] = ()
    memory: int = 0
    """Bytes of its own; those of the parts in it are not counted again."""
    labels: tuple[str, ...] = ()
    """Of a whole machine, `KEY=VALUE`."""
    cpu: int | None = None
    """The processor's number with the system."""
    device: str | None = None
    """What `CUDA_VISIBLE_DEVICES` calls it."""


def machine(
    name: str,
    *,
    sockets: int = 1,
    numas: int = 0,
    cores: int = 1,
    threads: int = 0,
    gpus: int = 0,
    memory: int = 0,
    labels: Sequence[str] = (),
) -> Part:
    """A regular machine: `cores` are those of each socket; a level of which there are 0 is left out.

    Memory is divided among the NUMA nodes if there are any. Processors are numbered as Linux does on such machines:
    first the first threads of all cores, then the second ones.
    """
    if cores % max(1, numas):
        raise InputError(f"machine {name!r}: {cores} cores of a socket cannot be divided among {numas} NUMA nodes")
    in_all = sockets * cores
    cpus = iter(range(in_all))
    banks = sockets * numas
    shares = iter([memory // banks + (at < memory % banks) for at in range(banks)] if banks else [])
    packages = []
    for socket in range(sockets):
        if numas:
            each = cores // numas
            inside = tuple(
                Part(NUMA, f"numa{socket * numas + at}", _cores(cpus, each, threads, in_all), next(shares))
                for at in range(numas)
            )
        else:
            inside = _cores(cpus, cores, threads, in_all)
        packages.append(Part(SOCKET, f"socket{socket}", inside))
    devices = [Part(GPU, f"gpu{at}", device=str(at)) for at in range(gpus)]
    return Part(NODE, name, (*packages, *devices), 0 if banks else memory, tuple(labels))


def _cores(cpus: Iterator[int], count: int, threads: int, in_all: int) -> tuple[Part, ...]:
    made = []
    for _ in range(count):
        cpu = next(cpus)
        if threads:
            siblings = tuple(Part(THREAD, f"thread{at}", cpu=cpu + at * in_all) for at in range(threads))
            made.append(Part(CORE, f"core{cpu}", siblings))
        else:
            made.append(Part(CORE, f"core{cpu}", cpu=cpu))
    return tuple(made)
