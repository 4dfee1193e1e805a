"""What holds for all tests: they may be interrupted, end what they started, and in CI one that is skipped has failed.

What a skipped test needs is installed in CI, or the installation is broken.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pluggy
import pytest

from support.command import end_started


def pytest_configure() -> None:
    """A shell starts what is to run in the background with SIGINT ignored, and the programs under test inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_outlives_its_test() -> Iterator[None]:
    yield
    end_started()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
