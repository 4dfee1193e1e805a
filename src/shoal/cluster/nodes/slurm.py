"""Nodes as Slurm jobs: one job array per submission, one `squeue` per query, one `scancel` to end nodes.

The agent replaces the batch shell (`exec`), so signals for the job reach it: SIGTERM by `scancel`, and by `--signal`
before the time limit. Slurm may send the latter up to a minute early. The directory of the logs, the access file and
the program must be visible on the nodes, as is usual on clusters with Slurm.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from shoal.cluster.nodes.local import last_line
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

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "RESIZING"}
_ENDED = {
    "BOOT_FAIL": "the node did not boot",
    "CANCELLED": "cancelled",
    "COMPLETED": "ended by itself",
    "DEADLINE": "its deadline came",
    "FAILED": "failed",
    "LAUNCH_FAILED": "Slurm could not start it",
    "NODE_FAIL": "the node broke down",
    "OUT_OF_MEMORY": "it used more memory than was allotted",
    "PREEMPTED": "a job of higher priority took its place",
    "RECONFIG_FAIL": "the node could not be set up",
    "REVOKED": "another cluster took it",
    "TIMEOUT": "the time limit of its allocation was reached",
}
_WAITING_FOR = {
    "AccountNotAllowed": "this account may not use the partition",
    "BadConstraints": "no node has the requested features",
    "BeginTime": "its begin time has not come",
    "Cleaning": "it was put back and is being cleaned up after",
    "Dependency": "a job it depends on has not ended",
    "DependencyNeverSatisfied": "a job it depends on failed: it will never start",
    "InactiveLimit": "the job was idle for too long",
    "InvalidAccount": "there is no such account: it will never start",
    "InvalidQOS": "there is no such quality of service: it will never start",
    "JobArrayTaskLimit": "as many elements of the array run as it allows",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; 'scontrol release' lets it go",
    "JobHoldMaxRequeue": "it was put back too often and is held",
    "JobLaunchFailure": "Slurm could not start it",
    "Licenses": "no licence is free",
    "NodeDown": "a node it needs is down",
    "PartitionConfig": "it asks for more than the partition ever gives: it will not start",
    "PartitionDown": "the partition is closed",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    "PartitionTimeLimit": "it asks for more time than the partition gives; set a shorter --time",
    "Priority": "jobs of higher priority come first",
    "Prolog": "the node is being made ready",
    "QOSNotAllowed": "this quality of service may not use the partition",
    "ReqNodeNotAvail": "the requested nodes are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation was removed",
    "Resources": "the nodes are busy with other jobs",
    "SystemFailure": "Slurm or the node failed",
    "TimeLimit": "its time was over",
    "launch failed requeued held": "Slurm could not start it and holds it",
}
_LIMIT = re.compile(r"(QOS|Assoc)?(Grp|Max|Min)([A-Z][A-Za-z]*?)(Per[A-Z][A-Za-z]*?)?(Limit)?")
_OWNERS = {"QOS": "the quality of service", "Assoc": "the account", None: "the account"}
_THINGS = {
    "Billing": "billing units",
    "BB": "burst buffer",
    "Cpu": "cores",
    "CPU": "cores",
    "CpuMinutes": "core minutes",
    "CPUMins": "core minutes",
    "CpuRunMinutes": "core minutes of running jobs",
    "CPURunMins": "core minutes of running jobs",
    "Energy": "energy",
    "GRES": "GPUs and other devices",
    "GRESMinutes": "device minutes",
    "Job": "jobs",
    "Jobs": "jobs",
    "License": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "MemMinutes": "memory minutes",
    "Node": "nodes",
    "SubmitJob": "submitted jobs",
    "SubmitJobs": "submitted jobs",
    "Wall": "time",
    "WallDuration": "time",
}
_PER = {"PerUser": " per user", "PerAccount": " per account", "PerAcct": " per account", "PerJob": " per job"}
_PER |= {"PerNode": " per node"}


def phase_of(state: str) -> NodePhase:
    """Returns the phase for a state; an unknown state counts as running, since nothing may be concluded from it."""
    word = _word(state)
    if word in _WAITING:
        return NodePhase.WAITING
    return NodePhase.ENDED if word in _ENDED else NodePhase.RUNNING


def is_ending(state: str) -> bool:
    """Whether a job is over except for the end of its processes."""
    return _word(state) == "COMPLETING"


def why_waiting(reason: str) -> str:
    """Explains a reason code of a waiting job; includes the code, which users look up."""
    code = reason.strip().strip("()")
    if code in ("", "None"):
        return "Slurm has not looked at it yet"
    bare = code.partition(",")[0].strip()
    words = _WAITING_FOR.get(bare) or _limit(bare)
    return f"{words} ({bare})" if words else f"Slurm says: {code}"


def why_ended(state: str, reason: str = "") -> str:
    """Explains why a job has ended."""
    words = _ENDED.get(_word(state), f"Slurm says: {state}")
    detail = reason.strip()
    # A job that was cancelled in the queue keeps the reason for which it waited there.
    if detail in ("", "None") or _word(state) in ("CANCELLED", "COMPLETED", "TIMEOUT"):
        return words
    return f"{words} ({detail})"


def why_running(state: str) -> str:
    """Explains the state of a running job; empty if it simply runs."""
    word = _word(state)
    known = {"RUNNING": "", "COMPLETING": "it is ending", "SUSPENDED": "it is suspended", "STOPPED": "it is stopped"}
    return known.get(word, f"Slurm says: {word}")


def _limit(code: str) -> str | None:
    match = _LIMIT.fullmatch(code)
    if match is None:
        return None
    owner, kind, thing, per, _ = match.groups()
    what = _THINGS.get(thing, thing) + _PER.get(per or "", "")
    side = "the least" if kind == "Min" else "the limit"
    return f"{_OWNERS[owner]} has reached {side} of {what}" if kind != "Min" else f"it is below {side} of {what}"


def _word(state: str) -> str:
    """Normalises a state: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    return state.split()[0].rstrip("+").upper() if state.split() else ""


