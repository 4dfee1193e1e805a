"""Where the libraries of the extras are not installed, whatever needs them says so in a sentence; the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.command import PATIENCE, SHOAL, environment

LIBRARIES = ("zmq", "redis", "mfusepy", "cryptography")
MISSING = """
import sys
for name in NAMES:
    sys.modules[name] = None
"""
CLUSTER = "clusters need pyzmq, which is not installed; pip install 'shoal[cluster]'"
CERTIFICATES = "clusters need cryptography, which is not installed; pip install 'shoal[cluster]'"
MOUNT = "a mount needs mfusepy, which is not installed; pip install 'shoal[mount]'"
PROGRAM = "import shoal\nwith shoal.Executor(cluster='lab') as executor:\n    executor.submit(len, 'abc').result()\n"


def run_without(folder: Path, *words: str, missing: Sequence[str] = LIBRARIES) -> subprocess.CompletedProcess[str]:
    (folder / "path").mkdir()
    (folder / "path" / "sitecustomize.py").write_text(MISSING.replace("NAMES", repr(missing)))
    (folder / "flow.py").write_text("from shoal import rule\nrule('made', run='echo made > made')\n")
    path = os.pathsep.join([str(folder / "path"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    surroundings = environment({"PYTHONPATH": path, "SHOAL_HOME": str(folder / "home")})
    return subprocess.run(words, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "made", "--cluster", "lab"),
        ("run", "made", "--cluster", "lab", "--detach"),
        ("run", "made", "--cluster", "lab", "--files", "managed", "--plain"),
        ("cluster", "start", "lab", "--local", "1"),
        ("cluster", "status", "lab"),
        ("cluster", "list"),
        ("agent", "--access", "access.json"),
        ("attach",),
        ("web", "--cluster", "lab"),
    ],
)
def test_a_command_that_needs_the_libraries_of_clusters_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_without(tmp_path, *SHOAL, *words)
    assert (done.returncode, done.stderr.strip()) == (2, f"shoal: {CLUSTER}")


@pytest.mark.parametrize("words", [("cluster", "start", "lab", "--local", "1"), ("agent", "--access", "access.json")])
def test_a_command_that_makes_certificates_says_what_it_needs(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_without(tmp_path, *SHOAL, *words, missing=("cryptography",))
    assert (done.returncode, done.stderr.strip()) == (2, f"shoal: {CERTIFICATES}")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "made", "--cluster", "lab"), "there is no cluster 'lab' here"),
        (("agent", "--access", "access.json", "--data-plain"), "there is no access file here"),
    ],
)
def test_a_command_that_makes_no_certificate_runs_without_cryptography(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    assert reason in run_without(tmp_path, *SHOAL, *words, missing=("cryptography",)).stderr


def test_a_mount_says_what_it_needs(tmp_path: Path) -> None:
    done = run_without(tmp_path, *SHOAL, "mount", "there", "--cluster", "lab")
    assert (done.returncode, done.stderr.strip()) == (2, f"shoal: {MOUNT}")


def test_an_executor_on_a_cluster_says_what_it_needs(tmp_path: Path) -> None:
    done = run_without(tmp_path, sys.executable, "-c", PROGRAM)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"InputError: {CLUSTER}")


def test_a_local_run_needs_none_of_them(tmp_path: Path) -> None:
    assert run_without(tmp_path, *SHOAL, "run", "made").returncode == 0
    assert (tmp_path / "made").exists()
