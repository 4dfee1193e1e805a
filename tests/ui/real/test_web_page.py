"""The live page over real runs in a real browser: what it draws, and how soon it shows what happens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Browser, browser
from support.command import PATIENCE, shoal, wait_until
from support.web import HOSTILE, STEPS, Shown, followed, needs_browser, run_hostile, running, web

NET = """
from shoal import Net, take
net = Net("mill")
grain, flour = net.place("grain", [1, 2, 3]), net.place("flour")


@net.task(x=take(grain), put=flour)
def grind(x):
    return x
"""
TRIES = 12
MANY_STEPS = f"""
from shoal import rule
for at in range({TRIES}):
    wait = f"while ! test -e go{{at}}; do sleep 0.01; done; echo done > made{{at}}"
    rule(f"made{{at}}", [f"made{{at - 1}}"] if at else [], run=wait, category="step")
"""
SECTIONS = [
    *("Progress", "Utilisation", "Task timeline", "Graph", "Categories", "Nodes", "Critical path", "Failures"),
    *("Tasks", "Data and environment"),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow that was run; its last task fails."""
    return run_hostile(tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def shown(ran: Path) -> Iterator[Shown]:
    with web(ran, "flow.py") as found:
        yield found


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(one_browser: Browser) -> Iterator[Browser]:
    """The browser with an empty page, and nothing held against it."""
    one_browser.open("about:blank")
    one_browser.requests.clear()
    one_browser.complaints.clear()
    yield one_browser


def press(page: Browser, key: str) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


@needs_browser
def test_every_section_is_drawn_and_hostile_names_do_nothing(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for(
        "document.querySelector('#gantt canvas').getContext('2d') && document.querySelector('#tasks tbody tr') && 1"
    )
    heads = "[...document.querySelectorAll('section:not(.hidden) h2')].map((head) => head.textContent)"
    page.wait_for(f"{heads}.length >= {len(SECTIONS)}")
    assert page.evaluate(heads) == SECTIONS
    drawn = page.wait_for(
        "document.querySelectorAll('main svg').length >= 5 && document.querySelectorAll('main svg').length"
    )
    assert drawn >= 5
    page.wait_for(
        "(() => { const c = document.querySelector('#gantt canvas'), pen = c.getContext('2d'); "
        "return pen.getImageData(0, 0, c.width, c.height).data.some((v) => v > 0); })()"
    )
    page.evaluate(
        "[...document.querySelectorAll('#tasks .link')].find((link) => link.textContent.startsWith('<')).click()"
    )
    page.wait_for("document.querySelector('#task-command') !== null")
    page.wait_for("document.querySelector('dialog pre:not(#task-command)').textContent.includes('onerror')")
    assert HOSTILE in page.evaluate("document.querySelector('dialog').textContent")
    assert page.evaluate("[document.images.length, window.caught, document.querySelectorAll('b[onclick]').length]") == [
        0,
        None,
        0,
    ]
    assert page.complaints == []
    elsewhere = [address for address in page.requests if not address.startswith((shown.address, "data:,"))]
    assert elsewhere == []


@needs_browser
@pytest.mark.parametrize(("wide", "dark"), [(1280, False), (400, True)])
def test_the_page_fits_the_window_in_light_and_dark(shown: Shown, page: Browser, wide: int, dark: bool) -> None:
    page.size(wide, dark=dark)
    page.open(shown.address)
    page.wait_for("document.querySelectorAll('section:not(.hidden)').length >= 10")
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 23, 29)") == dark


@needs_browser
def test_the_page_can_be_used_with_the_keyboard_and_heard(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for(
        "document.querySelector('#tasks tbody tr') !== null && document.querySelector('#utilisation svg') !== null"
    )
    said = "The run has ended: 7 tasks done, 1 failed."
    page.wait_for(f"document.querySelector('#heard[aria-live]').textContent.includes('{said}')")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, canvas, svg[role=img]')].filter((one) => "
        "!(one.textContent.trim() || one.getAttribute('aria-label'))).map((one) => one.outerHTML)"
    )
    assert unnamed == []
    page.evaluate("document.querySelector('#gantt canvas').focus()")
    press(page, "+")
    page.wait_for("document.querySelector('#gantt .heard').textContent.includes(' to ')")
    page.evaluate("document.querySelector('#utilisation svg').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    page.wait_for("document.querySelector('#utilisation .heard').textContent.includes('after')")
    page.evaluate("document.querySelector('#utilisation details').open = true")
    page.wait_for("document.querySelectorAll('#utilisation details tbody tr').length > 5")
    page.evaluate("document.querySelector('#tasks .link').click()")
    page.wait_for("document.querySelector('dialog').open")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", windowsVirtualKeyCode=27)
    page.wait_for("!document.querySelector('dialog').open")
    assert page.complaints == []


@needs_browser
def test_bars_are_picked_and_opened_with_the_keyboard(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for("document.querySelector('#gantt .legend').textContent.includes('part')")
    page.evaluate("document.querySelector('#gantt canvas').focus()")
    heard = "document.querySelector('#gantt .heard').textContent"
    press(page, "ArrowRight")
    first = page.wait_for(f"{heard}.includes('part') && {heard}")
    press(page, "ArrowRight")
    second = page.wait_for(f"{heard} !== {json.dumps(first)} && {heard}")
    assert first.split(",")[0] == second.split(",")[0], "along the same slot"
    press(page, "ArrowDown")
    other = page.wait_for(f"{heard} !== {json.dumps(second)} && {heard}")
    assert other.split(",")[0] != second.split(",")[0]
    press(page, "Enter")
    name = other.split(", ")[1]
    page.wait_for(
        f"document.querySelector('dialog').open && document.querySelector('#task-head').textContent === '{name}'"
    )
    page.wait_for("document.querySelector('#task-course p').textContent.includes('less than a second')")
    assert page.complaints == []


@needs_browser
def test_few_tasks_are_drawn_one_by_one_and_reached_with_the_keyboard(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for("document.querySelectorAll('#graph .node-box').length === 8")
    states = "[...document.querySelectorAll('#graph .box')].map((box) => box.className.baseVal.split('-')[1]).sort()"
    assert page.evaluate(states) == ["done"] * 7 + ["failed"]
    assert page.evaluate("document.querySelectorAll('#graph .edge').length") == 7
    page.evaluate("document.querySelector('#graph .node-box[tabindex=\"0\"]').focus()")
    reached = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(reached).startswith("part")
    press(page, "ArrowDown")
    page.wait_for(f"{reached} === {json.dumps(f'whole: done, {HOSTILE}')}")
    press(page, "Enter")
    page.wait_for(
        "document.querySelector('dialog').open && document.querySelector('#task-head').textContent === 'whole'"
    )
    page.evaluate("document.querySelector('dialog').close()")
    page.evaluate(
        "[...document.querySelectorAll('#graph button')].find((one) => one.textContent === 'Categories').click()"
    )
    page.wait_for("document.querySelectorAll('#graph .node-box').length === 3")
    assert "6 of 6" in page.evaluate("document.querySelector('#graph svg').textContent")
    assert page.complaints == []


@needs_browser
def test_what_a_task_uses_is_drawn_while_it_runs_and_afterwards(tmp_path: Path, page: Browser) -> None:
    grow, burn = (
        'import os, time; x = b"x" * (40 << 20)',
        'while not os.path.exists("go"): x.count(1), time.sleep(0.02)',
    )
    command = f"python3 -c '{grow}\n{burn}'"
    (tmp_path / "flow.py").write_text(f"from shoal import task\ntask('burn', run={command!r}, category='burning')\n")
    plots = "document.querySelectorAll('#task-course svg').length === 2"
    with running(tmp_path, "flow.py", "burn") as (process, told):
        page.open(told.address)
        page.wait_for("document.querySelector('#progress .link') !== null")
        page.evaluate("document.querySelector('#progress .link').click()")
        page.wait_for(plots)

        def is_seen() -> bool:
            going = told.data("tasks/0/course")
            assert going["going"]
            memory, cpu = (max((point[at] for point in going["points"]), default=0) for at in (1, 2))
            return bool(memory > 40 << 20 and cpu > 0.1)

        wait_until(is_seen, "memory and cpu time are told while it runs")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE) == 0
    with web(tmp_path, "flow.py") as told:
        course = told.data("tasks/0/course")
        assert (course["going"], course["attempt"]) == (False, 1)
        ages = [point[0] for point in course["points"]]
        assert 2 <= len(ages) <= 60 and ages == sorted(ages) and ages[-1] >= 1.0
        assert max(point[1] for point in course["points"]) > 40 << 20 and course["points"][-1][2] > 0.1
        page.open(told.address)
        page.wait_for("document.querySelector('#tasks .link') !== null")
        page.evaluate("document.querySelector('#tasks .link').click()")
        page.wait_for(plots)
        assert "peak memory" in page.evaluate("document.querySelector('#task-course p').textContent")
    assert [line for line in page.complaints if "ERR_" not in line] == [], "but that a server has gone may be said"


@needs_browser
def test_the_list_of_tasks_follows_the_run_and_keeps_the_keyboards_place(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    with followed(tmp_path, "flow.py", "two") as (process, told):
        page.size(1280)
        page.open(told.address)
        states = "[...document.querySelectorAll('#tasks .state')].map((one) => one.textContent).join()"
        page.wait_for(f"{states} === 'running,not started'")
        page.evaluate("document.querySelector('#tasks select').focus()")
        (tmp_path / "go1").touch()
        page.wait_for(f"(document.querySelector('#tasks').scrollIntoView(), {states} === 'done,running')")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "all states"
        (tmp_path / "go2").touch()
        assert process.wait(PATIENCE) == 0
        page.wait_for(f"{states} === 'done,done'")
    assert page.complaints == []


@needs_browser
def test_what_an_earlier_attempt_wrote_can_be_read(tmp_path: Path, page: Browser) -> None:
    command = "if test -e seen; then echo better; else touch seen; echo worse; exit 3; fi"
    (tmp_path / "flow.py").write_text(f"from shoal import task\ntask('twice', run={command!r}, retries=1)\n")
    shoal(tmp_path, "run", "flow.py", "twice", "--quiet")
    with web(tmp_path, "flow.py") as told:
        page.open(told.address)
        page.wait_for("document.querySelector('#tasks .link') !== null")
        page.evaluate("document.querySelector('#tasks .link').click()")
        wrote = "document.querySelector('dialog pre[aria-label=\"output\"]').textContent"
        page.wait_for(f"{wrote} === 'better\\n'")
        page.evaluate(
            "(() => { const one = document.querySelector('dialog select'); one.value = '1'; "
            "one.dispatchEvent(new Event('change')); })()"
        )
        page.wait_for(f"{wrote} === 'worse\\n'")
        assert page.evaluate("document.querySelector('dialog').textContent.includes('Output of attempt 1')")
        assert page.complaints == []


@needs_browser
def test_cores_can_be_shown_red_on_green(shown: Shown, page: Browser) -> None:
    page.open(shown.address)
    page.wait_for("document.querySelector('#utilisation path') !== null")
    page.evaluate(
        "[...document.querySelectorAll('#utilisation button')]"
        ".find((one) => one.textContent.includes('Busy and idle')).click()"
    )
    page.wait_for("document.querySelector('#utilisation path[fill=\"#c8372d\"]') !== null")
    assert page.evaluate("document.querySelector('#utilisation path').getAttribute('fill')") == "#3f9d57"


@needs_browser
def test_a_net_is_drawn_with_its_marking(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "mill.py").write_text(NET)
    shoal(tmp_path, "run", "mill.py", "--quiet", expect=None)
    with web(tmp_path, "mill.py") as told:
        assert told.data("run")["parts"]["net"]["tokens"] == {"grain": 0, "flour": 3}
        page.open(told.address)
        page.wait_for("document.querySelectorAll('#net svg .node-box').length === 3")
        words = page.evaluate("document.querySelector('#net svg').textContent")
        assert "flour3 tokens" in words and "grind0 running, 3 done" in words
        assert page.evaluate("document.querySelectorAll('#net svg path.edge').length") == 2
        assert page.evaluate("document.querySelector('#graph').className") == "hidden"
        assert page.complaints == []


@needs_browser
def test_what_happens_is_on_the_page_within_a_second(tmp_path: Path, page: Browser) -> None:
    """The promise is for a machine that has time; on one that is busy with other things some of the tries find it."""
    (tmp_path / "flow.py").write_text(MANY_STEPS)
    with running(tmp_path, "flow.py", f"made{TRIES - 1}") as (process, told):
        page.open(told.address)
        shown_done = "document.querySelector('#tile-done b').textContent"
        page.wait_for(f"{shown_done} === '0' && document.querySelector('#tile-running b').textContent === '1'")
        page.evaluate("document.querySelector('#ask-why').click()")
        page.wait_for("/^1 running, [0-9]+ ready, /.test(document.querySelector('#run-why').textContent)")
        assert told.data("why")["running"] == 1 and "waits for the task 'made0'" in told.data("tasks/1/why")["text"]
        delays: list[float] = []
        for at in range(TRIES):
            (tmp_path / f"go{at}").touch()
            if not delays or min(delays) >= 1.0:
                page.wait_for(f"Number({shown_done}) > {at}")
                delays.append(time.time() - (tmp_path / f"made{at}").stat().st_mtime)
        assert process.wait(PATIENCE) == 0
        page.wait_for("document.querySelector('h1 .chip').textContent === 'completed'")
        page.wait_for("document.querySelector('.status').textContent.includes('The run has ended')")
    assert min(delays) < 1.0, delays
