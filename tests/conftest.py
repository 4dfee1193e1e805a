"""In CI a test that is skipped is a failure: what it needs is installed there, or the installation is broken."""

from __future__ import annotations

import os
from collections.abc import Generator

import pluggy
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
