"""What pages make of names and figures that are awkward to draw: graphs, text that turns around, small windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.ledger.records import Record, encode
from shoal.ledger.workspace import Workspace
from support.browser import Browser, browser
from support.command import shoal
from support.views import ended, linked, over, planned, started
from support.web import needs_browser, web

TURNED = "rtl\u202eevil\x1b[31m\u2066"
SHOWN = "rtl\ufffdevil\ufffd[31m\ufffd"
GRAPH = """
from shoal import task
for i in range(20):
    task(f"alpha{i}.txt", run="true", category="alpha")
task("bad", run="exit 3", category="bad")
task("badneed", run="true", needs=["bad"], category="cat <b>xxxxxxxxxxxx" + 30 * "y")
for name in ("timeout", "hog", "flaky", "noout", "slow", "x" * 100):
    task(name, run="true", category="other " + name[:3])
task("slow2", run="true", needs=["slow", "alpha1.txt"], category="slow")
task("far", run="true", needs=["slow2", "alpha2.txt"], category="far away from all others")
task("all", needs=[*(f"alpha{i}.txt" for i in range(20)), "badneed", "timeout", "hog", "flaky", "noout", "far",
    "x" * 100])
"""
TURNS = f"""
from shoal import task
for i in range(3):
    task({TURNED!r} + str(i), run=["sh", "-c", "echo " + {TURNED!r} + "; exit 3"], category={TURNED!r})
