"""The live page: what `--web` costs a run, and how a million tasks are opened, held and zoomed into.

Runs of 10,000 `/bin/true` take turns: alone, with `--web` and nobody looking, with `--web` and somebody who listens.
The promise is at most 5 % for the second. The ledger of a million tasks is that of `report.py`; the page must have it
in at most 5 s, the server hold it in at most 300 MB, and zooming must show at least 30 frames per second by the
browser's own tracing (needs `chromium` on the PATH). The exit status is 1 if a promise is not kept. Run with the
project's interpreter:

    python bench/web.py [--tasks N] [--rounds N] [--million N] [--only overhead|million]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from report import write_ledger

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.browser import PROGRAM, browser

SHOAL = [sys.executable, "-m", "shoal"]
OVERHEAD, OPENING, MEMORY, FRAMES = 1.05, 5.0, 300.0, 30.0
_ZOOM = """new Promise((done) => {
  const canvas = document.querySelector("#gantt canvas"), began = performance.now();
  canvas.scrollIntoView();
  const box = canvas.getBoundingClientRect(), where = { clientX: box.left + box.width * 0.6, clientY: box.top + 40 };
  let steps = 0;
  const step = () => {
    const inwards = Math.floor((performance.now() - began) / 1500) % 2 === 0;
    const how = { deltaY: inwards ? -1 : 1, ctrlKey: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...how, ...where }));
    steps++;
    if (performance.now() - began < 6000) requestAnimationFrame(step); else done(steps);
  };
  requestAnimationFrame(step);
})"""


def kept(what: str, value: float, limit: float, unit: str, *, least: bool = False) -> bool:
    """Tells a measurement beside its promise."""
    good = value >= limit if least else value <= limit
    promise = f"promised: at {'least' if least else 'most'} {limit:g}"
    print(f"{what}: {value:.2f} {unit} ({promise}){'' if good else '  NOT KEPT'}")
    return good


def listen(address: str) -> None:
    """Somebody who looks, until the server goes."""
    try:
        with urllib.request.urlopen(address + "api/v1/events", timeout=60) as events:
            for _ in events:
                pass
    except OSError:
        pass


def one_run(folder: Path, how: str) -> float:
    """Seconds of one run, from start to end of the process."""
    words = ["run", "flow.py", "all", "-j2", "--force", "--plain"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*SHOAL, *words, *(["--web"] if how != "alone" else [])],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    if how == "watched":
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        threading.Thread(target=listen, args=(found[0],), daemon=True).start()
    process.stderr.read()
    assert process.wait() == 0
    return time.perf_counter() - began


def overhead(folder: Path, tasks: int, rounds: int) -> bool:
    """Runs that take turns."""
    (folder / "flow.py").write_text(
        "from shoal import task\n"
        f"for number in range({tasks}):\n    task(f't{{number}}', run='/bin/true')\n"
        f"task('all', needs=[f't{{number}}' for number in range({tasks})])\n"
    )
    times: dict[str, list[float]] = {"alone": [], "web": [], "watched": []}
    one_run(folder, "alone")
    for _ in range(rounds):
        for how, found in times.items():
            found.append(one_run(folder, how))
    for how, found in times.items():
        print(f"{tasks:,} x /bin/true, {how}: best {min(found):.2f} s, median {median(found):.2f} s")
    print(f"watched: {min(times['watched']) / min(times['alone']):.3f} times alone")
    return kept("with --web", min(times["web"]) / min(times["alone"]), OVERHEAD, "times alone")


def opened(address: str) -> float:
    """Seconds until every part of the page has come."""
    began = time.perf_counter()
    with urllib.request.urlopen(address + "api/v1/events", timeout=300) as events:
        for line in events:
            if line.startswith(b"data: ") and "graph" in json.loads(line[6:]):
                return time.perf_counter() - began
    raise AssertionError("the server has gone")


def peak_megabytes(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6


def frames(address: str, folder: Path) -> float:
    """Frames per second while the chart is zoomed in and out."""
    with browser(folder / "profile") as page:
        page.size(1280)
        began = time.perf_counter()
        page.open(address)
        page.wait_for(
            "document.querySelector('#gantt canvas').width > 600 && document.querySelector('#tasks tbody tr') !== null"
        )
        print(f"drawn in the browser, the server having read the ledger: {time.perf_counter() - began:.2f} s")
        traced = page.trace(_ZOOM)
        assert page.complaints == [], page.complaints
    moments = sorted(event["ts"] / 1e6 for event in traced if event.get("name") == "DrawFrame")
    return (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0


def million(folder: Path, tasks: int) -> bool:
    """A large ledger: opened, held, zoomed."""
    (folder / "million.py").write_text("")
    ledger = folder / ".shoal" / "million.py" / "ledger"
    ledger.parent.mkdir(parents=True)
    write_ledger(str(ledger), tasks, max(1, tasks // 1000))
    server = subprocess.Popen([*SHOAL, "web", "million.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        address = found[0]
        results = [kept("opened", opened(address), OPENING, "s")]
        for path in (
            "gantt?rows=64&pixels=1280",
            "gantt?from=100&to=110&rows=64&pixels=1280",
            "tasks?search=99999",
            "tasks/7",
        ):
            began = time.perf_counter()
            size = len(urllib.request.urlopen(f"{address}api/v1/{path}", timeout=60).read())
            print(f"{path}: {time.perf_counter() - began:.2f} s, {size / 1e3:.0f} kB")
        if PROGRAM is None:
            print("no chromium: frames are not measured")
        else:
            results.append(kept("zooming", frames(address, folder), FRAMES, "frames per second", least=True))
        results.append(kept("memory of the server", peak_megabytes(server.pid), MEMORY, "MB"))
        return all(results)
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--million", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("overhead", "million"))
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only != "million":
            results.append(overhead(Path(folder), arguments.tasks, arguments.rounds))
        if arguments.only != "overhead":
            results.append(million(Path(folder), arguments.million))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
