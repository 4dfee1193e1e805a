"""Machine descriptions as plain data: trees of parts such as sockets, cores and GPUs; builders, and a TOML reader.

The resource manager treats all classes alike: `node`, `socket`, `numa`, `core`, `thread` and `gpu` are only the names
used by the builders here and in `shoal.execution.processes.topology`; users may add classes. `shoal.resources.tree`
builds the allocation state from these descriptions.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence

import msgspec

from shoal.core.resources import parse_labels, parse_size
from shoal.errors import InputError

NODE, SOCKET, NUMA, CORE, THREAD, GPU = "node", "socket", "numa", "core", "thread", "gpu"


class MachinePart(msgspec.Struct, frozen=True):
    """A part of a machine that can be held, with all parts within it."""

    kind: str
    """Its class."""
    name: str
    """Unique among its siblings; the name of a machine is unique among all machines."""
    parts: tuple[MachinePart, ...] = ()
    memory: int = 0
    """Bytes of its own memory, without that of its parts."""
    labels: tuple[str, ...] = ()
    """Labels `KEY=VALUE` of a whole machine."""
    cpu: int | None = None
    """Number of the processor in the operating system."""
    device: str | None = None
    """Identifier in `CUDA_VISIBLE_DEVICES`."""


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
) -> MachinePart:
    """A regular machine: `cores` is per socket; a level with count 0 is omitted.

    Memory is divided among the NUMA nodes if there are any. Processors are numbered as Linux does on such machines: the
    first threads of all cores, then the second threads.
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
                MachinePart(NUMA, f"numa{socket * numas + at}", _cores(cpus, each, threads, in_all), next(shares))
                for at in range(numas)
            )
        else:
            inside = _cores(cpus, cores, threads, in_all)
        packages.append(MachinePart(SOCKET, f"socket{socket}", inside))
    devices = [MachinePart(GPU, f"gpu{at}", device=str(at)) for at in range(gpus)]
    return MachinePart(NODE, name, (*packages, *devices), 0 if banks else memory, tuple(labels))


def _cores(cpus: Iterator[int], count: int, threads: int, in_all: int) -> tuple[MachinePart, ...]:
    made = []
    for _ in range(count):
        cpu = next(cpus)
        if threads:
            siblings = tuple(MachinePart(THREAD, f"thread{at}", cpu=cpu + at * in_all) for at in range(threads))
            made.append(MachinePart(CORE, f"core{cpu}", siblings))
        else:
            made.append(MachinePart(CORE, f"core{cpu}", cpu=cpu))
    return tuple(made)


_COUNTS = {"count": 1, "sockets": 1, "numas": 1, "cores": 1, "threads": 1, "gpus": 0}
"""Defaults of all counts; also their minimum, except for GPUs."""
_KEYS = ["name", *_COUNTS, "memory", "labels", "resources"]
_OWN = (NODE, SOCKET, NUMA, CORE, THREAD, GPU)
_MOST_UNITS = 20_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]*?)\s*\]")


