"""Memory objects as files: read, written, made and removed through a real FUSE mount by real programs."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import memory as layer
from shoal.data.memory import mount as mount_module
from shoal.data.memory.mount import check_permitted, library
from shoal.errors import InputError
from support.command import SHOAL, wait_until

SIZE = 3_000_001


def can_mount() -> bool:
    try:
        library()
        check_permitted("/tmp")
    except InputError:
        return False
    return True


@pytest.fixture
def memory() -> Iterator[layer.Memory]:
    opened = layer.local("64M")
    yield opened
    opened.close()


@pytest.fixture
def there(memory: layer.Memory, tmp_path: Path) -> Iterator[Path]:
    """A folder that shows the objects of the process."""
    folder = tmp_path / "objects"
    folder.mkdir()
    words = [*SHOAL, "mount", str(folder), "--run", memory.run]
    if not can_mount():  # that is up to the machine, and then there is only this to see
        refused = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
        pytest.xfail("FUSE is not permitted on this machine, which was told in one sentence")
    with open(tmp_path / "log", "wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: folder.is_mount() or process.poll() is not None, "it is mounted")
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield folder
        finally:
            subprocess.run(["fusermount3", "-u", str(folder)], check=False)
            assert process.wait(timeout=30) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_an_object_is_read_and_written_in_place(memory: layer.Memory, there: Path) -> None:
    data = os.urandom(SIZE)
    handle = layer.alloc(SIZE, data, name="numbers")
    layer.alloc(5)  # without a name it is not shown
    assert os.listdir(there) == ["numbers"]
    assert (there / "numbers").stat().st_size == SIZE
    assert (there / "numbers").read_bytes() == data
    with open(there / "numbers", "r+b") as file:
        file.seek(SIZE - 7)
        file.write(b"written")
    assert bytes(handle.get(SIZE - 7)) == b"written"
    handle.put(0, b"by handle")
    assert (there / "numbers").read_bytes() == b"by handle" + data[9:-7] + b"written"


def test_programs_make_copy_cut_and_remove_objects(memory: layer.Memory, there: Path) -> None:
    source = there.parent / "source"
    source.write_bytes(os.urandom(SIZE))
    subprocess.run(["dd", f"if={source}", f"of={there}/new", "bs=1M", "status=none"], check=True)
    subprocess.run(["cp", there / "new", there / "copy"], check=True)
    subprocess.run(["cmp", source, there / "copy"], check=True)
    subprocess.run(f"echo more >> {there}/copy", shell=True, check=True)
    subprocess.run(["truncate", "-s", "10", there / "new"], check=True)
    found = {each.name: each for each in memory.objects(memory.run)}
    assert {name: each.size for name, each in found.items()} == {"copy": SIZE + 5, "new": 10}
    assert bytes(found["new"].get()) == source.read_bytes()[:10]
    assert bytes(found["copy"].get(SIZE)) == b"more\n"
    subprocess.run(["mv", there / "new", there / "moved"], check=True)
    (there / "copy").unlink()
    assert [each.name for each in memory.objects(memory.run)] == ["moved"]


def test_writing_the_same_size_anew_keeps_the_handle(memory: layer.Memory, there: Path) -> None:
    handle = layer.alloc(10, name="a")
    (there / "a").write_bytes(b"0123456789")
    assert bytes(handle.get()) == b"0123456789"


def test_a_full_memory_is_a_full_disk_to_a_program(memory: layer.Memory, there: Path) -> None:
    layer.alloc(60 << 20)
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={there}/large", "bs=1M", "count=8"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "No space left" in done.stderr
    assert "MiB of shared memory are asked for" in (there.parent / "log").read_text()


def test_a_file_that_is_removed_while_it_is_written_does_not_come_back(memory: layer.Memory, there: Path) -> None:
    with open(there / "gone", "wb") as file:
        file.write(b"some")
        file.flush()
        (there / "gone").unlink()
        file.write(b"more")
    assert os.listdir(there) == [] and memory.objects(memory.run) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_mount_ends_silently_on_a_signal(memory: layer.Memory, tmp_path: Path, how: int) -> None:
    if not can_mount():
        pytest.xfail("FUSE is not permitted on this machine")
    folder = tmp_path / "objects"
    folder.mkdir()
    words = [*SHOAL, "mount", str(folder), "--run", memory.run]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: folder.is_mount() or process.poll() is not None, "it is mounted")
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said, folder.is_mount()) == (0, "", False)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can give up a right")
@pytest.mark.parametrize(
    ("before", "right", "why"),
    [
        ("true", "sys_admin", "Operation not permitted"),
        (f"mount --bind closed {mount_module.DEVICE}", "dac_override", "Permission denied"),
    ],
    ids=["without the right to mount", "without access to the device"],
)
def test_where_fuse_is_not_permitted_one_sentence_says_so(
    memory: layer.Memory, tmp_path: Path, before: str, right: str, why: str
) -> None:
    if not can_mount():
        pytest.xfail("FUSE is not permitted on this machine, for another reason")
    (tmp_path / "closed").touch(0o000)  # seen in place of the device, by the one process that is asked
    command = shlex.join(["setpriv", f"--bounding-set=-{right}", f"--inh-caps=-{right}", *SHOAL, "mount", "."])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{before} && exec {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "FUSE is not permitted here" in done.stderr and why in done.stderr and "; ask for access" in done.stderr


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mfusepy", None)
    with pytest.raises(InputError, match=r"needs mfusepy, .*; pip install 'shoal\[mount\]'"):
        library()


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    if shutil.which("fusermount3") is None:
        pytest.skip("no libfuse here")
    done = subprocess.run([*SHOAL, "mount", str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "is not a directory" in done.stderr
