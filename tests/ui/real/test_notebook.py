"""A notebook in a real kernel: an executor, futures and a run that show themselves, live and in the saved file.

The last call and one task wait for files, which appear when enough has been seen of them. So nothing here depends on
how quick the machine is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InputError
from shoal.ui.notebook.watch import RunWatch, watch, watch_run
from shoal.ui.notebook.watch import start as start_run
from support.browser import PROGRAM, browser
from support.command import shoal, start, wait_until

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

HOSTILE = "<img src=x onerror=alert(1)>"
FLOW = """
from shoal import rule, task
for i in range(12):
    rule(f"part{i}", run=f"sleep 0.0{i % 4 + 1}; echo {i} > part{i}", category="part")
rule("gate", run="while [ ! -e go ]; do sleep 0.02; done; touch gate", category="gate")
rule("bad", ["part0"], run="sleep 0.1; exit 3", retries=1, category=HOSTILE)
rule("whole", ["gate", *(f"part{i}" for i in range(12))], run="cat part* > whole", category="join")
task("all", needs=["whole", "bad"])
""".replace("HOSTILE", repr(HOSTILE))
CELLS = [
    """
import os, time, shoal

def square(x):
    while x == 39 and not os.path.exists("go-on"):
        time.sleep(0.01)
    if x == 7:
        raise ValueError(f"no square of {x}")
    return x * x

