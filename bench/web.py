"""The live page: what `--web` costs a run, and how a million tasks are opened, held and zoomed into.

Runs of 10,000 `/bin/true` take turns: alone, with `--web` and nobody looking, with `--web` and somebody who listens.
The promise is at most 5 % for both. Who listens is a plain reader of the events: what a browser takes for drawing
depends on the browser. The ledger of a million tasks is that of `report.py`. From the start of `shoal web` until all
of the page is drawn it must take at most 5 s, and the server hold the run in at most 300 MB. Zooming and scrolling, of
the report as well, must show at least 30 frames per second by the browser's own tracing (needs `chromium` on the PATH).
A browser that follows a run of 100,000 `/bin/true`, which leaves no processor idle, must see other figures at least
every second. The exit status is 1 if a promise is not kept. Run with the project's interpreter:

    python bench/web.py [--tasks N] [--rounds N] [--million N] [--live N] [--only overhead|million|live]
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
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

from report import write_ledger

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.browser import PROGRAM, Browser, browser

SHOAL = [sys.executable, "-m", "shoal"]
OVERHEAD, OPENING, MEMORY, FRAMES, BEHIND = 1.05, 5.0, 300.0, 30.0, 1.0
_QUESTIONS = ("tasks?search=99999", "tasks/7", "tasks/7/course", "tasks/7/output")
_DRAWN = (
    "document.querySelector('#utilisation svg path')",
    "document.querySelector('#graph svg')",
    "document.querySelector('#tasks tbody tr')",
    "document.querySelector('#gantt .legend').textContent.includes('align')",
)
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


_SCROLL = """new Promise((done) => {
  document.documentElement.style.scrollBehavior = "auto";
  const began = performance.now();
  const step = () => {
    const part = (performance.now() - began) / 3000, range = document.documentElement.scrollHeight - innerHeight;
    window.scrollTo(0, range * (part % 1 < 0.5 ? 2 * (part % 1) : 2 - 2 * (part % 1)));
    if (performance.now() - began < 6000) requestAnimationFrame(step); else done(1);
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


def write_workflow(folder: Path, tasks: int) -> None:
    (folder / "flow.py").write_text(
        "from shoal import task\n"
        f"for number in range({tasks}):\n    task(f't{{number}}', run='/bin/true')\n"
        f"task('all', needs=[f't{{number}}' for number in range({tasks})])\n"
    )


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
    write_workflow(folder, tasks)
    times: dict[str, list[float]] = {"alone": [], "web": [], "watched": []}
    one_run(folder, "alone")
    for _ in range(rounds):
        for how, found in times.items():
            found.append(one_run(folder, how))
    for how, found in times.items():
        print(f"{tasks:,} x /bin/true, {how}: best {min(found):.2f} s, median {median(found):.2f} s")
    ratios = {how: min(times[how]) / min(times["alone"]) for how in ("web", "watched")}
    results = [
        kept("with --web", ratios["web"], OVERHEAD, "times alone"),
        kept("with --web and somebody who listens", ratios["watched"], OVERHEAD, "times alone"),
    ]
    return all(results)


def opened(address: str) -> None:
    """Waits until every part of the page has come."""
    with urllib.request.urlopen(address + "api/v1/events", timeout=300) as events:
        for line in events:
            if line.startswith(b"data: ") and "graph" in json.loads(line[6:]):
                return
    raise AssertionError("the server has gone")


def peak_megabytes(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6


def drawn(page: Browser, address: str, began: float) -> float:
    """Seconds until all of the page is there; tells on the way when the first of it was."""
    page.open(address)
    page.wait_for("document.querySelector('#tile-done b').textContent.length > 3")
    print(f"first figures in the browser: {time.perf_counter() - began:.2f} s")
    for there in _DRAWN:
        page.wait_for(f"{there} && 1")
    return time.perf_counter() - began


def frames(page: Browser, what: str, doing: str) -> bool:
    """Frames per second while something is done to the page, and the longest time without one."""
    traced = page.trace(doing)
    assert page.complaints == [], page.complaints
    moments = sorted(event["ts"] / 1e6 for event in traced if event.get("name") == "DrawFrame")
    longest = max((after - before for before, after in pairwise(moments)), default=0.0)
    rate = (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0
    print(f"{what}: {len(moments)} frames, at most {1000 * longest:.0f} ms between two")
    return kept(what, rate, FRAMES, "frames per second", least=True)


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`shoal web`, and its address."""
    server = subprocess.Popen([*SHOAL, "web", "million.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        yield server, found[0]
    finally:
        server.terminate()
        server.wait()


def answers(address: str) -> None:
    """How long single questions take."""
    for path in ("gantt?rows=64&pixels=1280", "gantt?from=100&to=110&rows=64&pixels=1280", *_QUESTIONS):
        began = time.perf_counter()
        size = len(urllib.request.urlopen(f"{address}api/v1/{path}", timeout=60).read())
        print(f"{path}: {time.perf_counter() - began:.2f} s, {size / 1e3:.0f} kB")


def report(folder: Path, page: Browser) -> list[bool]:
    """The page of `shoal report`, zoomed and scrolled."""
    subprocess.run([*SHOAL, "report", "million.py", "-o", "report.html"], cwd=folder, check=True, capture_output=True)
    page.open((folder / "report.html").as_uri())
    page.wait_for("document.querySelector('#gantt canvas') && 1")
    return [frames(page, "zooming the report", _ZOOM), frames(page, "scrolling the report", _SCROLL)]


def million(folder: Path, tasks: int, rounds: int) -> bool:
    """A large ledger: opened, held, zoomed."""
    (folder / "million.py").write_text("")
    ledger = folder / ".shoal" / "million.py" / "ledger"
    ledger.parent.mkdir(parents=True)
    write_ledger(str(ledger), tasks, max(1, tasks // 1000))
    if PROGRAM is None:
        print("no chromium: what a page takes to be drawn, and frames, are not measured")
        began = time.perf_counter()
        with served(folder) as (server, address):
            opened(address)
            results = [kept("opened", time.perf_counter() - began, OPENING, "s")]
            answers(address)
            return all([*results, kept("memory of the server", peak_megabytes(server.pid), MEMORY, "MB")])
    with browser(folder / "profile") as page:
        page.size(1280)
        page.open("about:blank")
        times, results = [], []
        for number in range(rounds):
            began = time.perf_counter()
            with served(folder) as (server, address):
                times.append(drawn(page, address, began))
                if number == rounds - 1:
                    results += [frames(page, "zooming", _ZOOM), frames(page, "scrolling", _SCROLL)]
                    answers(address)
                    results.append(kept("memory of the server", peak_megabytes(server.pid), MEMORY, "MB"))
                page.open("about:blank")
        results += report(folder, page)
    print("opened: " + ", ".join(f"{seconds:.2f} s" for seconds in times))
    return all([*results, kept("opened, median", median(times), OPENING, "s")])


def live(folder: Path, tasks: int) -> bool:
    """A run that keeps the machine busy, and a browser that shows it: how long a figure stays the same."""
    write_workflow(folder, tasks)
    process = subprocess.Popen(
        [*SHOAL, "run", "flow.py", "all", "--force", "--plain", "--web"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found
    threading.Thread(target=process.stderr.read, daemon=True).start()
    pauses = []
    with browser(folder / "profile") as page:
        page.open(found[0])
        page.wait_for("document.querySelector('#tile-done b').textContent.length > 1")
        shown, last = "", time.perf_counter()
        while process.poll() is None:
            now = page.evaluate("document.querySelector('#tile-done b').textContent")
            if now != shown:
                pauses.append(time.perf_counter() - last)
                shown, last = now, time.perf_counter()
            time.sleep(0.01)
        assert page.complaints == [], page.complaints
    print(f"{tasks:,} x /bin/true in a browser: {len(pauses)} times other figures")
    return kept("longest time between two of them", max(pauses[1:]), BEHIND, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--million", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=100_000, help="tasks of the run that a browser follows")
    parser.add_argument("--only", choices=("overhead", "million", "live"))
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "overhead"):
            results.append(overhead(Path(folder), arguments.tasks, arguments.rounds))
        if arguments.only in (None, "million"):
            results.append(million(Path(folder), arguments.million, arguments.rounds))
        if arguments.only in (None, "live") and PROGRAM is not None:
            results.append(live(Path(folder), arguments.live))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
