"""Ctrl-C at any moment of a command line is told as such."""

import argparse

import pytest

from shoal.ui.cli import main


def test_interrupt_that_a_library_hides_behind_its_own_clean_up_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> argparse.Namespace:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("save_required")

    monkeypatch.setattr(main, "dispatch", interrupted)
    assert main.main(["run"]) == main.INTERRUPTED
    assert capsys.readouterr().err == "shoal: interrupted\n"
