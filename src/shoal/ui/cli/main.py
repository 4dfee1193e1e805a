"""The `shoal` command: dispatches to the sub-command and turns errors into one sentence and an exit status.

Only the module of the called sub-command is imported, and nothing of the runtime, so that `--help` is fast.
Each sub-command is a module of this package with `add_arguments(parser)` and `execute(arguments) -> exit status`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from shoal import __version__
from shoal.errors import InputError, ShoalError
from shoal.ui.cli.parser import CommandParser, close_match
from shoal.ui.cli.streams import open_closed_streams, print_anything

COMMANDS = {
    "run": "run a workflow, or the rest of it",
    "plan": "show what would run, and why",
    "status": "show the state of a run, live or finished",
    "top": "watch a run in the terminal, full screen",
    "web": "show a run in a browser, live or finished",
    "report": "write a report of a run, or compare two runs",
    "export": "write a run as an RO-Crate, for archiving and exchange",
    "why": "explain why a task runs, waits, failed or is up to date",
    "output": "print the output of a task",
    "put": "put tokens into a running net",
    "cancel": "stop a run, or some of its tasks",
    "adopt": "record existing outputs as up to date",
    "clean": "remove the files that a workflow made",
    "graph": "draw the task graph",
    "cluster": "start, show, resize and stop a cluster of agents",
    "attach": "follow a run on a cluster again",
    "agent": "run the agent of one cluster node",
    "mount": "show memory objects as files",
    "simulate": "predict a run in virtual time",
    "bound": "compute lower bounds on the makespan of a workflow",
    "convert": "convert a workflow to another language",
    "monitor": "run one command and measure it",
    "sizing": "replay a trace of peak memory with every sizing policy",
    "makeflow": "run a Makeflow as the original program does, with its options",
    "makeflow-analyze": "check and describe a Makeflow, as the original program does",
    "makeflow-viz": "draw a Makeflow, as the original program does",
    "jx": "evaluate a JX expression",
}
STAND_INS = ("makeflow", "makeflow-analyze", "makeflow-viz", "jx", "monitor")
"""Commands that replace other programs and use their exit status for bad input, 1."""
OK, FAILED, BAD_INPUT, DEFECT, INTERRUPTED = 0, 1, 2, 70, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    print_anything()
    try:
        return dispatch(words)
    except InputError as error:
        return _complain(str(error), FAILED if words[0] in STAND_INS else BAD_INPUT)
    except ShoalError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return FAILED  # the reader closed the pipe; an error message would be of no use
    except OSError as error:  # for example no permission, a full disk or a vanished file
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return _complain(f"{where}{error.strerror or error}", FAILED)
    except UnicodeEncodeError as error:
        if error.encoding != sys.getfilesystemencoding() or error.encoding == "utf-8":
            return _report_bug()
        return _complain(
            f"{error.object!a} is not a valid file name in this locale, whose encoding is {error.encoding}; "
            "set LC_ALL=C.UTF-8 or another UTF-8 locale",
            BAD_INPUT,
        )
    except Exception as error:  # outermost handler: whatever is left is a defect of Shoal
        return _complain("interrupted", INTERRUPTED) if _was_interrupted(error) else _report_bug()
    finally:
        _flush()


def dispatch(words: list[str]) -> int:
    """Finds and executes the sub-command."""
    first = words[0] if words else "--help"
    if first in ("-h", "--help", "help"):
        if len(words) > 1 and words[1] in COMMANDS:
            return dispatch([words[1], "--help"])
        print(overview())
        return OK
    if first in ("-V", "--version"):
        print(f"shoal {__version__}")
        return OK
    if first not in COMMANDS:
        kind = "option" if first.startswith("-") else "command"
        hint = close_match(first, [*COMMANDS, "--help", "--version"])
        raise InputError(f"there is no {kind} {first!r}", remedy=hint or "'shoal --help' lists the commands")
    module = import_module(f"shoal.ui.cli.{first.replace('-', '_')}")
    parser = CommandParser(first, module.SUMMARY, module.USAGE, module.EXAMPLE)
    module.add_arguments(parser)
    rewrite = getattr(module, "rewrite", list)
    arguments = parser.parse(rewrite(words[1:]))
    status: int = OK if arguments is None else module.execute(arguments)
    return status


def overview() -> str:
    """The text of `shoal --help`."""
    lines = [
        "usage: shoal COMMAND [OPTION...]",
        "",
        "Runs workflows of many tasks, and only tasks that need to run.",
        "",
    ]
    lines += [f"  {name:17} {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "'shoal COMMAND --help' describes a command; 'shoal --version' prints the version."]
    lines += ["", "example:", "  shoal run flow.py --jobs 4"]
    return "\n".join(lines)


def _complain(sentence: str, status: int) -> int:
    from shoal.ui.cli.text import printable_lines

    _flush()
    try:
        print(printable_lines(f"shoal: {sentence}"), file=sys.stderr, flush=True)
    except OSError:
        pass  # standard error is closed; the exit status reports the error, too
    return status


def _flush() -> None:
    """Flushes standard output and error, and drops output that cannot be written. Otherwise Python would retry at exit,
    fail, and exit with status 120 whatever the status of the command is."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused this error: the clean-up code of a library may fail because of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _report_bug() -> int:
    import traceback

    _complain("this is a bug in Shoal; please report it with the lines below. Finished tasks are kept", DEFECT)
    traceback.print_exc()
    return DEFECT
