"""Remote setup of hosts: checks whether the same Shoal runs there, and otherwise copies the package and its libraries.

First the same path is tried: with a shared file system, or on machines that are set up alike, nothing is to be done.
Otherwise the package and the libraries that it imports are sent as one archive, named by its content and unpacked once
per machine. It is an archive rather than a wheel: building a wheel needs tools and installing one needs the network,
and neither is certain, while the files that run here are at hand. The host needs a Python of the same version. Commands
run over SSH (`shoal.cluster.nodes.ssh`) or Slurm. Nodes on this machine need no setup.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from typing import Protocol

import msgspec

import shoal
from shoal.cluster.messaging.access import Access, Role, narrowed, write
from shoal.cluster.nodes.slurm import submitting_environment
from shoal.cluster.nodes.ssh import RemoteCommandResult, Ssh, SshHost
from shoal.cluster.nodes.starters import RemoteSetup
from shoal.errors import InputError

LIBRARIES = ("msgspec", "cloudpickle", "pyzmq", "redis", "cryptography", "cffi")
"""Libraries that an agent imports (cffi for cryptography). Numpy, which is large, is used for predictions only, which
are computed on the user's machine."""
_PROBE = "from shoal.cluster.nodes.remote_setup import footprint; print('footprint', footprint())"
_DEFAULT_FOLDER = '"${XDG_CACHE_HOME:-$HOME/.cache}"/shoal'
_QUEUE_SECONDS = 600.0


class InstalledShoal(msgspec.Struct, frozen=True):
    """How to run Shoal on a host."""

    python: str
    environment: dict[str, str] = {}
    carried: bool = False

    def command(self, *words: str) -> list[str]:
        """Returns the command line of `shoal WORDS` on the host."""
        return [self.python, "-m", "shoal", *words]


class RemotePlace(Protocol):
    """A host, or a job, where shell scripts can be run."""

    name: str

    def run(self, script: str, data: bytes = b"") -> RemoteCommandResult:
        """Runs a script with `data` as its standard input."""


class SshPlace:
    """A host that is reached over SSH."""

    def __init__(self, ssh: Ssh, host: str) -> None:
        self.ssh, self.host, self.name = ssh, host, f"host {host}"

    def run(self, script: str, data: bytes = b"") -> RemoteCommandResult:
        return self.ssh.run(self.host, script, data)


class SlurmPlace:
    """A node that Slurm allocates for these options; a script waits in the queue like any other job."""

    name = "the node allocated by Slurm"

    def __init__(self, options: Sequence[str] = ()) -> None:
        self.options = list(options)

    def run(self, script: str, data: bytes = b"") -> RemoteCommandResult:
        words = ["srun", "--quiet", "--nodes=1", "--ntasks=1", *self.options, "sh", "-c", script]
        environment = submitting_environment()
        try:
            done = subprocess.run(words, input=data, env=environment, capture_output=True, timeout=_QUEUE_SECONDS)
        except FileNotFoundError:
            raise InputError(
                "there is no srun on this machine",
                remedy="start the cluster on a machine from which jobs are submitted",
            ) from None
        except subprocess.TimeoutExpired:
            return RemoteCommandResult(1, "", f"Slurm allocated no node within {_QUEUE_SECONDS:.0f} s")
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        problem = "" if done.returncode == 0 else f"{self.name}: {errors[-1] if errors else done.returncode}"
        return RemoteCommandResult(done.returncode, done.stdout.decode(errors="replace"), problem)


