"""What nodes on other hosts need before they start: this Shoal, and the access file of the cluster.

How they get there is `shoal.cluster.travel`'s matter, and starting them `shoal.cluster.ssh`'s.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from shoal.cluster.ssh import Host, Ssh
from shoal.cluster.starters import Lodging
from shoal.cluster.travel import Archive, SshPlace, arrange, send_private
from shoal.errors import InputError
from shoal.wire.access import Access, Role, narrowed, write

_AT_ONCE = 16
_NAME_SECONDS = 10.0


def prepare_hosts(
    ssh: Ssh, hosts: Sequence[Host], access: Access, words: Sequence[str], say: Callable[[str], None]
) -> dict[str, Lodging]:
    """Brings everything to hosts; those that cannot be used are told, and left out."""
    data = _as_bytes(narrowed(access, Role.WORKER))
    archive = cache(Archive)
    found: dict[str, Lodging] = {}
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
) -> Lodging:
    place = SshPlace(ssh, host)
    arrangement = arrange(place, archive)
    path = send_private(place, data, f"access-{access.cluster}.json")
    logs = os.path.join(os.path.dirname(path), f"logs-{access.name}")
    command = arrangement.command("agent", "--access", path, *words)
    return Lodging(command, arrangement.environment, logs, path)


def _as_bytes(access: Access) -> bytes:
    """The content of an access file."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path = os.path.join(folder, "access.json")
        write(access, path)
        with open(path, "rb") as file:
            return file.read()


def clear_hosts(ssh: Ssh, lodgings: Mapping[str, Lodging]) -> None:
    """Takes the access files away; a host that does not answer keeps one whose keys open nothing any more."""
    if lodgings:
        ssh.ask({host: f"rm -f {shlex.quote(lodging.access)}\n" for host, lodging in lodgings.items()})


def real_names(ssh: Ssh, hosts: Sequence[Host]) -> list[str]:
    """The addresses behind the names of hosts, which may be short ones of the user's own for ssh."""
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
