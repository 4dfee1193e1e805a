"""The settings of `shoal makeflow`, and the command line of a rule inside wrappers, sandbox, monitor and waiting loop.

Everything is shell text, so that all processes of a rule belong to its task and end with it. Words are quoted with
double quotes as in the original, because users read these command lines in the messages.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from shoal.compat.resource_monitor.start import quick_start
from shoal.formats.makeflow.graphs import quote

Collection = Literal["none", "ref_cnt", "on_demand", "all"]


class MonitorSettings(msgspec.Struct, frozen=True):
    """How every rule is measured (`--monitor` and its related options)."""

    directory: str
    name: str = "resource-rule-%%"
    interval: str | None = None
    time_series: bool = False
    opened_files: bool = False
    executable: str | None = None


class MakeflowSettings(msgspec.Struct, frozen=True):
    """The options of one `shoal makeflow` command line."""

    dagfile: str
    log: str
    command_line: str = "makeflow"
    jobs: int = 1
    retries: int = 0
    run_again: bool = True
    """Whether a command that requests it by its exit status is repeated even without `retries`."""
    collection: Collection = "none"
    collect_above: int = 16
    """With `on_demand`: number of existing files above which files are collected."""
    collect_below: int = 10 * 2**20
    """With `on_demand`: bytes of free disk space below which files are collected, regardless of their number."""
    wrappers: tuple[str, ...] = ()
    wrapper_inputs: tuple[str, ...] = ()
    wrapper_outputs: tuple[str, ...] = ()
    sandbox: bool = False
    monitor: MonitorSettings | None = None
    refuse_empty: bool = False
    check_files: bool = True
    save_failed: bool = True
    wait_for_files: int = 0
    summary: str | None = None
    verbose_log: bool = False

    def log_of_child(self, rule: int, workflow: str) -> str:
        """Returns the log file of the sub-workflow that a rule runs."""
        return f"{workflow}.{rule}.makeflowlog"


_POLLS_PER_SECOND = 10
_SPECIAL = re.compile(r'(["$`\\])')


def double_quoted(text: str) -> str:
    """Quotes a text as one word for the shell, in double quotes."""
    return '"' + _SPECIAL.sub(r"\\\1", text) + '"'


def wrapped(command: str, wrapper: str, rule: int) -> str:
    """Returns the wrapper with the command inserted: unchanged for `{}`, as one quoted word for `[]`.

    Without either, the wrapper is called with `/bin/sh -c` and the command.
    """
    wrapper = wrapper.replace("%%", str(rule))
    if "{}" in wrapper:
        return wrapper.replace("{}", command)
    if "[]" in wrapper:
        return wrapper.replace("[]", double_quoted(command))
    return f"{wrapper} /bin/sh -c {double_quoted(command)}"


def sandboxes(rule: int | str) -> list[str]:
    """Returns the sandbox directories that killed rules have left behind."""
    return glob.glob(f"task_{rule}_sandbox_??????")


def in_sandbox(command: str, rule: int, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Returns a command that runs in a directory of its own, with copies of its inputs, and copies its outputs back."""
    # The prefix `shoal_` avoids names that the rule exports: its command would see the values of this script.
    lines = ["shoal_base=$PWD", f'shoal_box=$(mktemp -d "$PWD/task_{rule}_sandbox_XXXXXX") || exit 1']
    lines.append('trap \'cd "$shoal_base"; rm -rf "$shoal_box"\' EXIT')
    lines.append("trap 'exit 143' TERM INT")
    for name in inputs:
        if not os.path.isabs(name):
            there = f'"$shoal_box"/{quote("./" + name)}'
            lines.append(f'mkdir -p "$(dirname {there})" && cp -r {quote("./" + name)} {there} || exit 1')
    lines.append(f'cd "$shoal_box" && /bin/sh -c {double_quoted(command)}; status=$?; cd "$shoal_base"')
    for name in outputs:
        if not os.path.isabs(name):
            here = quote("./" + name)
            made = f'"$shoal_box"/{here}'
            lines.append(
                f"if [ -e {made} ]; then rm -rf {here}; "
                f'mkdir -p "$(dirname {here})" && cp -r {made} {here} || status=1; fi'
            )
    lines.append("exit $status")
    return "\n".join(lines)


def monitored(
    command: str, rule: int, monitor: MonitorSettings, category: str, limits: Sequence[tuple[str, int]]
) -> str:
    """Returns the command under the resource monitor, which writes its summary into the monitor directory."""
    program = [monitor.executable] if monitor.executable else quick_start()
    name = monitor.name.replace("%%", str(rule))
    words = [*program, "--no-pprint", f"--with-output-files={os.path.join(monitor.directory, name)}"]
    for resource, value in limits:
        words += ["-L", f"{resource}: {value}"]
    words += ["-V", f"category:{category or 'default'}"]
    if monitor.interval:
        words.append(f"--interval={monitor.interval}")
    if monitor.time_series:
        words.append("--with-time-series")
    if monitor.opened_files:
        words.append("--with-inotify")
    return " ".join(quote(word) if not word.startswith("-") else _option(word) for word in words) + (
        f" --sh {double_quoted(command)}"
    )


def _option(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={quote(value)}" if equals else name


def waiting_for(command: str, outputs: Sequence[str], seconds: int) -> str:
    """Returns a command that afterwards waits until its outputs exist, at most `seconds`: for slow shared file
    systems."""
    tests = " && ".join(f"[ -e {quote('./' + name if not os.path.isabs(name) else name)} ]" for name in outputs)
    if not tests:
        return command
    polls = seconds * _POLLS_PER_SECOND
    return (
        f"/bin/sh -c {double_quoted(command)}; status=$?; polls=0\n"
        f"while [ $status -eq 0 ] && [ $polls -lt {polls} ] && ! {{ {tests}; }}; do\n"
        f"sleep {1 / _POLLS_PER_SECOND}; polls=$((polls + 1))\n"
        "done; exit $status"
    )
