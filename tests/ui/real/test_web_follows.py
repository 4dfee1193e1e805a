"""What is open on the live page follows the run: the dialog of a task, and a long list of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Browser, browser
from support.command import PATIENCE
from support.web import followed, needs_browser

SPEAKS = """
from shoal import rule
wait = "while ! test -e go{}; do sleep 0.01; done"
rule("one", run=f"echo begin; {wait.format(1)}; echo end; touch one", category="step")
rule("two", ["one"], run=f"{wait.format(2)}; test -e again || {{ touch again; exit 3; }}; touch two", retries=1)
rule("three", ["two"], run=f"{wait.format(3)}; touch three")
"""
MANY = """
from shoal import task
task("gate", run="while ! test -e go1; do sleep 0.01; done")
for i in range(250):
    task(f"s{i}", run="true", needs=["gate"])
task("last", run="while ! test -e go2; do sleep 0.01; done", needs=[f"s{i}" for i in range(250)])
"""
FACTS = "document.querySelector('#task-facts').textContent"
WROTE = "document.querySelector('dialog pre[aria-label=\"output\"]').textContent"
WHY = "document.querySelector('#task-why').textContent"


@pytest.fixture
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        found.size(1280)
        yield found


def open_task(page: Browser, name: str) -> None:
    page.wait_for("document.querySelectorAll('#tasks .link').length >= 3")
    page.evaluate(f"[...document.querySelectorAll('#tasks .link')].find((one) => one.textContent === '{name}').click()")
    page.wait_for(f"document.querySelector('#task-head').textContent === '{name}' && {WHY}.length > 0")


def asked(page: Browser, end: str) -> int:
    page.evaluate("0")
    return sum(address.endswith(end) for address in page.requests)


@needs_browser
def test_the_dialog_of_a_task_follows_it_until_it_is_closed(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "flow.py").write_text(SPEAKS)
    with followed(tmp_path, "flow.py", "three") as (process, told):
        page.open(told.address)
        page.wait_for("document.querySelectorAll('#tasks .state.running').length === 1")
        open_task(page, "one")
        page.wait_for(f"{FACTS}.includes('attempt 1 running, process') && {WROTE} === 'begin\\n'")
        page.wait_for(f"{WHY}.includes('running')")
        page.evaluate("document.querySelector('dialog pre[aria-label]').focus()")
        (tmp_path / "go1").touch()
        page.wait_for(f"{FACTS}.startsWith('done') && !{FACTS}.includes('running') && {WROTE} === 'begin\\nend\\n'")
        page.wait_for(f"!{WHY}.includes('running')")
        page.wait_for("document.querySelectorAll('dialog tbody tr').length >= 1")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "output"
        assert asked(page, "/tasks/0/workflow") == 2, "once per state"
        page.evaluate("document.querySelector('dialog').close()")
        page.wait_for(
            "document.querySelector('#path p').textContent.includes('The last task to finish had no dependencies')"
        )
        page.evaluate("document.querySelector('#tasks').scrollIntoView()")
        page.wait_for("document.querySelectorAll('#tasks .state.done').length === 1")
        open_task(page, "two")
        page.wait_for(f"{FACTS}.includes('attempt 1 running')")
        (tmp_path / "go2").touch()  # it fails, and is tried again
        page.wait_for(f"{FACTS}.startsWith('done') && document.querySelectorAll('dialog select option').length === 2")
        page.wait_for("document.querySelector('dialog select').value === '2'")
        open_task(page, "three")
        page.wait_for(f"{FACTS}.includes('running')")
        page.evaluate("document.querySelector('dialog').close()")
        before = asked(page, "/tasks/2")
        page.evaluate("window.shoalVersion = 0")
        page.wait_for("window.shoalVersion >= 4")
        assert asked(page, "/tasks/2") == before, "nobody looks at it any more"
        open_task(page, "three")
        (tmp_path / "go3").touch()
        assert process.wait(PATIENCE) == 0
        page.wait_for(f"{FACTS}.startsWith('done')")
    assert page.complaints == []


@needs_browser
def test_a_list_of_more_tasks_than_are_given_at_once_follows_the_run(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "flow.py").write_text(MANY)
    with followed(tmp_path, "flow.py", "last") as (process, told):
        page.open(told.address)
        rows = "document.querySelectorAll('#tasks tbody tr').length"
        more = "[...document.querySelectorAll('#tasks button')].find((one) => one.textContent === 'More')"
        for shown in (50, 100, 150, 200, 250):
            page.wait_for(f"{rows} === {shown}")
            page.evaluate(f"{more}.click()")
        page.wait_for(f"{rows} === 252 && {more}.classList.contains('hidden')")
        states = "[...document.querySelectorAll('#tasks .state')].map((one) => one.textContent)"
        page.evaluate("document.querySelector('#tasks').scrollIntoView()")
        page.wait_for(f"{states}.filter((state) => state === 'not started').length === 251")
        page.evaluate("document.querySelector('#tasks .scroll').scrollTop = 1e6")
        page.evaluate("[...document.querySelectorAll('#tasks .link')].at(-2).focus()")
        (tmp_path / "go1").touch()
        page.wait_for(f"{states}.slice(-2).join() === 'done,running'")
        assert page.evaluate("document.activeElement.textContent").startswith("s"), "the keyboard stays where it is"
        page.evaluate("document.querySelector('#tasks .scroll').scrollTop = 0")
        page.wait_for(f"{states}.slice(0, 20).every((state) => state === 'done')")
        (tmp_path / "go2").touch()
        assert process.wait(PATIENCE) == 0
        page.wait_for(f"{states}.length === 252 && {states}.every((state) => state === 'done')")
    assert page.complaints == []
