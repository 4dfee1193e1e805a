"""Nodes as jobs of Slurm: one array per submission, one `squeue` for all that is asked, one `scancel` to end them.

The agent takes the place of the batch shell (`exec`), so the signals meant for the job reach it: SIGTERM by `scancel`,
and by `--signal` before the time limit. Slurm may send the latter up to a minute early. The folder of the logs, the
access file and the program must be visible on the nodes, which is how clusters with Slurm are built.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from shoal.cluster.nodes.local import last_line
from shoal.cluster.nodes.slurm_reasons import is_ending, phase_of, why_ended, why_running, why_waiting
from shoal.cluster.nodes.starters import (
    NODE_NAME,
    Handle,
    NodePhase,
    NodeStatus,
    NotAnsweringError,
    SlurmHandle,
    StartResult,
    new_names,
)
from shoal.errors import InputError

NOTICE_SECONDS = 30
"""How long before the end of its allocation a node is told."""
ANSWER_SECONDS = 60.0
_IDS_AT_ONCE = 500
_BY_SLURM = ("COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED")
"""Ends that the agent's last words do not explain."""
_FORGOTTEN = "ended; Slurm has no record of how"
_LONGEST_SENTENCE = 300
_REFUSED = {
    "array": "nodes are numbered by us; say how many with the size of the cluster",
    "nodes": "every node is a job of its own; say how many with the size of the cluster",
    "output": "logs are kept with the cluster",
    "error": "logs are kept with the cluster",
    "wrap": "the command is the agent's",
    "wait": "submitting must not wait for the jobs",
    "test-only": "it would submit nothing",
    "clusters": "choose the cluster by SLURM_CONF",
}
"""Options of sbatch that would break what is done here, and why."""
_SHORT = {"a": "array", "N": "nodes", "o": "output", "e": "error", "W": "wait", "M": "clusters"}


class SlurmStarter:
    """Submits a command as jobs, with the user's own options of sbatch."""

    def __init__(
        self,
        command: Sequence[str],
        logs: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        job_name: str = "shoal",
    ) -> None:
        check_options(options)
        self.command = list(command)
        self.logs = os.path.abspath(logs)
        self.options = list(options)
        self.environment = dict(environment or {})
        self.job_name = job_name

    def start(self, count: int, beside: Iterable[Handle] = ()) -> StartResult:
        """One array for all; where arrays are not allowed, or not so large, single jobs."""
        if count < 1:
            return StartResult()
        os.makedirs(self.logs, exist_ok=True)
        if count > 1:
            names = new_names(count)
            job, problem = self._submit(names[0].rpartition("-")[0], count)
            if job is not None:
                return StartResult(tuple(self._handle(name, f"{job}_{index}") for index, name in enumerate(names)))
            if "array" not in problem.lower():
                return StartResult(problems=(problem,))
        handles: list[Handle] = []
        for _ in range(count):
            (name,) = new_names(1)
            job, problem = self._submit(name.rpartition("-")[0], 1)
            if job is None:
                return StartResult(tuple(handles), (problem,))
            handles.append(self._handle(name, job))
        return StartResult(tuple(handles))

    def _handle(self, name: str, job: str) -> SlurmHandle:
        return SlurmHandle(name, job, os.path.join(self.logs, f"{name}.log"))

    def _submit(self, stem: str, count: int) -> tuple[str | None, str]:
        """The job's number, or a sentence that says why there is none."""
        number = "%a" if count > 1 else "0"
        words = ["sbatch", f"--job-name={self.job_name}", f"--signal=B:TERM@{NOTICE_SECONDS}", "--export=ALL"]
        words += [*self.options, "--parsable", "--nodes=1", "--no-requeue", "--open-mode=append"]
        words.append(f"--output={self.logs.replace('%', '%%')}/{stem}-{number}.log")
        if count > 1:
            words.append(f"--array=0-{count - 1}")
        try:
            done = _call(words, self._script(stem))
        except NotAnsweringError as error:
            return None, str(error)
        job = done.stdout.strip().partition(";")[0]
        if done.returncode == 0 and job.isdigit():
            return job, ""
        return None, f"Slurm does not take the nodes: {_said(done)}"

    def _script(self, stem: str) -> str:
        """What runs on the node; older versions of Slurm do not tell a job when it ends, so it asks."""
        given = [f"export {key}={shlex.quote(value)}" for key, value in self.environment.items()]
        program = shlex.quote(self.command[0])
        return "\n".join(
            [
                "#!/bin/sh",
                f'export {NODE_NAME}={stem}-"${{SLURM_ARRAY_TASK_ID:-0}}"',
                "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
                'if [ -z "${SLURM_JOB_END_TIME:-}" ]; then',
                '    ends=$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="${job:-$SLURM_JOB_ID}" --format=%e)',
                '    case $ends in "" | *[!0-9]*) ;; *) export SLURM_JOB_END_TIME="$ends" ;; esac',
                "fi",
                *given,
                f"command -v {program} >/dev/null || {{",
                f'    echo "$(hostname) has no "{program}": is the file system shared?"',
                "    exit 127",
                "}",
                f"exec {shlex.join(self.command)}",
                "",
            ]
        )

    def poll(self, handles: Iterable[Handle]) -> dict[Handle, NodeStatus]:
        ours = [handle for handle in handles if isinstance(handle, SlurmHandle)]
        rows = _queue(sorted({handle.job.partition("_")[0] for handle in ours}, key=int))
        standings: dict[Handle, NodeStatus] = {}
        missing = []
        for handle in ours:
            row = rows.get(handle.job)
            if row is None:
                missing.append(handle)
            else:
                standings[handle] = _standing(handle, *row)
        recorded = _accounting([handle.job for handle in missing])
        for handle in missing:
            state = recorded.get(handle.job)
            words = why_ended(state) if state and phase_of(state) is NodePhase.ENDED else _FORGOTTEN
            standings[handle] = NodeStatus(NodePhase.ENDED, _with_log(words, handle))
        return standings

    def stop(self, handles: Iterable[Handle]) -> None:
        """Slurm sends SIGTERM to what runs, and SIGKILL to what still runs after its KillWait."""
        jobs = [handle.job for handle in handles if isinstance(handle, SlurmHandle)]
        for begin in range(0, len(jobs), _IDS_AT_ONCE):
            done = _call(["scancel", "--quiet", *jobs[begin : begin + _IDS_AT_ONCE]])
            if done.returncode != 0 and "Invalid job id" not in done.stderr:
                raise NotAnsweringError(f"Slurm does not cancel the nodes: {_said(done)}")