ex = shoal.Executor(cores=2)
ex
""",
    "squares = [ex.submit(square, x) for x in range(40)]\nshoal.watch(squares)",
    "[one.exception() for one in squares]\nsquares[6:8]",
    "squares[7]",
    "ex.shutdown()",
    "run = shoal.start('flow.py', 'all', '-j2', '--keep-going')\nrun",
    "assert run.wait(60)\nrun.state, run.progress().done",
    "shoal.watch('flow.py@1')",
    "try:\n    shoal.watch('other.py')\nexcept shoal.InputError as error:\n    print(error)",
]
UPDATE = "update_display_data"
EXECUTOR, FUTURES, LIST, FUTURE, SHUT, RUN, WAITED, AGAIN, MISSING = range(len(CELLS))


def words(text: str) -> list[str]:
    """Of the first line of a card."""
    return text.partition("\n")[0].split(" · ")


class Executed:
    """A notebook that was executed, and the displays that came meanwhile: time, cell that ran, id, kind and text."""

    def __init__(self, folder: Path) -> None:
        cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
        self.notebook = nbformat.v4.new_notebook(cells=cells)
        self.displays: list[tuple[float, int, str, str, str]] = []
        self._folder = folder
        executed = self

        class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]  # found when the test begins
            def process_message(self, message: Any, cell: Any, number: int) -> Any:
                executed.note(message, number)
                return super().process_message(message, cell, number)

        resources = {"metadata": {"path": str(folder)}}
        try:
            Client(self.notebook, timeout=120, kernel_name="python3", resources=resources).execute()
        finally:
            (folder / "go").touch()  # a run that a notebook has started outlives it

    def note(self, message: dict[str, Any], number: int) -> None:
        if message["msg_type"] in ("display_data", UPDATE):
            content = message["content"]
            display, text = content["transient"]["display_id"], content["data"]["text/plain"]
            sent = message["header"]["date"].timestamp()  # whoever reads them may be late, and then has several at once
            self.displays.append((sent, number, display, message["msg_type"], text))
            updates = [(cell, *words(text)[:2]) for _, cell, _, kind, text in self.displays if kind == UPDATE]
            heads = [head for _, *head in updates]
            if (LIST, "shoal.Executor", "working") in updates and ["40 futures", "working"] in heads:
                (self._folder / "go-on").touch()
            if heads.count(["flow.py", "running"]) >= 3:
                (self._folder / "go").touch()

    def output(self, cell: int) -> dict[str, str]:
        """What is saved of the only output of a cell."""
        [output] = self.notebook.cells[cell].outputs
        data: dict[str, str] = output["data"]
        return data

    def updates(self, cell: int) -> list[tuple[float, int, str]]:
        """Of the output of a cell: when, while which cell ran, and to what."""
        [display] = [shown for _, ran, shown, kind, _ in self.displays if ran == cell and kind == "display_data"]
        return [
            (when, ran, text) for when, ran, shown, kind, text in self.displays if shown == display and "up" in kind
        ]


@pytest.fixture(scope="module")
def kernel_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where kernels leave what they would leave in the user's home."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        for name in [name for name in os.environ if name.startswith("PYTEST")]:
            patch.delenv(name)
        yield home


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory, kernel_home: Path) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "flow.py").write_text(FLOW)
    return Executed(folder)


def test_an_executor_follows_its_calls_until_it_is_shut_down(executed: Executed) -> None:
    updates = executed.updates(EXECUTOR)
    assert [text for _, ran, text in updates if ran == LIST and "working" in text], "while a later cell runs"
    saved = executed.output(EXECUTOR)
    assert saved["text/plain"].startswith("shoal.Executor · shut down · 2 cores")
    assert "39 of 40 calls done, 1 failed" in saved["text/plain"]
    assert "ValueError: no square of 7" in saved["text/html"]
    assert "<svg" in saved["text/html"]


def test_futures_show_their_states(executed: Executed) -> None:
    assert [text for _, _, text in executed.updates(FUTURES) if "working" in text]
    assert executed.output(FUTURES)["text/plain"].startswith("40 futures · failed\n")
    listed = executed.output(LIST)["text/plain"]
    assert listed == "[<CallFuture of square: done>,\n <CallFuture of square: failed, ValueError: no square of 7>]"
    assert "ValueError: no square of 7" in executed.output(FUTURE)["text/html"]


def test_a_run_that_the_notebook_starts_is_followed_to_its_end(executed: Executed) -> None:
    texts = [text for _, _, text in executed.updates(RUN)]
    assert len([text for text in texts if words(text)[1] == "running"]) >= 3, texts
    saved = executed.output(RUN)
    assert "14 of 15 tasks done, 1 failed" in saved["text/plain"]
    assert "2 x exit status 3 (bad)" in saved["text/plain"]
    assert executed.output(WAITED)["text/plain"] == "('failed', 14)"
    assert executed.output(AGAIN)["text/html"] == saved["text/html"], "the same run, looked at afterwards"


def test_outputs_change_no_more_than_twice_a_second_while_something_goes_on(executed: Executed) -> None:
    moments = [when for when, _, text in executed.updates(RUN) if words(text)[1] == "running"]
    assert len(moments) <= 2 * (moments[-1] - moments[0]) + 2


def test_what_is_saved_has_no_script_and_no_markup_of_the_users(executed: Executed) -> None:
    for cell in (EXECUTOR, FUTURES, FUTURE, RUN, AGAIN):
        html = executed.output(cell)["text/html"]
        assert "<script" not in html and "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in executed.output(RUN)["text/html"]


def test_a_workflow_that_is_not_there_is_told_in_a_sentence(executed: Executed) -> None:
    [output] = executed.notebook.cells[MISSING].outputs
    said = "the workflow file 'other.py' does not exist; name a rules file (flow.py) or a Makeflow"
    assert output["text"].strip() == said


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
def test_a_browser_shows_the_saved_notebook_in_both_themes(executed: Executed, tmp_path: Path) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    folder = Path(os.environ.get("SHOAL_PICTURES", tmp_path))
    with browser(tmp_path / "profile") as page:
        for theme in ("light", "dark"):
            exporter = nbconvert.HTMLExporter(theme=theme, mathjax_url="", require_js_url="", mermaid_js_url="")
            html, _ = exporter.from_notebook_node(executed.notebook)
            (tmp_path / f"{theme}.html").write_text(html)
            for wide in (1280, 400):
                # The reader's wish is the other one: the theme of the notebook goes before it.
                page.size(wide, dark=theme == "light")
                page.open((tmp_path / f"{theme}.html").as_uri())
                assert page.evaluate("document.querySelectorAll('.shoal').length") == 5
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), wide
                assert page.evaluate(_FITS), f"a table is wider than its card at {wide}"
                ground, ink = (lightness(page.evaluate(colour)) for colour in (_GROUND, _INK))
                assert (ground < ink) == (theme == "dark")
                page.picture(folder / f"{theme}-{wide}.png")
        assert page.complaints == []
        assert [address for address in page.requests if not address.startswith(("file:", "data:"))] == []


_FITS = "[...document.querySelectorAll('.shoal-scroll')].every(part => part.scrollWidth <= part.clientWidth + 1)"
_GROUND = "getComputedStyle(document.querySelector('.shoal')).backgroundColor"
_INK = "getComputedStyle(document.querySelector('.shoal')).color"


def lightness(colour: str) -> float:
    """Of `rgb(1, 2, 3)` or `rgba(1, 2, 3, 0.8)`."""
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3])


def test_an_interrupt_or_the_end_of_the_kernel_does_not_touch_a_run(tmp_path: Path, kernel_home: Path) -> None:
    jupyter = pytest.importorskip("jupyter_client.manager")
    (tmp_path / "flow.py").write_text(FLOW)
    try:
        interrupt_and_end(*jupyter.start_new_kernel(kernel_name="python3", cwd=str(tmp_path)))
        run = watch_run(str(tmp_path / "flow.py"))
        assert run.state == "running"
    finally:
        (tmp_path / "go").touch()
    assert run.wait(60) and run.state == "ok"


def interrupt_and_end(manager: Any, client: Any) -> None:
    """Has a kernel start a run and wait for it, disturbs it, looks whether it goes on showing it, and kills it."""
    try:
        client.execute("import shoal\nrun = shoal.start('flow.py', 'whole', '-j1')\ndisplay(run)\nrun.wait()")
        next_of(client, UPDATE)
        manager.interrupt_kernel()
        assert next_of(client, "error")["content"]["ename"] == "KeyboardInterrupt"
        assert words(next_of(client, UPDATE)["content"]["data"]["text/plain"])[1] == "running"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def next_of(client: Any, kind: str) -> dict[str, Any]:
    """The next message of a kind to the front ends."""
    while True:
        message: dict[str, Any] = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == kind:
            return message


def test_outside_a_kernel_a_watched_run_is_text_and_html(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    run = watch(tmp_path / "flow.py")
    assert isinstance(run, RunWatch)
    assert (run.state, run.progress()) == ("never run", None)
    process = start(tmp_path, "run", "flow.py", "whole", "-j4", "--quiet")
    wait_until(lambda: run.state == "running", "the run begins")
    assert not run.wait(0.0)
    wait_until(lambda: "<svg" in run._repr_html_(), "tasks run")
    run.cancel()
    assert run.wait(60)
    assert process.wait() != 0
    assert "not run" in repr(run)
    with pytest.raises(InputError, match="is not being run"):
        run.cancel()
    with pytest.raises(InputError, match="there is no run 5"):
        watch(f"{tmp_path / 'flow.py'}@5")
    (tmp_path / "go").touch()
    shoal(tmp_path, "run", "flow.py", "whole", "--quiet")
    assert run.state == "ok"


def test_what_is_not_there_is_told_in_a_notebook_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as raised:
        watch(tmp_path / "absent.py")
    assert raised.value._render_traceback_() == [str(raised.value)]  # type: ignore[attr-defined]  # IPython asks for it


def test_a_command_that_cannot_begin_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    run = start_run(tmp_path / "flow.py", "nothing-of-that-name")
    assert run.wait(60)
    assert run.state == "failed"
    assert "nothing-of-that-name" in repr(run) and "Traceback" not in repr(run)
    again = start_run(tmp_path / "flow.py", "part0")
    assert again.wait(60) and again.state == "ok"
    once_more = start_run(tmp_path / "flow.py", "part0")
    assert once_more.wait(60) and once_more.state == "ok"
    shoal(tmp_path, "run", "flow.py", "part1", "part2", "--quiet")
    assert "1 of 1 task done" in repr(again), "its own run, although there is a later one"
    assert "2 of 2 tasks done" in repr(watch(tmp_path / "flow.py"))
