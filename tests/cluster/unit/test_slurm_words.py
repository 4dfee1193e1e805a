"""Slurm's codes in words, and the options that may not be passed on."""

from __future__ import annotations

import pytest

from shoal.cluster.nodes.slurm import check_options, phase_of, why_ended, why_running, why_waiting
from shoal.cluster.nodes.starters import NodePhase
from shoal.errors import InputError


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Priority", "jobs of higher priority come first (Priority)"),
        ("(Resources)", "the nodes are busy with other jobs (Resources)"),
        (
            "QOSMaxCpuPerUserLimit",
            "the quality of service has reached the limit of cores per user (QOSMaxCpuPerUserLimit)",
        ),
        ("AssocGrpMemLimit", "the account has reached the limit of memory (AssocGrpMemLimit)"),
        ("QOSGrpGRES", "the quality of service has reached the limit of GPUs and other devices (QOSGrpGRES)"),
        (
            "AssocGrpCPURunMinsLimit",
            "the account has reached the limit of core minutes of running jobs (AssocGrpCPURunMinsLimit)",
        ),
        ("QOSMaxJobsPerUserLimit", "the quality of service has reached the limit of jobs per user"),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "the requested nodes are down, drained or reserved (ReqNodeNotAvail)"),
        ("None", "Slurm has not looked at it yet"),
        ("FrontEndDown", "Slurm says: FrontEndDown"),
    ],
)
def test_a_reason_for_waiting_is_explained_with_its_code(code: str, words: str) -> None:
    assert why_waiting(code).startswith(words)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", NodePhase.WAITING),
        ("CONFIGURING", NodePhase.WAITING),
        ("RUNNING", NodePhase.RUNNING),
        ("COMPLETING", NodePhase.RUNNING),
        ("TIMEOUT", NodePhase.ENDED),
        ("CANCELLED by 0", NodePhase.ENDED),
        ("CANCELLED+", NodePhase.ENDED),
        ("SOMETHING_NEW", NodePhase.RUNNING),
    ],
)
def test_every_state_has_a_phase_and_an_unknown_one_ends_nothing(state: str, phase: NodePhase) -> None:
    assert phase_of(state) is phase


def test_final_states_are_explained() -> None:
    assert why_ended("TIMEOUT", "TimeLimit") == "the time limit of its allocation was reached"
    assert why_ended("FAILED", "NonZeroExitCode") == "failed (NonZeroExitCode)"
    assert why_running("RUNNING") == ""
    assert why_running("SUSPENDED") == "it is suspended"


@pytest.mark.parametrize(
    "option", ["--array=1-3", "--arr=1", "-a1", "-N", "--nodes", "-o", "--wait", "-W", "--test-only"]
)
def test_an_option_that_would_break_the_count_is_refused(option: str) -> None:
    with pytest.raises(InputError, match="cannot be used here"):
        check_options(["--partition=long", option])


def test_other_options_pass() -> None:
    check_options(
        ["--partition=long", "-p", "short", "-t", "1:00:00", "--mem=4G", "-c", "4", "--nodelist=n1", "-A", "x"]
    )