def check_options(options: Sequence[str]) -> None:
    """Refuses options of sbatch under which nodes could not be counted or found again."""
    for option in options:
        if option.startswith("--"):
            given = option[2:].partition("=")[0]
            # sbatch takes any beginning of a name that is not ambiguous.
            name = next((known for known in _REFUSED if given and known.startswith(given)), None)
        else:
            name = _SHORT.get(option[1:2]) if option.startswith("-") else None
        if name is not None:
            raise InputError(f"the option {option} of sbatch cannot be used here: {_REFUSED[name]}")


def _queue(jobs: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """State, reason and end of every job and element that Slurm still knows."""
    rows: dict[str, tuple[str, str, str]] = {}
    for begin in range(0, len(jobs), _IDS_AT_ONCE):
        some = ",".join(jobs[begin : begin + _IDS_AT_ONCE])
        words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={some}", "--format=%i|%T|%e|%r"]
        done = _call(words)
        # A single number that Slurm has forgotten is an error to it, several are not.
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise NotAnsweringError(f"Slurm does not tell how the nodes stand: {_said(done)}")
        for line in done.stdout.splitlines():
            job, _, rest = line.strip().partition("|")
            state, _, rest = rest.partition("|")
            ends, _, reason = rest.partition("|")
            rows[job] = (state, reason, ends)
    return rows


def _accounting(jobs: Sequence[str]) -> dict[str, str]:
    """States of jobs that the queue has forgotten; nothing where Slurm keeps no accounts."""
    if not jobs:
        return {}
    bases = sorted({job.partition("_")[0] for job in jobs}, key=int)
    try:
        done = _call(
            ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State", "-j", ",".join(bases)]
        )
    except (InputError, NotAnsweringError):
        return {}
    return dict(line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)


def _standing(handle: SlurmHandle, state: str, reason: str, ends: str) -> NodeStatus:
    phase = phase_of(state)
    if phase is NodePhase.WAITING:
        return NodeStatus(phase, why_waiting(reason))
    if phase is NodePhase.RUNNING:
        return NodeStatus(phase, why_running(state), float(ends) if ends.isdigit() else None, is_ending(state))
    words = why_ended(state, reason)
    return NodeStatus(phase, words if state.startswith(_BY_SLURM) else _with_log(words, handle))


def _with_log(words: str, handle: SlurmHandle) -> str:
    said = last_line(handle.log)
    return f"{words}: {said}" if said else words


def submitting_environment() -> dict[str, str]:
    """Ours without what an allocation around us says of itself, which must not shape other jobs."""
    return {name: text for name, text in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}


def _call(words: Sequence[str], script: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm."""
    environment = submitting_environment()
    try:
        return subprocess.run(
            words,
            input=script,
            env=environment | {"SLURM_TIME_FORMAT": "%s"} if words[0] == "squeue" else environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
        )
    except FileNotFoundError:
        raise InputError(
            f"there is no {words[0]} on this machine",
            remedy="start the cluster on a machine from which jobs are submitted",
        ) from None
    except subprocess.TimeoutExpired:
        raise NotAnsweringError(f"{words[0]} did not answer within {ANSWER_SECONDS:.0f} s") from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The complaints of a command of Slurm as one sentence."""
    lines = []
    for line in done.stderr.splitlines():
        text = re.sub(r"^\w+: (error: |fatal: )?|^slurm_load_jobs error: ", "", line.strip())
        text = text.removeprefix("Batch job submission failed: ")
        if text and not text.startswith("Try ") and text not in lines:
            lines.append(text)
    return "; ".join(lines)[:_LONGEST_SENTENCE] or f"status {done.returncode}"
