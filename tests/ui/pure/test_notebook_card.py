"""What notebooks are shown of a run: the card, its HTML, its drawing and its text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ledger.records import Record, TaskStarted
from shoal.ledger.views.run import RunView
from shoal.ui.notebook.card import MOST_CAUSES, MOST_ROWS, Area, Card
from shoal.ui.notebook.rendering import HEADROOM, HEIGHT, WIDTH, area_svg, html_of, line_of, text_of
from shoal.ui.notebook.run_cards import BUCKETS, empty_card, run_card
from support.views import BEGAN, diamond, ended, over, planned, started, view_of

HOSTILE = '</style></div><script>alert(1)</script><img src=x onerror="alert(1)">\x1b[2J\u202e'
RUN: list[Record] = [
    started(6),
    planned(["first", "long", "long", HOSTILE, "last", "last"]),
    ended(0, 1.0, 3.0),
    ended(2, 3.0, 4.0, "failed", final=False, message="exit status 1"),
    ended(1, 3.0, 7.0),
    ended(2, 4.0, 5.0, attempt=2),
    ended(3, 7.0, 9.0, "failed", message=HOSTILE),
]
CONTROL = {chr(code) for code in (*range(32), *range(127, 160))}
TAGS = {"b", "br", "div", "i", "path", "span", "strong", "style", "svg", "table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"class", "d", "fill", "height", "preserveaspectratio", "role", "scope", "stroke", "stroke-dasharray"} | {
    *("style", "vector-effect", "viewbox", "width", "aria-label", "aria-valuemax", "aria-valuemin", "aria-valuenow")
}


class Reader(HTMLParser):
    """What a browser would see: elements with attributes, and the words between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def going() -> RunView:
    view = view_of(*RUN)
    view.take(TaskStarted(4, 1, BEGAN + 9.0, 1, 0.0, 0))
    return view


def card_of_going() -> Card:
    return run_card(going(), "flow.py", "running", BEGAN + 10.0)


def test_a_card_counts_tasks_by_state() -> None:
    card = card_of_going()
    assert {state.word: state.count for state in card.states} == {
        "done": 3,
        "failed": 1,
        "running": 1,
        "not started": 1,
    }
    assert card.total == 6
    assert {row.name: (row.total, row.done, row.failed, row.running) for row in card.rows} == {
        "first": (1, 1, 0, 0),
        "long": (2, 2, 0, 0),
        HOSTILE: (1, 0, 1, 0),
        "last": (2, 0, 0, 1),
    }
    assert card.tone == "live"


def test_what_was_not_done_when_a_run_is_over_is_not_waiting() -> None:
    card = run_card(view_of(*RUN, over(10.0, "failed")), "flow.py", "failed", None)
    assert {state.word: state.count for state in card.states} == {"done": 3, "failed": 1, "not run": 2}
    assert (card.tone, card.time) == ("bad", "took 10 s")


def test_time_left_is_told_with_its_band() -> None:
    tasks: list[Record] = [ended(task, 3.0 * task, 3.0 * task + 2 + task % 2) for task in range(10)]
    card = run_card(view_of(started(40, cores=1), planned(["a"] * 40), *tasks), "flow.py", "running", BEGAN + 30)
    assert re.fullmatch(r"\d+ (s|min) \(.+\) left", card.time), card.time


def test_failures_are_grouped_by_cause_with_whether_they_were_for_good() -> None:
    first, second = card_of_going().failures
    assert (first.text[:13], first.attempts, first.given_up, first.examples) == (HOSTILE[:13], 1, 1, ["t3"])
    assert (second.text, second.attempts, second.given_up, second.examples) == ("exit status 1", 1, 0, ["t2"])


def test_the_area_of_the_drawing_is_the_time_of_all_attempts_each_once() -> None:
    area = run_card(view_of(*RUN, over(10.0)), "flow.py", "failed", None).area
    assert area is not None
    width = area.end / BUCKETS
    assert sum(map(sum, area.series)) * width == pytest.approx(2 + 4 + 1)
    assert sum(area.lost) * width == pytest.approx(1 + 2)
    assert area.limit == pytest.approx([2.0] * BUCKETS)


def test_many_categories_and_causes_are_cut_and_counted() -> None:
    names = [f"kind{number}" for number in range(30)]
    records = [ended(task, 0.0, 1.0, "failed", message=f"broken {'abcdefghij'[task % 10]}") for task in range(30)]
    card = run_card(view_of(started(30), planned(names), *records, over(2.0, "failed")), "flow.py", "failed", None)
    assert (len(card.rows), card.more_rows) == (MOST_ROWS, 30 - MOST_ROWS)
    assert (len(card.failures), card.more_failures) == (MOST_CAUSES, 10 - MOST_CAUSES)
    assert f"and {30 - MOST_ROWS} more categories" in Reader(html_of(card)).text()
    assert f"and {30 - MOST_ROWS} more categories" in text_of(card)
    assert f"and {10 - MOST_CAUSES} other causes" in Reader(html_of(card)).text()


