"""What messages about failures have in common, and what of them is shown."""

from __future__ import annotations

import pytest

from shoal.ledger.views.failures import Causes, cause_of, common_text
from shoal.ui.report.data import run_data
from support.views import ended, over, planned, started, view_of


@pytest.mark.parametrize(
    ("messages", "text", "such_as"),
    [
        (["No module named 'numpy'"] * 2, "No module named 'numpy'", ""),
        (["No module named 'numpy'", "No module named 'scipy'"], "No module named '…'", "'numpy'"),
        (["'a.x' has 3 lines of 'head'", "'b.x' has 3 lines of 'head'"], "'…' has 3 lines of 'head'", "'a.x'"),
        (["exit status 3 after 1.5 s", "exit status 3 after 2 s"], "exit status 3 after N s", ""),
        ([f"exit status 1; what it had made is kept as .shoal/f/partial/{x}" for x in "ab"], "exit status 1", ""),
        (["plain"], "plain", ""),
        ([""], "", ""),
    ],
)
def test_what_all_messages_of_a_cause_say_is_shown(messages: list[str], text: str, such_as: str) -> None:
    assert len({cause_of(message) for message in messages}) == 1
    assert common_text(messages) == (text, such_as)


def test_the_end_of_a_long_message_is_kept() -> None:
    shown, _ = common_text(["begin " + "x" * 1000 + " the cause"])
    assert len(shown) == 300 and shown.startswith("begin x") and shown.endswith("x the cause")


def test_causes_are_counted_under_what_their_messages_share() -> None:
    causes = Causes()
    for message in ("no 'a'", "exit status 1", "no 'a'", "no 'b'", "no 'b'"):
        causes.add(message)
    assert causes.most_common(3) == [("no '…'", 4), ("exit status 1", 1)]


def test_a_report_names_what_is_missing() -> None:
    """It said "No module named '…'", which hides the one word that matters."""
    bad = [ended(task, 0.0, 1.0, "failed", message="No module named 'numpy'") for task in range(3)]
    data = run_data(view_of(started(3), planned(list("aaa")), *bad, over(1.0, "failed")), workflow="flow.py")
    for told in (data["summary"][-1], data["advice"][0], data["failures"][0]["text"]):
        assert "No module named 'numpy'" in told
    bad[2] = ended(2, 0.0, 1.0, "failed", message="No module named 'scipy'")
    data = run_data(view_of(started(3), planned(list("aaa")), *bad, over(1.0, "failed")), workflow="flow.py")
    assert "No module named '…' (such as 'numpy')" in data["advice"][0]
