"""Shows a workflow that survives being killed: `demo.py SHOAL` makes the mosaic in ./demo-out, in two goes.

Only the `shoal` command is used, as a user would. The exit status is 0 only if the picture is right.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("flow.py", "images.py", "sky.py", "observe.py", "project.py", "background.py", "correct.py", "picture.py")
GRID = 5
WORKFLOW = ("flow.py", f"n={GRID}")
RUN = ("run", *WORKFLOW, "--jobs", "2")
"""Two cores, also where there are many more: the run must last long enough to be killed."""
PATIENCE = 300.0
"""Seconds after which a run that is not half done will never be."""


def say(text: str) -> None:
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\n\x1b[1m{text}\x1b[0m" if bold else f"\n{text}", flush=True)


def set_up(directory: Path) -> None:
    """Makes the working directory anew; one that is not ours stays as it is."""
    if directory.exists():
        if not (directory / SCRIPTS[0]).is_file():
            raise SystemExit(f"{directory} is not a directory of this demo; move it away first")
        shutil.rmtree(directory)
    directory.mkdir()
    for script in SCRIPTS:
        shutil.copy(HERE / script, directory)


def counts(shoal: str, directory: Path) -> tuple[int, int]:
    """How many tasks are up to date, and how many would run."""
    words = [shoal, "plan", *WORKFLOW, "--json"]
    plan = json.loads(subprocess.run(words, cwd=directory, stdout=subprocess.PIPE, check=True).stdout)
    return plan["up_to_date"], plan["to_run"]


def run_half(shoal: str, directory: Path) -> None:
    """Starts the run, watches it as from another terminal, and kills it when half of its tasks are done."""
    run = subprocess.Popen([shoal, *RUN], cwd=directory)
    deadline = time.monotonic() + PATIENCE
    half_done = False
    while not half_done and run.poll() is None and time.monotonic() < deadline:
        half_done = watch(shoal, directory)
    run.kill()
    run.wait()
    if not half_done:
        raise SystemExit("The run was over before it could be killed, or did not get half-way.")


def watch(shoal: str, directory: Path) -> bool:
    """Follows the run until half of it is done; False if there is none to follow, as before it has begun."""
    words = [shoal, "status", "flow.py", "--watch", "--json"]
    with subprocess.Popen(words, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as status:
        assert status.stdout is not None
        for line in status.stdout:
            state = json.loads(line)
            if state["state"] == "running" and state["done"] * 2 >= state["to_run"] > 0:
                status.terminate()
                return True
    return False


def resume(shoal: str, directory: Path) -> None:
    done, left = counts(shoal, directory)
    if not done:
        raise SystemExit("Nothing that was done before the kill is remembered.")
    say(f"3. The same command again: {done} tasks are up to date and stay as they are, {left} are left to run.")
    subprocess.run([shoal, *RUN], cwd=directory, check=True)
    _, left = counts(shoal, directory)
    if left:
        raise SystemExit(f"The second run has left {left} tasks to do.")


def main(shoal: str) -> None:
    began = time.monotonic()
    directory = Path("demo-out").absolute()
    set_up(directory)
    say(f"1. {GRID} x {GRID} exposures of the sky in three colours become one picture ({directory.name}/flow.py).")
    run_half(shoal, directory)
    say("2. Half of the tasks were done, so the run was killed with SIGKILL. What 'shoal status' says of it:")
    subprocess.run([shoal, "status", "flow.py"], cwd=directory, check=True)
    resume(shoal, directory)
    say(f"4. Is it right? ({time.monotonic() - began:.0f} s after the start)")
    subprocess.run([sys.executable, HERE / "check.py", directory, str(GRID)], check=True)
    print(f"Before and after the correction: {directory / 'before-and-after.png'}")
    print(f"The picture: {directory / 'mosaic.png'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: demo SHOAL")
    command = shutil.which(sys.argv[1])
    if command is None:
        raise SystemExit(f"there is no command {sys.argv[1]!r}")
    try:
        main(os.path.abspath(command))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"The demo failed: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