NOTICE_SECONDS = 30
"""Seconds before the end of its allocation at which a node gets a signal."""
ANSWER_SECONDS = 60.0
_IDS_AT_ONCE = 500
_BY_SLURM = ("COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED")
"""Final states that the last line of the agent's log does not explain."""
_FORGOTTEN = "ended; Slurm has no record of how"
_LONGEST_SENTENCE = 300
_REFUSED = {
    "array": "Shoal numbers the nodes; set their number with the size of the cluster",
    "nodes": "every node is a job of its own; set their number with the size of the cluster",
    "output": "logs are kept with the cluster",
    "error": "logs are kept with the cluster",
    "wrap": "the command is the agent's",
    "wait": "submitting must not wait for the jobs",
    "test-only": "it would submit nothing",
    "clusters": "choose the cluster by SLURM_CONF",
}
"""Options of sbatch that are rejected, and why."""
_SHORT = {"a": "array", "N": "nodes", "o": "output", "e": "error", "W": "wait", "M": "clusters"}


class SlurmStarter:
    """Submits a command as jobs, with the user's own options for sbatch."""

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
        """Submits one job array; where arrays are not allowed, or not so large, single jobs."""
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
        """Returns the job id, or None and the error message."""
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
        return None, f"Slurm rejects the nodes: {_said(done)}"

    def _script(self, stem: str) -> str:
        """Returns the job script. Older versions of Slurm do not tell a job when it ends, so the script queries it."""
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
        """Slurm sends SIGTERM to running jobs, and SIGKILL after its KillWait."""
        jobs = [handle.job for handle in handles if isinstance(handle, SlurmHandle)]
        for begin in range(0, len(jobs), _IDS_AT_ONCE):
            done = _call(["scancel", "--quiet", *jobs[begin : begin + _IDS_AT_ONCE]])
            if done.returncode != 0 and "Invalid job id" not in done.stderr:
                raise NotAnsweringError(f"Slurm does not cancel the nodes: {_said(done)}")


def check_options(options: Sequence[str]) -> None:
    """Rejects options of sbatch under which nodes could not be counted or found again."""
    for option in options:
        if option.startswith("--"):
            given = option[2:].partition("=")[0]
            # sbatch accepts any unambiguous prefix of an option.
            name = next((known for known in _REFUSED if given and known.startswith(given)), None)
        else:
            name = _SHORT.get(option[1:2]) if option.startswith("-") else None
        if name is not None:
            raise InputError(f"the option {option} of sbatch cannot be used here: {_REFUSED[name]}")


def _queue(jobs: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Returns state, reason and end of every job and array element that Slurm still knows."""
    rows: dict[str, tuple[str, str, str]] = {}
    for begin in range(0, len(jobs), _IDS_AT_ONCE):
        some = ",".join(jobs[begin : begin + _IDS_AT_ONCE])
        words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={some}", "--format=%i|%T|%e|%r"]
        done = _call(words)
        # A single unknown job id is an error for squeue, one among several is not.
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise NotAnsweringError(f"Slurm does not report the state of the nodes: {_said(done)}")
        for line in done.stdout.splitlines():
            job, _, rest = line.strip().partition("|")
            state, _, rest = rest.partition("|")
            ends, _, reason = rest.partition("|")
            rows[job] = (state, reason, ends)
    return rows


def _accounting(jobs: Sequence[str]) -> dict[str, str]:
    """Returns final states of jobs that have left the queue; empty where Slurm keeps no accounting."""
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
    """Returns the environment without the variables of an allocation around this process, which must not affect other
    jobs."""
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
        raise NotAnsweringError(f"{words[0]} did not reply within {ANSWER_SECONDS:.0f} s") from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the error output of a Slurm command as one line."""
    lines = []
    for line in done.stderr.splitlines():
        text = re.sub(r"^\w+: (error: |fatal: )?|^slurm_load_jobs error: ", "", line.strip())
        text = text.removeprefix("Batch job submission failed: ")
        if text and not text.startswith("Try ") and text not in lines:
            lines.append(text)
    return "; ".join(lines)[:_LONGEST_SENTENCE] or f"status {done.returncode}"
