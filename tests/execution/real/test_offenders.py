"""A real workflow of 200 tasks that exceed a limit, among 40 that do not.

The ones end for the right cause with all that they started, the others notice nothing, and the run goes to its end.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from shoal.execution.processes.process_table import marked_processes
from shoal.ledger.records import TasksPlanned
from support.command import shoal, wait_until
from support.launching import compile_program
from support.ledgers import final_records, records, run_ids

OFFENDER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* offender KIND: memory, time or files; a second word makes it a grandchild in a session of its own first. */
static void take_memory(void) {
    for (int taken = 0; taken < 400; taken++) memset(malloc(1 << 20), 1, 1 << 20);
}
static void fill_files(const char *directory) {
    static char piece[1 << 20];
    char path[256];
    for (int number = 0; number < 200; number++, usleep(2000)) {
        snprintf(path, sizeof path, "%s/%d", directory, number);
        int file = open(path, O_WRONLY | O_CREAT, 0644);
        if (file < 0 || write(file, piece, sizeof piece) < 0) exit(1);
        close(file);
    }
}
int main(int count, char **words) {
    if (count > 3 && fork()) sleep(600);
    if (count > 3 && setsid() > 0 && fork()) _exit(0);
    if (!strcmp(words[1], "memory")) take_memory();
    if (!strcmp(words[1], "files")) fill_files(words[2]);
    sleep(600);
    return 0;
}
"""
KINDS = {
    "memory": ("memory='24M'", "./offender memory {0}", "of memory, "),
    "memory of a grandchild": ("memory='24M'", "./offender memory {0} apart", "of memory, "),
    "one file": ("disk='4M'", "head -c 40000000 /dev/zero > {0}; sleep 600", "of disk"),
    "many files": ("disk='4M'", "mkdir {0}; ./offender files {0}", "of disk, more than its 4 MiB, after"),
    "files of a grandchild": ("disk='4M'", "mkdir {0}; ./offender files {0} apart", "of disk, more than its 4 MiB,"),
    "time": ("timeout=0.3", "./offender time {0}", "ran longer than its time limit (0.3 s)"),
    "time of a grandchild": ("timeout=0.3", "./offender time {0} apart", "ran longer than its time limit (0.3 s)"),
    "shells": (
        "timeout=0.3",
        "setsid sh -c '(sleep 600 &) &'; sleep 600 & wait",
        "ran longer than its time limit (0.3 s)",
    ),
}
"""What is declared, the command, and a part of the message."""
OFFENDERS, NEIGHBOURS = 200, 40


def write_rules(directory: Path) -> dict[str, str]:
    """Writes a workflow with all kinds in turn; returns what the message of each offender must contain."""
    lines, causes = [], {}
    for number in range(OFFENDERS):
        name = f"bad{number}"
        limit, command, causes[name] = list(KINDS.values())[number % len(KINDS)]
        lines.append(f"file({name!r}, run={command.format(name)!r}, {limit})")
        if number % (OFFENDERS // NEIGHBOURS) == 0:
            good = f"good{number}"
            command = f"head -c 200000 /dev/zero | wc -c > {good}; sleep 0.05; echo {number} >> {good}"
            lines.append(f"file({good!r}, run={command!r}, memory='100M', disk='10M', timeout=60)")
    (directory / "flow.py").write_text("from shoal import file\n\n" + "\n".join(lines) + "\n")
    return causes


def test_offenders_end_and_neighbours_do_not_notice(tmp_path: Path) -> None:
    compile_program(tmp_path, "offender", OFFENDER)
    causes = write_rules(tmp_path)
    shoal(tmp_path, "run", "flow.py", "--jobs", "12", "--keep-going", "--quiet", expect=1)
    workflow = tmp_path / "flow.py"
    names = names_of_tasks(workflow)
    ends = {names[record.task]: record for record in final_records(workflow)}
    assert len(ends) == OFFENDERS + NEIGHBOURS
    wrong = {name: ends[name].message for name, cause in causes.items() if cause not in ends[name].message}
    assert wrong == {}
    outcomes = Counter(ends[name].outcome for name in causes)
    assert outcomes == {"exhausted": OFFENDERS * 5 // 8, "timeout": OFFENDERS * 3 // 8}
    for name in ends.keys() - causes.keys():
        assert ends[name].outcome == "ok", (name, ends[name].message)
        assert (tmp_path / name).read_text() == f"200000\n{name.removeprefix('good')}\n"
    run = run_ids(workflow)[-1].encode()
    wait_until(lambda: marked_processes(run) == [], "no process of the run is left")


def names_of_tasks(workflow: Path) -> dict[int, str]:
    """By the numbers that the records use."""
    plans = [record for record in records(workflow) if isinstance(record, TasksPlanned)]
    return {task: name for plan in plans for task, name in zip(plan.first, plan.names, strict=True)}