def read_description(text: str, file: str) -> list[MachinePart]:
    """Parses a description of machines; `file` is its name in messages."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        raise InputError(
            f"this is not TOML: {_PLACE.sub('', str(error)).lower()}", file=file, line=line, column=column
        ) from None
    reader = _Reader(text, file)
    for key in document:
        if key != "node":
            raise reader.error(f"unknown key {key!r}", None, key, remedy="machines are described by [[node]]")
    tables = document.get("node", [])
    if not isinstance(tables, list) or not tables:
        raise reader.error("no machine is described", None, "node", remedy="write [[node]] and below it name and cores")
    parts: list[MachinePart] = []
    seen: dict[str, int] = {}
    for number, table in enumerate(tables):
        if not isinstance(table, dict):
            raise reader.error(f"node {number + 1} is not a table", None, "node", remedy="write [[node]]")
        for part in reader.machines(number, table):
            if part.name in seen:
                raise reader.error(f"two machines are named {part.name!r}", number, "name")
            seen[part.name] = number
            parts.append(part)
    return parts


def _is_key(line: str, key: str) -> bool:
    return re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line) is not None


class _Reader:
    """Converts tables to machine parts; knows the line of each key for error messages."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = text.splitlines()
        self._file = file
        self._units = 0

    def error(self, message: str, table: int | None, key: str | None, *, remedy: str | None = None) -> InputError:
        line = self._line_of(table, key)
        text = self._lines[line - 1] if line is not None else None
        return InputError(message, file=self._file, line=line, remedy=remedy, text=text)

    def _line_of(self, table: int | None, key: str | None) -> int | None:
        """Line of a key in one of the tables, or of the table's header if the key is not found in it."""
        at, head = -1, None
        for number, line in enumerate(self._lines, 1):
            header = _HEADER.match(line)
            if header is not None:
                at += header[1] == "node"
                if at == table:
                    head = head or number
                if table is None and header[1] == key:
                    return number
            elif key is not None and at == (-1 if table is None else table) and _is_key(line, key):
                return number
        return head

    def machines(self, number: int, table: dict[str, object]) -> list[MachinePart]:
        """The machines described by one `[[node]]`."""
        for key in table:
            if key not in _KEYS:
                raise self.error(f"unknown key {key!r} of a node", number, key, remedy=f"known: {', '.join(_KEYS)}")
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.error(
                f"{name!r} is not a valid machine name", number, "name", remedy='use a string, for example name = "big"'
            )
        counts = {key: self._count(number, table, key) for key in _COUNTS}
        count = counts.pop("count")
        try:
            memory = parse_size(table.get("memory", 0), "memory")  # type: ignore[arg-type]  # parse_size checks any type
            labels = parse_labels(table["labels"], "label") if "labels" in table else ()
        except InputError as error:
            key = "memory" if error.message.startswith("memory") else "labels"
            raise self.error(error.message, number, key, remedy=error.remedy) from None
        own = self._resources(number, table)
        self._units += count * (counts["sockets"] * counts["cores"] * counts["threads"] + counts["gpus"] + len(own))
        if self._units > _MOST_UNITS:
            raise self.error(f"more than {_MOST_UNITS:,} resources are described", number, "count")
        names = [name] if count == 1 else [f"{name}{at}" for at in range(1, count + 1)]
        try:
            made = machine("", **counts, memory=memory, labels=labels)
        except InputError:
            cores, numas = counts["cores"], counts["numas"]
            message = f"{cores} cores of a socket cannot be divided among {numas} NUMA nodes"
            raise self.error(message, number, "numas") from None
        return [MachinePart(NODE, each, (*made.parts, *own), made.memory, made.labels) for each in names]

    def _count(self, number: int, table: dict[str, object], key: str) -> int:
        value = table.get(key, _COUNTS[key])
        if isinstance(value, bool) or not isinstance(value, int) or not _COUNTS[key] <= value <= _MOST_UNITS:
            raise self.error(f"{key} must be an integer of at least {_COUNTS[key]}, not {value!r}", number, key)
        return value

    def _resources(self, number: int, table: dict[str, object]) -> list[MachinePart]:
        """User-defined classes: the count of each on every machine."""
        given = table.get("resources", {})
        form = "write resources = { licence = 2 }"
        if not isinstance(given, dict):
            raise self.error(f"resources must be a table, not {given!r}", number, "resources", remedy=form)
        parts: list[MachinePart] = []
        for kind, count in given.items():
            if kind in _OWN or not _CLASS.fullmatch(kind):
                raise self.error(f"{kind!r} is not a valid resource class", number, "resources", remedy=form)
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_UNITS:
                message = f"the number of {kind} must be an integer of at least 1, not {count!r}"
                raise self.error(message, number, "resources")
            parts += [MachinePart(kind, f"{kind}{at}") for at in range(count)]
        return parts
