"""The thread that keeps outputs of a notebook up to date, with a shell that has only what it uses of a kernel's.

The real one is in tests/ui/real/test_notebook.py.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.ui.notebook import display as live_module
from shoal.ui.notebook.card import Card
from shoal.ui.notebook.display import LiveDisplayThread, bundle_of, kernel
from shoal.ui.notebook.run_cards import empty_card
from support.command import wait_until


class Shell:
    """Notes what is sent to the front ends, and runs what is to be run after a cell."""

    kernel = object()

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bool]] = []
        self.after_cell: list[Callable[[object], None]] = []
        self.display_pub = SimpleNamespace(publish=self._publish)
        self.events = SimpleNamespace(register=lambda name, hook: self.after_cell.append(hook))

    def _publish(
        self, data: dict[str, str], metadata: dict[str, Any], *, transient: dict[str, str], update: bool
    ) -> None:
        assert set(data) == {"text/html", "text/plain"}
        self.sent.append((transient["display_id"], data["text/plain"].splitlines()[-1], update))

    def end_cell(self) -> None:
        for hook in self.after_cell:
            hook(None)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell()
    module = ModuleType("IPython")
    monkeypatch.setattr(module, "get_ipython", lambda: found, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return found


class Counter:
    """A source that shows a number."""

    def __init__(self) -> None:
        self.number, self.drawn = 0, -1
        self.over = self.settled = False
        self.may_draw = threading.Event()
        self.may_draw.set()
        self.cards = 0
        self.restless = False
        """Whether it changes all the time."""

    def card(self) -> Card:
        assert self.may_draw.wait(60)
        self.cards += 1
        self.drawn = self.number
        self.number += self.restless
        return empty_card("counter", "running", f"at {self.drawn}")

    def placeholder(self) -> Card:
        return empty_card("counter", "reading", "soon")

    def has_changed(self) -> bool:
        return self.restless or self.number != self.drawn

    def is_settled(self) -> bool:
        return self.settled or self.over

    def is_over(self) -> bool:
        return self.over


@pytest.fixture
def counter() -> Any:
    source = Counter()
    yield source
    source.over = True
    source.may_draw.set()
    wait_until(lambda: "shoal-display" not in [thread.name for thread in threading.enumerate()], "the thread ends")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell waits for its first picture, however busy the machine is."""
    monkeypatch.setattr(live_module, "FIRST", 60.0)


def test_what_changes_is_sent_under_the_same_id_and_nothing_else_is(
    shell: Shell, counter: Counter, patient: None
) -> None:
    LiveDisplayThread(counter).show()
    display = shell.sent[0][0]
    assert shell.sent == [(display, "at 0", False)]
    counter.number = 1
    wait_until(lambda: len(shell.sent) == 2, "the change is sent")
    assert shell.sent[1] == (display, "at 1", True)
    cards = counter.cards
    counter.over = True
    wait_until(lambda: counter.cards > cards, "the end is looked at")
    assert len(shell.sent) == 2, "the end looks as it looked before"


def test_an_output_is_there_at_once_even_if_its_content_takes_long(shell: Shell, counter: Counter) -> None:
    counter.may_draw.clear()
    live = LiveDisplayThread(counter)
    live.show()
    live.tell(empty_card("counter", "reading", "half of it"))
    counter.may_draw.set()
    wait_until(lambda: len(shell.sent) == 3, "the content follows")
    assert [(text, update) for _, text, update in shell.sent] == [("soon", False), ("half of it", True), ("at 0", True)]


def test_an_output_changes_at_most_twice_a_second(shell: Shell, counter: Counter, patient: None) -> None:
    LiveDisplayThread(counter).show()
    began = time.monotonic()
    counter.restless = True
    wait_until(lambda: len(shell.sent) >= 4, "it changes")
    assert time.monotonic() - began > 1.2, "three changes take three half seconds, of which one may have begun"


def test_the_end_of_a_cell_waits_for_the_last_state_of_what_is_settled(
    shell: Shell, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LAST", 60.0)
    LiveDisplayThread(counter).show()
    counter.number, counter.settled = 7, True
    shell.end_cell()
    assert shell.sent[-1][1] == "at 7"


def test_the_end_of_a_cell_does_not_wait_for_what_goes_on(
    shell: Shell, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LAST", 60.0)
    LiveDisplayThread(counter).show()
    counter.may_draw.clear()
    counter.number = 1
    began = time.monotonic()
    shell.end_cell()
    assert time.monotonic() - began < 30.0
    assert len(shell.sent) == 1


def test_all_outputs_of_one_source_follow_it_and_a_later_one_begins_anew(
    shell: Shell, counter: Counter, patient: None
) -> None:
    live = LiveDisplayThread(counter)
    live.show()
    live.show()
    counter.number, counter.over = 3, True
    wait_until(lambda: len(shell.sent) == 4, "both are changed")
    assert [update for *_, update in shell.sent] == [False, False, True, True]
    assert {display for display, _, update in shell.sent if update} == {display for display, *_ in shell.sent}
    wait_until(lambda: "shoal-display" not in [thread.name for thread in threading.enumerate()], "the thread ends")
    live.show()
    assert shell.sent[-1][1:] == ("at 3", False)


def test_without_a_kernel_nothing_is_shown_and_ipython_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert kernel() is None
    with pytest.raises(NotImplementedError):
        LiveDisplayThread(Counter()).show()
    assert "IPython" not in sys.modules


def test_a_terminal_is_no_kernel(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shell, "kernel", None)
    assert kernel() is None


def test_a_front_end_may_choose_between_html_and_text() -> None:
    bundle = bundle_of(empty_card("flow.py", "ok", "nothing to do"))
    assert bundle["text/plain"] == "flow.py · ok\nnothing to do"
    assert bundle["text/html"].startswith('<div class="shoal">')
