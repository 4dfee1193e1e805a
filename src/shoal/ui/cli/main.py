"""The `shoal` command: finds the sub-command, and turns what goes wrong into one sentence and an exit status.

Nothing of the engine is imported here, and of the sub-commands only the one that is called, so that `--help` is quick.
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
from shoal.ui.cli.screen import open_closed_streams, print_anything

COMMANDS = {
    "run": "run a workflow, or what is left of it",
    "plan": "show what would run, and why",
    "status": "show how a run stands, live or afterwards",
    "top": "watch a run in the terminal, full screen",
    "web": "show a run in a browser, live or afterwards",
    "report": "write a page about a run, or about two of them",
    "export": "write a run as an RO-Crate, for archives and other programs",
    "why": "say why a task runs, waits, failed or need not run",
    "output": "print what a task wrote",
    "put": "put tokens into a net that is being run",
    "cancel": "stop a run, or some of its tasks",
    "adopt": "take outputs that are there as made",
    "clean": "remove what a workflow made",
    "graph": "draw the tasks and what they need",
    "cluster": "start, resize, look at and end a cluster of agents",
    "attach": "follow a run on a cluster again",
    "agent": "be one node of a cluster",
    "mount": "show memory objects as files",
    "simulate": "predict a run in virtual time",
    "bound": "say how fast a workflow could run at best",
    "convert": "write a workflow in another language",
    "monitor": "run one command and measure it",
    "sizing": "replay a trace of peaks under every way of sizing",
    "makeflow": "run a Makeflow as the original program does, with its options",
    "makeflow-analyze": "check and describe a Makeflow, as the original program does",
    "makeflow-viz": "draw a Makeflow, as the original program does",
    "jx": "evaluate a JX expression",
}
STAND_INS = ("makeflow", "makeflow-analyze", "makeflow-viz", "jx", "monitor")
"""Commands that stand in for programs whose exit status for bad input is 1."""
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
        return FAILED  # whoever read us has gone, and does not want to hear of it
    except OSError as error:  # the user's machine: no permission, no room, a file that went away
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return _complain(f"{where}{error.strerror or error}", FAILED)
    except UnicodeEncodeError as error:
        if error.encoding != sys.getfilesystemencoding() or error.encoding == "utf-8":
            return _own_up()
        return _complain(
            f"{error.object!a} is no name of a file in this locale, whose encoding is {error.encoding}; "
            "set LC_ALL=C.UTF-8, or another one with UTF-8",
            BAD_INPUT,
        )
    except Exception as error:  # the top of the process: else it is a defect of Shoal, not of the user's workflow
        return _complain("interrupted", INTERRUPTED) if _was_interrupted(error) else _own_up()
    finally:
        _flush()


def dispatch(words: list[str]) -> int:
    """Finds the sub-command and executes it."""
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
    lines = ["usage: shoal COMMAND [OPTION...]", "", "Runs workflows of many tasks, and only what is left of them.", ""]
    lines += [f"  {name:17} {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "'shoal COMMAND --help' says more; 'shoal --version' which version this is."]
    lines += ["", "example:", "  shoal run flow.py --jobs 4"]
    return "\n".join(lines)


def _complain(sentence: str, status: int) -> int:
    from shoal.ui.cli.text import printable_lines

    _flush()
    try:
        print(printable_lines(f"shoal: {sentence}"), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody is there to read it; the exit status says it, too
    return status


def _flush() -> None:
    """Writes out what was printed. What cannot be written is dropped: else Python would try again at exit, fail, and
    end with status 120 whatever the command's own status is."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is hidden behind the error: the clean-up of a library may fail at it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _own_up() -> int:
    import traceback

    _complain("this is a defect of Shoal, please report it with the lines below; what had finished is kept", DEFECT)
    traceback.print_exc()
    return DEFECT
