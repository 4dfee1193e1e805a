"""Slurm's states and reason codes in words, for whoever asks why a node does not come or has gone.

Limits of accounts and qualities of service have hundreds of codes that are put together from parts, so they are taken
apart again rather than listed. What is not known is passed on as Slurm says it.
"""

from __future__ import annotations

import re

from shoal.cluster.nodes.starters import NodePhase

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
    "BadConstraints": "no node has the features asked for",
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
    "ReqNodeNotAvail": "the nodes asked for are down, drained or reserved",
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
    """The phase for a state; an unknown one counts as running, since nothing may be concluded from it."""
    word = _word(state)
    if word in _WAITING:
        return NodePhase.WAITING
    return NodePhase.ENDED if word in _ENDED else NodePhase.RUNNING


def is_ending(state: str) -> bool:
    """Whether a job is over but for the end of its processes."""
    return _word(state) == "COMPLETING"


def why_waiting(reason: str) -> str:
    """A reason code of a waiting job in words, with the code itself, which people look up."""
    code = reason.strip().strip("()")
    if code in ("", "None"):
        return "Slurm has not looked at it yet"
    bare = code.partition(",")[0].strip()
    words = _WAITING_FOR.get(bare) or _limit(bare)
    return f"{words} ({bare})" if words else f"Slurm says: {code}"


def why_ended(state: str, reason: str = "") -> str:
    """Why a job has ended, in words."""
    words = _ENDED.get(_word(state), f"Slurm says: {state}")
    detail = reason.strip()
    # A job that was cancelled in the queue keeps the reason for which it waited there.
    if detail in ("", "None") or _word(state) in ("CANCELLED", "COMPLETED", "TIMEOUT"):
        return words
    return f"{words} ({detail})"


def why_running(state: str) -> str:
    """Nothing for a job that simply runs; otherwise what is the matter with it."""
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
    """`CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    return state.split()[0].rstrip("+").upper() if state.split() else ""
