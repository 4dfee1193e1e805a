"""The mosaic example: its workflow at small scale, and the whole demo as `make demo` runs it."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from support.command import environment, shoal

EXAMPLE = Path(__file__).parents[3] / "examples" / "mosaic"
N = 3


def check(directory: Path) -> subprocess.CompletedProcess[str]:
    """Compares the mosaic with the sky it was made of."""
    words: list[str | Path] = [sys.executable, EXAMPLE / "check.py", directory, str(N)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def png_rows(path: Path) -> list[bytes]:
    """Decodes a PNG picture of unfiltered rows of three bytes per pixel, checking every checksum."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 2)
    pixels = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 3 * width
    assert len(pixels) == stride * height
    return [pixels[row * stride + 1 : (row + 1) * stride] for row in range(height)]


def brightness(rows: list[bytes], x: int, y: int) -> float:
    """The mean over a square of 9 by 9 pixels."""
    square = [rows[y + down][3 * (x - 4) : 3 * (x + 5)] for down in range(-4, 5)]
    return sum(map(sum, square)) / 243


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mosaic, made."""
    directory = tmp_path_factory.mktemp("mosaic")
    for script in EXAMPLE.glob("*.py"):
        shutil.copy(script, directory)
    shoal(directory, "run", "flow.py", f"n={N}", "-j2", "--quiet")
    return directory


def test_the_picture_shows_a_bright_galaxy_in_a_dark_sky(finished: Path) -> None:
    rows = png_rows(finished / "mosaic.png")
    size = len(rows)
    assert len(rows[0]) == 3 * size
    middle = brightness(rows, size // 2, size // 2)
    corners = [brightness(rows, x, y) for x in (6, size - 7) for y in (6, size - 7)]
    assert middle > 150 > 3 * min(corners)


def test_the_mosaic_matches_the_true_sky(finished: Path) -> None:
    done = check(finished)
    assert done.returncode == 0, done.stderr
    found = re.search(r"by (\S+) on average; uncorrected it would be (\S+)\.$", done.stdout.strip())
    assert found is not None, done.stdout
    assert float(found[1]) < 0.2 * float(found[2])


def test_a_mosaic_with_stray_light_in_it_is_refused(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "mosaic" / "corrected")
    shutil.copytree(copy / "mosaic" / "projected", copy / "mosaic" / "corrected")
    done = check(copy)
    assert done.returncode == 1
    assert "the stray light has not been removed" in done.stderr


def test_the_table_of_stray_light_is_sorted_and_has_none_for_the_reference(finished: Path) -> None:
    lines = [line.split() for line in (finished / "stray-light.txt").read_text().splitlines()]
    levels = [float(level) for _, _, level, _, _ in lines]
    assert len(lines) == 3 * N * N
    assert levels == sorted(levels)
    assert [plane for _, tile, *plane in lines if tile == "1-1"] == [["0.0000"] * 3] * 3


def test_an_edited_script_runs_again_with_all_that_depends_on_it(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    assert json.loads(shoal(copy, "plan", "flow.py", f"n={N}", "--json").stdout)["to_run"] == 0
    with open(copy / "correct.py", "a") as script:
        script.write("# edited\n")
    plan = json.loads(shoal(copy, "plan", "flow.py", f"n={N}", "--json").stdout)
    assert {task["category"] for task in plan["tasks"]} == {"correct", "strip", "mosaic", "picture", "preview"}
    assert sum(task["category"] == "correct" for task in plan["tasks"]) == 3 * N * N


def test_a_grid_without_overlaps_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for script in EXAMPLE.glob("*.py"):
        shutil.copy(script, tmp_path)
    done = shoal(tmp_path, "run", "flow.py", "n=1", expect=2)
    assert "n must be at least 2" in done.stderr


def test_the_whole_demo_is_killed_and_resumed_and_ends_with_the_picture(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "shoal"
    done = subprocess.run(
        [EXAMPLE / "demo", command],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Traceback" not in said
    picture = tmp_path / "demo-out" / "mosaic.png"
    assert done.stdout.splitlines()[-1] == f"The picture: {picture}"
    assert len(png_rows(picture)) > 500
    found = re.search(r"(\d+) tasks are up to date and stay as they are, (\d+) are left to run", done.stdout)
    assert found is not None, said
    kept, left = int(found[1]), int(found[2])
    assert kept + left >= 500
    assert 0.4 < kept / (kept + left) < 0.9
    assert f"{left} tasks done, {kept} up to date" in done.stdout


def test_the_demo_does_not_touch_a_directory_that_is_not_its_own(tmp_path: Path) -> None:
    precious = tmp_path / "demo-out" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    done = subprocess.run(
        [EXAMPLE / "demo", sys.executable], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "is not a directory of this demo" in done.stderr
    assert precious.read_text() == "years of work"
