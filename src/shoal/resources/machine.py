"""What a machine is made of, as plain data: a tree of parts, each of some class.

The steward knows no class by name: `node`, `socket`, `numa`, `core`, `thread` and `gpu` are only what the builders here
and `shoal.execution.processes.topology` write, and a user may add classes of their own. What is done with a part is
left to `shoal.resources.tree`.
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
    """One thing that can be held, with everything in it."""

    kind: str
    """Its class."""
    name: str
    """Unique among its siblings; a machine's name is unique in the forest."""
    parts: tuple[MachinePart, ...] = ()
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
) -> MachinePart:
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
"""What is counted, and how much of it there is where nothing is said; also the least, except for GPUs."""
_KEYS = ["name", *_COUNTS, "memory", "labels", "resources"]
_OWN = (NODE, SOCKET, NUMA, CORE, THREAD, GPU)
_MOST_UNITS = 20_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]*?)\s*\]")


def read_description(text: str, file: str) -> list[MachinePart]:
    """The machines that a text describes; `file` is what the text is called in messages."""
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
            raise reader.error(f"{key!r} is not known here", None, key, remedy="machines are described by [[node]]")
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
                raise reader.error(f"two machines are called {part.name!r}", number, "name")
            seen[part.name] = number
            parts.append(part)
    return parts


def _is_key(line: str, key: str) -> bool:
    return re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line) is not None


class _Reader:
    """Knows where in the text something stands."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = text.splitlines()
        self._file = file
        self._units = 0

    def error(self, message: str, table: int | None, key: str | None, *, remedy: str | None = None) -> InputError:
        line = self._line_of(table, key)
        text = self._lines[line - 1] if line is not None else None
        return InputError(message, file=self._file, line=line, remedy=remedy, text=text)

    def _line_of(self, table: int | None, key: str | None) -> int | None:
        """The line of a key in one of the tables, or of the table's head if the key is not found in it."""
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
        """What one `[[node]]` describes."""
        for key in table:
            if key not in _KEYS:
                raise self.error(f"{key!r} is not known of a node", number, key, remedy=f"known: {', '.join(_KEYS)}")
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.error(f"{name!r} is not a name for a machine", number, "name", remedy='write name = "big"')
        counts = {key: self._count(number, table, key) for key in _COUNTS}
        count = counts.pop("count")
        try:
            memory = parse_size(table.get("memory", 0), "memory")  # type: ignore[arg-type]  # it judges any object
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
            raise self.error(f"{key} must be a whole number from {_COUNTS[key]} on, not {value!r}", number, key)
        return value

    def _resources(self, number: int, table: dict[str, object]) -> list[MachinePart]:
        """Classes of the user's own: so many of each on every machine."""
        given = table.get("resources", {})
        form = "write resources = { licence = 2 }"
        if not isinstance(given, dict):
            raise self.error(f"resources must be a table, not {given!r}", number, "resources", remedy=form)
        parts: list[MachinePart] = []
        for kind, count in given.items():
            if kind in _OWN or not _CLASS.fullmatch(kind):
                raise self.error(f"{kind!r} cannot be a class of your own", number, "resources", remedy=form)
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_UNITS:
                message = f"the number of {kind} must be a whole number from 1 on, not {count!r}"
                raise self.error(message, number, "resources")
            parts += [MachinePart(kind, f"{kind}{at}") for at in range(count)]
        return parts
