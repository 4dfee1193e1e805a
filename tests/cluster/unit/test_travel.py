"""What a node needs travels with it: tried with a shell on this machine that stands for another one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import shoal
from shoal.cluster.nodes.remote_setup import Archive, InstalledShoal, arrange, carry, footprint, send_private
from shoal.cluster.nodes.ssh import RemoteCommandResult
from shoal.errors import InputError


class Elsewhere:
    """A machine whose programs are those in one folder, beside the system's own."""

    name = "host elsewhere"

    def __init__(self, folder: Path, hidden: str = "") -> None:
        self.folder, self.hidden = folder, hidden
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.sent = 0

    def run(self, script: str, data: bytes = b"") -> RemoteCommandResult:
        """What is hidden is a path that this machine has not got."""
        self.sent += len(data)
        if self.hidden:
            script = script.replace(self.hidden, "/no/such/python")
        environment = {"HOME": str(self.folder), "PATH": f"{self.programs}:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", script], input=data, env=environment, capture_output=True, timeout=60)
        problem = f"host elsewhere: {done.stderr.decode()[-200:]}" if done.returncode else ""
        return RemoteCommandResult(done.returncode, done.stdout.decode(), problem)


def bare_python(folder: Path) -> None:
    """This interpreter without the libraries around it, under the name of its version."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    program = folder / version
    base = os.path.realpath(sys.executable)
    program.write_text(f'#!/bin/sh\nexec {base} -S "$@"\n')
    program.chmod(0o755)


def runs(arrangement: InstalledShoal, place: Elsewhere) -> str:
    given = " ".join(f"{name}={value}" for name, value in arrangement.environment.items())
    return place.run(f"{given} {' '.join(arrangement.command('--version'))}").output


def test_the_same_path_is_used_where_it_works(tmp_path: Path) -> None:
    place = Elsewhere(tmp_path)
    assert arrange(place) == InstalledShoal(sys.executable)
    assert place.sent == 0


def test_where_it_does_not_everything_goes_along_once_and_works(tmp_path: Path) -> None:
    place = Elsewhere(tmp_path, hidden=sys.executable)
    bare_python(place.programs)
    archive = Archive()
    found = arrange(place, lambda: archive)
    assert found.carried
    assert found.environment["PYTHONPATH"].startswith(f"{tmp_path}/.cache/shoal/shoal-")
    assert "shoal" in runs(found, place)
    assert place.sent == len(archive.data)
    assert arrange(place, lambda: archive) == found
    assert place.sent == len(archive.data), "it is not sent a second time"


def test_a_machine_without_a_fitting_python_is_one_sentence(tmp_path: Path) -> None:
    place = Elsewhere(tmp_path, hidden=sys.executable)
    for name in ("python3", f"python3.{sys.version_info[1]}"):
        (place.programs / name).symlink_to("/bin/false")
    with pytest.raises(InputError, match="host elsewhere has no python3"):
        arrange(place)


def test_a_place_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    class Silent(Elsewhere):
        def run(self, script: str, data: bytes = b"") -> RemoteCommandResult:
            return RemoteCommandResult(255, "", "host elsewhere cannot be reached: no route")

    with pytest.raises(InputError, match="cannot be reached: no route"):
        arrange(Silent(tmp_path))


def test_a_full_or_forbidden_folder_is_one_sentence_and_leaves_nothing_half_unpacked(tmp_path: Path) -> None:
    place = Elsewhere(tmp_path)
    with pytest.raises(InputError, match="to host elsewhere"):
        carry(place, Archive(["msgspec"]), "/proc/nowhere")
    damaged = Archive(["msgspec"])
    damaged.data = damaged.data[: len(damaged.data) // 2]
    with pytest.raises(InputError, match="to host elsewhere"):
        carry(place, damaged, str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_archive_is_the_same_for_the_same_content_and_holds_what_is_imported() -> None:
    first, second = Archive(), Archive()
    assert (first.name, first.data, first.footprint) == (second.name, second.data, footprint())
    with tarfile.open(fileobj=io.BytesIO(first.data)) as tar:
        names = tar.getnames()
    assert "shoal/__init__.py" in names
    assert "shoal/cluster/nodes/remote_setup.py" in names
    for library in ("msgspec/", "cryptography/", "_cffi_backend."):
        assert any(name.startswith(library) and ".so" in name for name in names)
    assert not any("__pycache__" in name or name.startswith(("/", "..")) for name in names)


def test_the_footprint_changes_with_any_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = footprint()
    assert footprint() == before
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(shoal, "__file__", str(tmp_path / "__init__.py"))
    one = footprint()
    (tmp_path / "__init__.py").write_text("#")
    assert len({before, one, footprint()}) == 3


def test_a_private_file_arrives_whole_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    path = send_private(Elsewhere(tmp_path), data, "north.access", str(tmp_path / "it's here"))
    assert Path(path).read_bytes() == data
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
