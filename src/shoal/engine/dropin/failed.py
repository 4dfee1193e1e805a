"""`makeflow.failed.N`: what a failed rule left behind, kept for whoever looks into it."""

from __future__ import annotations

import json
import os
import shutil

from shoal.engine.attempt import EndedAttempt
from shoal.engine.removal import remove_quietly
from shoal.model.graph import Graph
from shoal.model.resources import BYTE_RESOURCES, FRACTION


def failed_directory(rule: int) -> str:
    return f"makeflow.failed.{rule}"


def keep_failed(graph: Graph, attempt: EndedAttempt, category: str) -> None:
    """Moves the outputs of a failed attempt into a directory of its own and describes the rule beside them."""
    rule = attempt.task
    directory = failed_directory(rule)
    if os.path.isdir(directory) and not os.path.islink(directory):  # a file of this name is none of ours
        remove_quietly(directory)
    os.makedirs(directory, exist_ok=True)
    for name in graph.output_names(rule):
        if os.path.lexists(name):
            place = os.path.join(directory, name.lstrip("/").replace("../", ""))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.move(name, place)
    with open(os.path.join(directory, "INFO.json"), "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(_describe(graph, attempt, category), file, indent=2, ensure_ascii=False)
        file.write("\n")


def _describe(graph: Graph, attempt: EndedAttempt, category: str) -> dict[str, object]:
    rule = attempt.task
    profile = graph.profile_of(rule)
    ended = {"exit_signal": -attempt.status} if attempt.status < 0 else {"exit_code": attempt.status}
    return {
        **ended,
        "command": graph.actions[rule],
        "message": attempt.message,
        "inputs": [{"dag_name": name} for name in graph.input_names(rule)],
        "outputs": [{"dag_name": name} for name in graph.output_names(rule)],
        "environment": dict(profile.environment),
        "category": category,
        "resources": {
            name: amount // 2**20 if name in BYTE_RESOURCES else amount / FRACTION
            for name, amount in profile.resources.amounts
            if name != "jobs"
        },
    }
