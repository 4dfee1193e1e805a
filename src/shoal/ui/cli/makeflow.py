"""`shoal makeflow`: accepts the command lines of the original Makeflow and reproduces its behaviour."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_settings

if TYPE_CHECKING:
    from shoal.compat.makeflow.command_wrapping import Collection, MakeflowSettings, MonitorSettings
    from shoal.core.resources import Resources
    from shoal.execution.workflow_loader import Language

SUMMARY = """Runs a Makeflow (or, with --json or --jx, a workflow in those languages) in the current directory as the
original program does: same options, messages, log and exit status, with three exceptions: a run in which a target was
not made never counts as a success, nothing is retried unless requested, and edited files resume according to their
rules. Exit status: 0 if everything was made, 1 if not."""
USAGE = "[OPTION...] [FILE]"
EXAMPLE = "shoal makeflow -j 4 --retry-count 2 blast.mf"
DEFAULT_FILE = "Makeflow"
MANY_RETRIES = 5
CLEANED = ("all", "intermediates", "outputs", "cache")
ALLOCATIONS = ("throughput", "waste", "fixed")
COLLECTIONS = ("none", "ref_cnt", "on_demand", "all")
BATCH_SYSTEMS = ("wq", "vine", "condor", "sge", "uge", "pbs", "lsf", "torque", "moab", "mpi", "slurm", "chirp",
                 "amazon", "amazon-batch", "lambda", "mesos", "k8s", "cluster", "flux")  # fmt: skip

# Options without effect on a local run: they are accepted and ignored.
IGNORED_FLAGS = ("-a --advertise", "-A --disable-afs-check", "-E", "-O", "-M", "--disable-cache",
                 "--disable-heartbeat", "--safe-submit-mode", "--verbose-jobnames", "--ignore-memory-spec",
                 "--send-environment")  # fmt: skip
IGNORED_VALUES = ("-B --batch-options", "-C --catalog-server", "-d --debug", "-F --wq-fast-abort",
                  "-L --batch-log", "-m --email", "-N --project-name", "-o --debug-file", "-p --port",
                  "-P --priority", "-S --submission-timeout", "-t --wq-keepalive-timeout",
                  "-u --wq-keepalive-interval", "-W --wq-schedule", "-Z --port-file", "--debug-rotate-max",
                  "--password", "--shared-fs", "--working-dir", "--batch-mem-type", "--mpi-cores", "--mpi-memory",
                  "--file-status", "--file-status-interval", "--work-queue-preferred-connection", "--cache",
                  "--cache-mode", "--storage-type", "--storage-print", "--amazon-config", "--k8s-image")  # fmt: skip
REFUSED = ("--docker", "--docker-tar", "--docker-opt", "--singularity", "--singularity-opt", "--umbrella-spec",
           "--umbrella-binary", "--umbrella-log-prefix", "--umbrella-mode", "--mounts", "--archive-s3",
           "--archive-dir", "--storage-limit", "--parrot-path", "--env-replace-path", "--mesos-master", "--tlq",
           "--lambda-config", "--amazon-batch-config", "--vc3-exe", "--vc3-log", "--vc3-options")  # fmt: skip
REFUSED_FLAGS = ("--archive", "--archive-read", "--archive-write", "--enforcement", "--vc3-builder")


def add_arguments(parser: CommandParser) -> None:
    parser.allow_abbrev = True  # as the option parser of the original does
    parser.add_argument("files", nargs="*", metavar="FILE", help="the workflow (default: Makeflow)")
    _add_basic(parser)
    _add_data(parser)
    _add_wrapping(parser)
    other = parser.add_argument_group("accepted for compatibility and ignored")
    for names in IGNORED_FLAGS:
        other.add_argument(*names.split(), action="store_true", help=argparse.SUPPRESS)
    for names in IGNORED_VALUES:
        other.add_argument(*names.split(), metavar="X", action="append", help=argparse.SUPPRESS)
    for name in REFUSED:
        other.add_argument(name, metavar="X", help=argparse.SUPPRESS)
    for name in REFUSED_FLAGS:
        other.add_argument(name, action="store_true", help=argparse.SUPPRESS)


def _add_basic(parser: CommandParser) -> None:
    basic = parser.add_argument_group("basic options")
    basic.add_argument("-T", "--batch-type", metavar="TYPE", help="local, or dryrun: write FILE.sh and run nothing")
    basic.add_argument(
        "-c", "--clean", metavar="KIND", nargs="?", help=f"remove files instead of running: {', '.join(CLEANED)}"
    )
    basic.add_argument("-X", "--change-directory", metavar="DIR", help="run in this directory")
    basic.add_argument("--argv", metavar="FILE", help="read options from a JSON object")
    basic.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    basic.add_argument("--json", action="store_true", help="the workflow is written in JSON")
    basic.add_argument("--jx", action="store_true", help="the workflow is written in JX")
    add_settings(basic)
    basic.add_argument("-j", "--max-local", metavar="N", help="jobs to run at once (default: one for each core)")
    basic.add_argument("-J", "--max-remote", metavar="N", help=argparse.SUPPRESS)
    basic.add_argument("-R", "--retry", action="store_true", help="repeat failed jobs up to 5 times")
    basic.add_argument("-r", "--retry-count", metavar="N", help="repeat failed jobs up to N times")
    basic.add_argument("-l", "--makeflow-log", metavar="FILE", help="the log (default: FILE.makeflowlog)")
    basic.add_argument("--log-verbose", action="store_true", help="describe every rule in a new log")
    basic.add_argument("-f", "--summary-log", metavar="FILE", help="write a summary at the end")
    basic.add_argument("--local-cores", metavar="N", help="cores that rules may use")
    basic.add_argument("--local-memory", metavar="MB", help="megabytes of memory that rules may use")
    basic.add_argument("--local-disk", metavar="MB", help="megabytes of disk that rules may use")
    basic.add_argument("--allocation", metavar="MODE", help=argparse.SUPPRESS)


def _add_data(parser: CommandParser) -> None:
    data = parser.add_argument_group("files")
    data.add_argument("-g", "--gc", metavar="KIND", help=f"collect garbage: {', '.join(COLLECTIONS)}")
    data.add_argument("-G", "--gc-count", metavar="N", help="number of files at which on_demand collects (16)")
    data.add_argument("--gc-size", metavar="BYTES", help="free disk below which on_demand collects (10M)")
    data.add_argument("--skip-file-check", action="store_true", help="start even if source files are missing")
    data.add_argument("--do-not-save-failed-output", action="store_true", help="make no makeflow.failed.N directories")
    data.add_argument(
        "--wait-for-files-upto", metavar="SECONDS", help="wait up to this time for outputs after a command has ended"
    )
    data.add_argument("-z", "--zero-length-error", action="store_true", help="treat an empty output file as a failure")


def _add_wrapping(parser: CommandParser) -> None:
    wrapping = parser.add_argument_group("command wrapping")
    wrapping.add_argument(
        "--wrapper", metavar="CMD", action="append", default=[], help="{} is the command, [] quoted, %% the rule"
    )
    wrapping.add_argument(
        "--wrapper-input", metavar="FILE", action="append", default=[], help="an input file of the wrapper"
    )
    wrapping.add_argument(
        "--wrapper-output", metavar="FILE", action="append", default=[], help="an output file of the wrapper"
    )
    wrapping.add_argument("--sandbox", action="store_true", help="run each rule in a directory of its own")
    wrapping.add_argument("--monitor", metavar="DIR", help="measure every rule and write summaries to DIR")
    wrapping.add_argument("--monitor-exe", metavar="FILE", help="use this monitor program")
    wrapping.add_argument("--monitor-interval", metavar="SECONDS", help="seconds between two measurements (1)")
    wrapping.add_argument("--monitor-with-time-series", action="store_true", help="also write a time series")
    wrapping.add_argument("--monitor-with-opened-files", action="store_true", help="also write the opened files")
    wrapping.add_argument("--monitor-log-fmt", metavar="NAME", help="name of the summaries, %% is the rule")
    wrapping.add_argument("--monitor-measure-dir", action="store_true", help="measure the directory too (always done)")


def rewrite(words: Sequence[str], inside: tuple[str, ...] = ()) -> list[str]:
    """Rewrites what argparse cannot parse: `-c` without a value, and `--argv`, which is replaced by the file's options.

    `inside` are the option files that the words come from.
    """
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-c" or ("--clean".startswith(word) and word.startswith("--cl")):
            plain.append("--clean=all")
        elif word.startswith("-c") and len(word) > 2:
            plain.append(f"--clean={word[2:]}")
        elif word == "--argv" or word.startswith("--argv="):
            name = word.partition("=")[2] if "=" in word else rest.pop(0) if rest else ""
            rest = [*_words_of_file(name, inside), *rest]
        elif word == "--":  # everything after it is a file name, even if it looks like an option
            plain += [f"./{name}" if name.startswith("-") else name for name in rest]
            break
        else:
            plain.append(word)
    return plain


def _words_of_file(name: str, inside: tuple[str, ...]) -> list[str]:
    from shoal.compat.makeflow.run import argv_words
    from shoal.execution.workflow_loader import read_file

    if not name:
        raise InputError("--argv needs a file name")
    if name in inside:
        raise InputError(f"the option file {name!r} includes itself", file=inside[-1])
    return rewrite(argv_words(read_file(name), name), (*inside, name))


def execute(arguments: argparse.Namespace) -> int:
    from shoal import __version__
    from shoal.execution.workflow_loader import load_document

    if arguments.version:
        print(f"makeflow stand-in of shoal {__version__}")
        return 0
    _refuse(arguments)
    kind = _batch_type(arguments)
    language = _language(arguments)
    path = _file_of(arguments)
    print(f"parsing {path}...")
    document = load_document(path, language=language, jx=arguments.jx_settings)
    if arguments.change_directory:
        os.chdir(arguments.change_directory)
    settings = _settings(arguments, path)
    node = _node(arguments, settings.jobs)
    _say_what_there_is(node, settings.jobs)
    print(f"checking {path} for consistency...\n{path} has {len(document.rules)} rules.", flush=True)
    if arguments.clean is not None:
        from shoal.compat.makeflow.run import clean

        return clean(settings, document, language, arguments.clean)
    from shoal.compat.makeflow.run import run, write_dry_run

    if kind == "dryrun":
        return write_dry_run(settings, document, language)
    return run(settings, document, language, node)


def _refuse(arguments: argparse.Namespace) -> None:
    for option in (*REFUSED, *REFUSED_FLAGS):
        if getattr(arguments, option[2:].replace("-", "_")):
            raise InputError(f"{option} is not supported", remedy="leave it out, or put it into a --wrapper")
    if arguments.clean is not None and arguments.clean not in CLEANED:
        raise InputError(f"unknown clean option {arguments.clean}", remedy=f"use one of {', '.join(CLEANED)}")
    if arguments.allocation is not None and arguments.allocation not in ALLOCATIONS:
        raise InputError(
            f"allocation mode {arguments.allocation!r} is not valid", remedy=f"use one of {', '.join(ALLOCATIONS)}"
        )
    if arguments.gc is not None and arguments.gc.lower() not in COLLECTIONS:
        raise InputError(
            f"invalid garbage collection method: {arguments.gc}", remedy=f"use one of {', '.join(COLLECTIONS)}"
        )


def _batch_type(arguments: argparse.Namespace) -> str:
    kind = arguments.batch_type or os.environ.get("MAKEFLOW_BATCH_QUEUE_TYPE") or "local"
    if arguments.clean is not None:
        return "local"
    if kind in ("local", "dryrun"):
        return str(kind)
    if kind in BATCH_SYSTEMS:
        raise InputError(f"the batch system {kind!r} is not supported here", remedy="use -T local or -T dryrun")
    raise InputError(f"unknown batch queue type: {kind}", remedy="use -T local or -T dryrun")


def _language(arguments: argparse.Namespace) -> Language:
    if arguments.json:
        return "json"
    if arguments.jx or arguments.jx_settings:
        return "jx"
    return "makeflow"


def _file_of(arguments: argparse.Namespace) -> str:
    files: list[str] = arguments.files
    if len(files) == 1:
        return files[0]
    if len(files) > 1:
        raise InputError(f"only one workflow file is accepted, not {len(files)} ({' '.join(files)})")
    if not os.path.exists(DEFAULT_FILE):
        raise InputError('no workflow is named and there is no file "Makeflow"', remedy="name it: shoal makeflow FILE")
    return DEFAULT_FILE


def _settings(arguments: argparse.Namespace, path: str) -> MakeflowSettings:
    from shoal.compat.makeflow.command_wrapping import MakeflowSettings
    from shoal.core.resources import parse_size

    retries = MANY_RETRIES if arguments.retry else 0
    if arguments.retry_count is not None:
        retries = max(0, _number(arguments.retry_count, "--retry-count"))
    collection = cast("Collection", (arguments.gc or "none").lower())
    return MakeflowSettings(
        dagfile=path,
        log=arguments.makeflow_log or path + ".makeflowlog",
        command_line=shlex.join(["makeflow", *sys.argv[2:]]),
        jobs=_jobs(arguments),
        retries=retries,
        run_again=arguments.retry_count is None,
        collection=collection,
        collect_above=_number(arguments.gc_count or "16", "--gc-count"),
        collect_below=parse_size(arguments.gc_size or "10M", "--gc-size"),
        wrappers=tuple(arguments.wrapper),
        wrapper_inputs=tuple(arguments.wrapper_input),
        wrapper_outputs=tuple(arguments.wrapper_output),
        sandbox=arguments.sandbox,
        monitor=_monitor(arguments),
        refuse_empty=arguments.zero_length_error,
        check_files=not arguments.skip_file_check,
        save_failed=not arguments.do_not_save_failed_output,
        wait_for_files=max(0, _number(arguments.wait_for_files_upto or "0", "--wait-for-files-upto")),
        summary=arguments.summary_log,
        verbose_log=arguments.log_verbose,
    )


def _monitor(arguments: argparse.Namespace) -> MonitorSettings | None:
    from shoal.compat.makeflow.command_wrapping import MonitorSettings

    if arguments.monitor is None:
        return None
    if not arguments.monitor:
        raise InputError("--monitor needs a directory name")
    name = arguments.monitor_log_fmt or "resource-rule-%%"
    return MonitorSettings(
        arguments.monitor,
        name if "%%" in name else name.replace("%", "%%"),
        arguments.monitor_interval,
        arguments.monitor_with_time_series,
        arguments.monitor_with_opened_files,
        arguments.monitor_exe,
    )


def _jobs(arguments: argparse.Namespace) -> int:
    """The smallest limit that options and environment variables set; without one, the number of cores."""
    from shoal.execution.process_limits import available_cores

    def limit(value: str | None, option: str, variable: str) -> list[int]:
        number = _number(value, option) if value else 0
        bound = os.environ.get(variable)
        return [min(number, _number(bound, variable)) if bound else number] if number else []

    found = [
        *limit(arguments.max_local, "--max-local", "MAKEFLOW_MAX_LOCAL_JOBS"),
        *limit(arguments.max_remote, "--max-remote", "MAKEFLOW_MAX_REMOTE_JOBS"),
    ]
    if not found:
        cores = _number(arguments.local_cores or "0", "--local-cores") or available_cores()
        found = limit(str(cores), "--local-cores", "MAKEFLOW_MAX_LOCAL_JOBS")
    return max(1, min(found))


def _node(arguments: argparse.Namespace, jobs: int) -> Resources:
    from shoal.execution.run_options import this_node

    declared = {"jobs": str(jobs), "gpus": "1000000"}
    for name, unit in (("cores", ""), ("memory", "M"), ("disk", "M")):
        value = _number(getattr(arguments, f"local_{name}") or "0", f"--local-{name}")
        if value:
            declared[name] = f"{value}{unit}"
    return this_node(".", declared=declared)


def _say_what_there_is(node: Resources, jobs: int) -> None:
    from shoal.core.resources import FRACTION

    cores, memory, disk = node.get("cores") / FRACTION, node.get("memory") >> 20, node.get("disk") >> 20
    print(f"local resources: {cores:g} cores, {memory} MB memory, {disk} MB disk\nmax running local jobs: {jobs}")


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} must be a whole number, not {text!r}") from None