def test_where_nobody_knows_how_many_tasks_there_will_be_no_share_is_told() -> None:
    view = view_of(started(0), planned(["expand", "expand"]), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0, "failed"))
    card = run_card(view, "net.py", "running", BEGAN + 2)
    assert text_of(card).splitlines()[1] == "1 task done, 1 failed"
    shown = Reader(html_of(card))
    assert "1 task done, 1 failed" in shown.text() and "progressbar" not in dict(shown.attributes).values()


def test_hostile_names_are_shown_and_never_become_html() -> None:
    view = going()
    shown = Reader(html_of(run_card(view, HOSTILE, HOSTILE, BEGAN + 10.0)))
    assert shown.open == [], "what is opened is closed"
    assert shown.tags <= TAGS
    assert {name for name, _ in shown.attributes} <= ATTRIBUTES
    assert "<script>alert(1)</script>" in shown.text()
    assert "\x1b" not in shown.text() and "\u202e" not in shown.text()
    one = Reader(line_of(HOSTILE, "failed", HOSTILE))
    assert one.open == [] and one.tags <= TAGS


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=400), st.text(max_size=400))
def test_no_name_and_no_message_becomes_html(name: str, message: str) -> None:
    records: list[Record] = [
        started(1),
        planned([name]),
        ended(0, 0.0, 1.0, "failed", message=message),
        over(2.0, "failed"),
    ]
    card = run_card(view_of(*records), name, "failed", None)
    shown = Reader(html_of(card))
    assert shown.open == [] and shown.tags <= TAGS
    assert {attribute for attribute, _ in shown.attributes} <= ATTRIBUTES
    assert not any(set(line) & CONTROL for line in text_of(card).split("\n"))


def test_html_asks_for_nothing_from_elsewhere_and_has_no_script() -> None:
    html = html_of(run_card(diamond(), "flow.py", "ok", None))
    assert not re.search(r"url\(|https?:|@import|<script[ >]|src=|href=", html)


def test_html_says_what_matters_without_style_and_drawing() -> None:
    card = card_of_going()
    stripped = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html_of(card), flags=re.DOTALL)
    text = Reader(stripped).text()
    assert "50 % · 3 of 6 tasks done, 1 failed, 1 running, 1 not started" in text
    assert "Cores over time, " in text
    assert "1 attempt, tried again" in text


def test_html_of_a_large_run_stays_small() -> None:
    names = [f"category-{number:02}" for number in range(12)]
    records: list[Record] = [ended(task, task * 0.01, task * 0.01 + 0.05 * (1 + task % 7)) for task in range(600)]
    view = view_of(started(600, cores=32), planned([names[task % 12] for task in range(600)]), *records, over(7.0))
    assert len(html_of(run_card(view, "flow.py", "ok", None))) < 32_000


def test_text_shows_states_a_curve_and_a_table() -> None:
    lines = text_of(card_of_going()).splitlines()
    assert lines[0].startswith("flow.py · running · 2 cores")
    assert lines[1] == "[###############xxxxx>>>>>.....] 3 of 6 tasks done, 1 failed, 1 running, 1 not started"
    assert any(set(line.split(" ")[0]) <= set("▁▂▃▄▅▆▇█") for line in lines)
    assert [line.split() for line in lines if line.startswith("last")] == [["last", "0", "of", "2", "0", "1", "-", "-"]]


def test_text_obeys_no_name() -> None:
    text = text_of(card_of_going())
    assert "\x1b" not in text
    assert len(text.splitlines()) == len(text_of(card_of_going()).split("\n"))


def test_a_workflow_without_a_run_has_a_card_too() -> None:
    card = empty_card("flow.py", "never run", "It is shown here as soon as it runs.")
    assert Reader(html_of(card)).text() == "flow.py never run It is shown here as soon as it runs."
    assert text_of(card) == "flow.py · never run\nIt is shown here as soon as it runs."


def heights(path: str) -> list[float]:
    """The levels of a drawn line, from left to right, one per pixel of width."""
    found: list[float] = []
    level = 0.0
    for kind, value in re.findall(r"([MVhz])(?:0 )?(-?\d*)", path):
        if kind in "MV":
            level = float(value)
        elif kind == "h":
            found += [level] * int(value)
    return found


def test_a_drawing_is_well_formed_and_layers_stand_on_each_other() -> None:
    series = [[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 0.0, 1.0]]
    area = Area(8.0, ["a", "b"], series, [0, 1], [4.0] * 4, [1.0, 0.0, 0.0, 0.0], "")
    drawn = ElementTree.fromstring(area_svg(area, 'said "so" & <more>'))
    assert drawn.attrib["aria-label"] == 'said "so" & <more>'
    assert not [text for text in drawn.itertext() if text.strip()], "viewers that drop drawings would keep their text"
    paths = {path.attrib["class"]: heights(path.attrib["d"]) for path in drawn}
    unit, quarter = (HEIGHT - HEADROOM) / 4, WIDTH // 4
    levels = {name: [(HEIGHT - row[at * quarter + 5]) / unit for at in range(4)] for name, row in paths.items()}
    assert levels["shoal-lost"] == [3, 1, 0, 3]
    assert levels["shoal-c1"] == [2, 1, 0, 3]
    assert levels["shoal-c0"] == [1, 1, 0, 2]
    assert levels["shoal-limit"] == [4, 4, 4, 4]
    assert all(len(row) == WIDTH for row in paths.values())