def arrange(place: RemotePlace, pack: Callable[[], Archive] | None = None, folder: str | None = None) -> InstalledShoal:
    """Returns how to run this Shoal on a host; copies it into `directory` there if necessary (by default the user's
    cache).

    `pack` returns the archive, which is made only if it is needed.
    """
    found = _probe(place, [sys.executable], {})
    if found.get(sys.executable) == footprint():
        return InstalledShoal(sys.executable)
    archive = (pack or Archive)()
    path = carry(place, archive, folder)
    environment = {"PYTHONPATH": path}
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = _probe(place, [sys.executable, version, "python3"], environment)
    for python, theirs in found.items():
        if theirs == archive.footprint:
            return InstalledShoal(python, environment, carried=True)
    raise InputError(
        f"{place.name} has no {version} for {platform.machine()} that can run this Shoal",
        remedy=f"install {version} there, or set up Shoal at the same path",
    )


def _probe(place: RemotePlace, pythons: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the footprints reported by the given interpreters on the host."""
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    lines = [f'echo "python {name}"; {given} {shlex.quote(name)} -c "{_PROBE}" 2>/dev/null' for name in pythons]
    answer = place.run("\n".join([*lines, "exit 0"]) + "\n")
    if answer.problem:
        raise InputError(answer.problem)
    found, python = {}, ""
    for line in answer.output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "python":
            python = rest
        elif word == "footprint":
            found[python] = rest
    return found


def carry(place: RemotePlace, archive: Archive, folder: str | None = None) -> str:
    """Sends and unpacks the archive unless it is there; returns its directory on the host."""
    base = shlex.quote(folder) if folder else _DEFAULT_FOLDER
    target = f'base={base}; there="$base"/{archive.name}'
    answer = place.run(f'{target}; [ -d "$there" ] && echo "$there"; exit 0')
    if answer.problem:
        raise InputError(answer.problem)
    if answer.output.strip():
        return answer.output.strip()
    # Unpacked elsewhere and renamed: another process may do the same at this moment, and either result is valid.
    answer = place.run(
        f'{target}; umask 077; mkdir -p "$base" && new=$(mktemp -d "$base/new-XXXXXX") || exit 1\n'
        'tar -xzf - -C "$new" || { rm -rf "$new"; exit 1; }\n'
        'mv -T "$new" "$there" 2>/dev/null || rm -rf "$new"\n'
        '[ -d "$there" ] && echo "$there"',
        archive.data,
    )
    if answer.problem or not answer.output.strip():
        raise InputError(f"cannot copy Shoal to {place.name}: {answer.problem or 'nothing was unpacked'}")
    return answer.output.strip()


def send_private(place: RemotePlace, data: bytes, name: str, folder: str | None = None) -> str:
    """Writes a file that only its owner can read, such as the access file; returns its path on the host."""
    base = shlex.quote(folder) if folder else _DEFAULT_FOLDER
    answer = place.run(
        f'base={base}; umask 077; mkdir -p "$base" && new=$(mktemp "$base/new-XXXXXX") || exit 1\n'
        f'cat > "$new" && mv -T "$new" "$base"/{shlex.quote(name)} && echo "$base"/{shlex.quote(name)}',
        data,
    )
    if answer.problem or not answer.output.strip():
        raise InputError(f"cannot copy a file to {place.name}: {answer.problem or 'nothing was written'}")
    return answer.output.strip()


def footprint() -> str:
    """Returns a digest of everything that must be equal on both sides: Python, machine type, versions of libraries,
    files of Shoal."""
    return _footprint(_contents(_package_files()))


def _footprint(package: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(package):
        digest.update(name.encode() + b"\0" + hashlib.sha256(package[name]).digest())
    versions = [f"{library}={_version(library)}" for library in LIBRARIES]
    python = ".".join(map(str, sys.version_info[:2]))
    parts = [sys.implementation.name, python, platform.system(), platform.machine(), *versions]
    return " ".join([*parts, digest.hexdigest()[:32]])


class Archive:
    """The package and its libraries as one compressed archive; equal content gives equal bytes."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        paths = dict(_package_files())
        contents = _contents(paths.items())
        self.footprint = _footprint(contents)
        """The footprint of the bytes that were read: the files may change meanwhile."""
        others = dict(_library_files(libraries))
        paths |= others
        contents |= _contents(others.items())
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted(contents):
                entry = tarfile.TarInfo(name)
                entry.size = len(contents[name])
                entry.mode = 0o755 if os.access(paths[name], os.X_OK) else 0o644
                tar.addfile(entry, io.BytesIO(contents[name]))
        self.name = f"shoal-{hashlib.sha256(plain.getvalue()).hexdigest()[:16]}"
        # Level 1: the links within a cluster are faster than thorough compression.
        self.data = gzip.compress(plain.getvalue(), compresslevel=1, mtime=0)


def _contents(files: Iterable[tuple[str, str]]) -> dict[str, bytes]:
    contents = {}
    for name, path in files:
        with open(path, "rb") as file:
            contents[name] = file.read()
    return contents


def _package_files() -> Iterator[tuple[str, str]]:
    """Yields names in the archive and paths of all files of the package, sorted."""
    root = os.path.dirname(os.path.abspath(shoal.__file__))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            yield f"shoal/{os.path.relpath(path, root)}", path


def _library_files(libraries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields all installed files of the libraries; a library that is not installed here is not needed there either."""
    for library in libraries:
        try:
            files = metadata.distribution(library).files or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            # Scripts are outside the libraries' directory, and are not imported.
            if ".." not in file.parts and "__pycache__" not in file.parts:
                path = str(file.locate())
                if os.path.isfile(path):
                    yield str(file), path


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


_AT_ONCE = 16
_NAME_SECONDS = 10.0


def prepare_hosts(
    ssh: Ssh, hosts: Sequence[SshHost], access: Access, words: Sequence[str], say: Callable[[str], None]
) -> dict[str, RemoteSetup]:
    """Sets up all hosts; reports unusable ones and leaves them out."""
    data = _as_bytes(narrowed(access, Role.WORKER))
    archive = cache(Archive)
    found: dict[str, RemoteSetup] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        coming = [(host.name, pool.submit(_prepare, ssh, host.name, access, data, words, archive)) for host in hosts]
        for name, future in coming:
            try:
                found[name] = future.result()
            except InputError as error:
                say(error.message)
    return found


def _prepare(
    ssh: Ssh, host: str, access: Access, data: bytes, words: Sequence[str], archive: Callable[[], Archive]
) -> RemoteSetup:
    place = SshPlace(ssh, host)
    arrangement = arrange(place, archive)
    path = send_private(place, data, f"access-{access.cluster}.json")
    logs = os.path.join(os.path.dirname(path), f"logs-{access.name}")
    command = arrangement.command("agent", "--access", path, *words)
    return RemoteSetup(command, arrangement.environment, logs, path)


def _as_bytes(access: Access) -> bytes:
    """Returns the content of an access file."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path = os.path.join(folder, "access.json")
        write(access, path)
        with open(path, "rb") as file:
            return file.read()


def clear_hosts(ssh: Ssh, lodgings: Mapping[str, RemoteSetup]) -> None:
    """Deletes the access files; an unreachable host keeps one, whose keys are no longer valid."""
    if lodgings:
        ssh.ask({host: f"rm -f {shlex.quote(setup.access)}\n" for host, setup in lodgings.items()})


def real_names(ssh: Ssh, hosts: Sequence[SshHost]) -> list[str]:
    """Returns the addresses behind host names, which may be aliases in the user's ssh configuration."""
    names = []
    for host in hosts:
        plain = host.name.rpartition("@")[2]
        try:
            done = subprocess.run(
                [*ssh.prefix, "-G", "--", host.name], capture_output=True, text=True, timeout=_NAME_SECONDS
            )
            lines = [line.split(None, 1) for line in done.stdout.splitlines()]
        except (OSError, subprocess.TimeoutExpired):
            lines = []
        names.append(next((words[1] for words in lines if len(words) == 2 and words[0] == "hostname"), plain))
    return names
