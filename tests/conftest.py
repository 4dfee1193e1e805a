"""What holds for all tests: they may be interrupted, end what they started, and in CI one that is skipped has failed.

What a skipped test needs is installed in CI, or the installation is broken.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pluggy
import pytest
from hypothesis import HealthCheck, settings

from support.command import end_started

# How long an example takes says more about what else the machine does than about what is tested.
settings.register_profile("at any speed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")
# For a look by hand: --hypothesis-profile many
settings.register_profile("many", settings(), max_examples=10_000)


def pytest_configure() -> None:
    """A shell starts what is to run in the background with SIGINT ignored, `nohup` with SIGHUP, and the programs under
    test would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


_LONG_FIRST = ("real", "docs", "e2e", "differential", "seeded", "unit")
"""Directories whose tests wait for something, or take long: with them at the end, cores would idle there."""


_SHARING = ("test_sizing_modes",)
"""Further files whose tests use what the first of them has made."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first. What shares a cluster, a Slurm or a Redis stays in one process, so that it is started once."""
    order = {name: at for at, name in enumerate(_LONG_FIRST)}
    kind_of = {item: item.path.parent.name for item in items}
    items.sort(key=lambda item: order.get(kind_of[item], len(order)))
    for item in items:
        if kind_of[item] in ("real", "e2e") or item.path.stem in _SHARING:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
