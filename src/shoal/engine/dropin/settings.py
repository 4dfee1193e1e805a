"""What the options of the original program come to."""

from __future__ import annotations

from typing import Literal

import msgspec

Collection = Literal["none", "ref_cnt", "on_demand", "all"]


class Monitor(msgspec.Struct, frozen=True):
    """How every rule is measured (`--monitor` and its companions)."""

    directory: str
    name: str = "resource-rule-%%"
    interval: str | None = None
    time_series: bool = False
    opened_files: bool = False
    executable: str | None = None


class Settings(msgspec.Struct, frozen=True):
    """One command line, as the run reads it."""

    dagfile: str
    log: str
    command_line: str = "makeflow"
    jobs: int = 1
    retries: int = 0
    run_again: bool = True
    """Whether a command that asks for it by its exit status is repeated even without `retries`."""
    collection: Collection = "none"
    collect_above: int = 16
    """With `on_demand`, files that may stand there before any is collected."""
    collect_below: int = 10 * 2**20
    """With `on_demand`, bytes of free disk below which files are collected whatever their number."""
    wrappers: tuple[str, ...] = ()
    wrapper_inputs: tuple[str, ...] = ()
    wrapper_outputs: tuple[str, ...] = ()
    sandbox: bool = False
    monitor: Monitor | None = None
    refuse_empty: bool = False
    check_files: bool = True
    save_failed: bool = True
    wait_for_files: int = 0
    summary: str | None = None
    verbose_log: bool = False

    def log_of_child(self, rule: int, workflow: str) -> str:
        """The log of the sub-workflow that a rule runs."""
        return f"{workflow}.{rule}.makeflowlog"