task("all", needs=[{TURNED!r} + str(i) for i in range(3)])
"""
UNSEEN = r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/"
BEHIND = """[...document.querySelectorAll('#graph .edge')].filter((path) => {
  const boxes = [...document.querySelectorAll('#graph .box')].map((box) => box.getBBox());
  const inside = ({ x, y }) => boxes.some((box) =>
    x > box.x + 1 && x < box.x + box.width - 1 && y > box.y + 1 && y < box.y + box.height - 1);
  const long = path.getTotalLength(), svg = path.ownerSVGElement.viewBox.baseVal;
  return Array.from({ length: 200 }, (_, i) => path.getPointAtLength(long * i / 199))
    .some((point) => inside(point) || point.x < 0 || point.x > svg.width || point.y < 0 || point.y > svg.height);
}).length"""
OUTSIDE = """[...document.querySelectorAll('#graph .node-box')].filter((group) => {
  const box = group.querySelector('.box').getBBox();
  return [...group.querySelectorAll('text')].some((text) => text.getBBox().x + text.getBBox().width > box.x + box.width)
    || box.x < 0 || box.x + box.width > group.ownerSVGElement.viewBox.baseVal.width;
}).map((group) => group.textContent)"""

LINES = """[...document.querySelectorAll('#graph .edge')].map((path) => {
  const long = path.getTotalLength();
  return [0, long / 2, long].map((at) => path.getPointAtLength(at)).map(({ x, y }) => [x, y]);
})"""
TOPS = "[...document.querySelectorAll('#graph .box')].map((box) => [box.getBBox().x, box.getBBox().y])"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def quiet(page: Browser) -> Iterator[Browser]:
    page.open("about:blank")
    page.complaints.clear()
    yield page
    assert page.complaints == []


def write(folder: Path, records: list[Record]) -> None:
    """A workflow with this ledger."""
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))


@needs_browser
def test_names_have_room_in_the_graph_and_lines_pass_no_box(tmp_path: Path, quiet: Browser) -> None:
    page = quiet
    (tmp_path / "flow.py").write_text(GRAPH)
    shoal(tmp_path, "run", "flow.py", "all", "--quiet", "--keep-going", expect=1)
    with web(tmp_path, "flow.py") as told:
        for wide, tasks in ((1280, True), (700, True), (400, True), (1280, False), (400, False)):
            page.size(wide)
            page.open(told.address)
            page.wait_for("document.querySelector('#graph .node-box') !== null")
            page.evaluate(
                "[...document.querySelectorAll('#graph button')]"
                f".find((one) => one.textContent === '{'Tasks' if tasks else 'Categories'}').click()"
            )
            page.wait_for(f"document.querySelectorAll('#graph .small').length === {int(tasks)}")
            assert page.evaluate("document.querySelectorAll('#graph .edge').length") == 5
            assert (page.evaluate(BEHIND), page.evaluate(OUTSIDE)) == (0, [])
            if tasks:
                names = page.evaluate("[...document.querySelectorAll('.box-name')].map((one) => one.textContent)")
                assert {"✓timeout", "✓flaky", "✓alpha19.txt", "badneed"} <= set(names)
                cut = [name for name in names if "…" in name]
                assert len(cut) == 1 and cut[0].startswith("✓xxx") and cut[0].endswith("xxx")
                title = "[...document.querySelectorAll('.node-box title')].map((one) => one.textContent)"
                assert any("x" * 100 in name for name in page.evaluate(title))


@needs_browser
def test_independent_pairs_stand_side_by_side_with_straight_lines(tmp_path: Path, quiet: Browser) -> None:
    page, pairs = quiet, 14
    needs = {task: [task - pairs] if task >= pairs else [-1] for task in range(2 * pairs + 3)}
    needs |= {task: [-1] for task in range(2 * pairs, 2 * pairs + 3)}  # these need nothing, and nothing needs them
    ends = [ended(task, 0.0, 1.0) for task in needs]
    write(tmp_path, [started(len(needs)), planned(["a"] * len(needs)), linked(needs), *ends, over(2.0)])
    with web(tmp_path, "flow.py") as told:
        for wide in (1280, 700):
            page.size(wide)
            page.open(told.address)
            page.wait_for("document.querySelectorAll('#graph .small .node-box').length === 31")
            drawn = page.evaluate(LINES)
            assert len(drawn) == pairs and (page.evaluate(BEHIND), page.evaluate(OUTSIDE)) == (0, [])
            for (x, y), (middle, _), (end, below) in drawn:
                assert x == middle == end and y < below
            lengths = {round(line[2][1] - line[0][1]) for line in drawn}
            assert len(lengths) == 1, "nothing lies between the two of a pair"
            places = page.evaluate(TOPS)
            assert len({y for _, y in places[2 * pairs :]}) == 1


@needs_browser
def test_no_name_turns_text_around_on_page_or_report(tmp_path: Path, quiet: Browser) -> None:
    page = quiet
    (tmp_path / "flow.py").write_text(TURNS)
    shoal(tmp_path, "run", "flow.py", "all", "--quiet", "--keep-going", expect=1)
    every = "document.documentElement.outerHTML"
    with web(tmp_path, "flow.py") as told:
        page.size(400)
        page.open(told.address)
        page.wait_for("document.querySelectorAll('#tasks tbody tr').length === 3")
        assert page.evaluate("document.querySelector('#tasks .link').textContent") == f"{SHOWN}0"
        page.evaluate("document.querySelector('#tasks .link').click()")
        page.wait_for("document.querySelector('dialog pre[aria-label]').textContent.startsWith('rtl\\ufffdevil')")
        page.wait_for("document.querySelector('#task-command') !== null")
        page.evaluate("document.querySelector('dialog').close()")
        assert not page.evaluate(f"{UNSEEN}.test({every})")
        page.evaluate("document.querySelector('#categories .link').click()")
        page.wait_for(
            "performance.getEntriesByType('resource').some((one) => /category=rtl/.test(one.name) && one.responseEnd)"
            " && document.querySelector('#tasks [role=status]').textContent === '3 tasks'"
        )
        assert page.evaluate("document.querySelectorAll('#tasks tbody tr').length") == 3, "asked for as it is written"
        assert page.evaluate("document.querySelector('#failures tbody tr').offsetHeight") < 80
        said = "[...document.querySelectorAll('#failures details p')].map((one) => one.textContent)"
        assert len(page.evaluate(said)) == 1, "what is said of all of them stands there once"
    shoal(tmp_path, "report", "flow.py", "-o", "drawn.html")
    page.open((tmp_path / "drawn.html").as_uri())
    page.wait_for("document.querySelectorAll('section').length > 5")
    assert SHOWN in page.evaluate("document.body.innerText")
    script = "[...document.querySelectorAll('script, style')].forEach((one) => one.remove())"
    page.evaluate(script)
    assert not page.evaluate(f"{UNSEEN}.test({every})")


@needs_browser
def test_runs_that_differ_much_are_compared_in_words_and_units_that_can_be_read(tmp_path: Path, quiet: Browser) -> None:
    def run(name: str, seconds: float, outcome: str, *more: Record) -> list[Record]:
        head: list[Record] = [
            msgspec.structs.replace(started(5), run=name),
            planned(["a"] * 5),
            linked({0: [-1], 1: [0], 2: [0], 3: [1], 4: [1]}),
        ]
        return [*head, ended(0, 0.0, seconds), *more, over(seconds, outcome)]

    page = quiet
    whole = [ended(task, 0.5, 0.9) for task in range(1, 5)]
    records = [*run("one", 1.0, "ok", *whole), *run("two", 133.0, "it was cancelled")]
    write(tmp_path, records)
    shoal(tmp_path, "report", "--compare", "flow.py@1", "flow.py@2", "-o", "both.html")
    page.size(1280)
    page.open((tmp_path / "both.html").as_uri())
    page.wait_for("document.querySelectorAll('svg text').length > 8")
    texts = "[...row.cells].map((cell) => cell.textContent)"
    cells = f"[...document.querySelectorAll('#compared tbody tr')].map((row) => {texts})"
    rows = {row[0]: row[1:] for row in page.evaluate(cells)}
    assert rows["wall time"] == ["1 s", "2 min 13 s", "133 times"]
    assert rows["tasks not run"][:2] == ["0", "4"] and rows["tasks cancelled"][:2] == ["0", "0"]
    chips = page.evaluate("[...document.querySelectorAll('.chip')].map((one) => one.textContent)")
    assert chips == ["completed", "cancelled"]
    ticks = page.evaluate("[...document.querySelector('svg').querySelectorAll('text')].map((one) => one.textContent)")
    times = [tick for tick in ticks if tick.endswith((" s", " min"))]
    assert len(times) > 3 and all(tick.endswith(" min") for tick in times), times
    assert "133 times as long" in page.evaluate("document.querySelector('#compared p').textContent")
