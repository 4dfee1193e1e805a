"""The options that describe a cluster, and what is simulated on it: of `shoal simulate` and `shoal plan --nodes`.

Reads what the user wrote and refuses in one sentence what cannot be; the simulation is `shoal.sim.forecast`.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, close_match, looks_like_workflow, split_words, whole_number
from shoal.ui.cli.run import ORDERS, node_for

if TYPE_CHECKING:
    from shoal.core.resources import Resources
    from shoal.sim.cluster.run import SimulationOptions
    from shoal.sim.cluster.specification import ClusterSpec
    from shoal.sim.expected_times import Expectation
    from shoal.sim.forecast import Subject

WORKLOAD_CORES = 2
"""Cores of a node on which a workload is simulated, if nothing else is said."""
MOST_NODES = 100_000
MOST_CORES = 10_000
POLICY = "flds"
SUBMISSIONS = ("all", "one")
_OF_CLUSTERS = ("policy", "bandwidth", "latency", "shared_rate", "speed", "submission", "seed", "cores")
_LEDGER = re.compile(r"((?:.*/)?)\.shoal/([^/]+?)(?:/ledger)?/?")
_RATE = re.compile(r"\s*([0-9.]+)\s*([kMGT]?)(b|bit|bits)(?:/s|ps)?\s*")
_PREFIX = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = re.compile(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*(s|ms|us|µs|)\s*")
_SECOND_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def add_cluster(parser: CommandParser) -> None:
    """All but `--nodes`, which the two commands read differently."""
    cluster = parser.add_argument_group("a cluster")
    cluster.add_argument(
        "--cores",
        metavar="N",
        type=whole_number(1, "--cores"),
        help=f"cores of each node (default: those of this machine; for a workload {WORKLOAD_CORES})",
    )
    cluster.add_argument(
        "--policy", metavar="POLICY[,POLICY...]", help="flds, rlds, mdl, mlb, auto, pwrake; several to compare (flds)"
    )
    cluster.add_argument(
        "--bandwidth", metavar="RATE", help="of each node's link, such as 10Gb/s, or bytes: 125MB/s (10Gb/s)"
    )
    cluster.add_argument("--latency", metavar="SECONDS", help="of a message between nodes, such as 0.2ms (0.2ms)")
    cluster.add_argument("--shared-files", action="store_true", help="all nodes see all files, on a shared file system")
    cluster.add_argument(
        "--shared-rate",
        metavar="RATE",
        help="of the shared file system, for all nodes together (no limit); source files come from there",
    )
    cluster.add_argument(
        "--speed", metavar="X", help="how much faster its cores are than where durations come from (1)"
    )
    cluster.add_argument(
        "--submission", choices=SUBMISSIONS, metavar="HOW", help="first tasks go to all nodes or to one: all, one (all)"
    )
    cluster.add_argument("--seed", metavar="S", type=whole_number(0, "--seed"), help="of all that is drawn (0)")
    parser.add_argument("--order", choices=ORDERS, metavar="ORDER", help=f"one of {', '.join(ORDERS)}")
    parser.add_argument(
        "--like", metavar="FILE", help="take durations from the runs of another workflow, category by category"
    )


def given_for_clusters(arguments: argparse.Namespace) -> list[str]:
    """The options that only a cluster has and that were given, as the user writes them."""
    names = [name for name in _OF_CLUSTERS if getattr(arguments, name) is not None]
    return [f"--{name.replace('_', '-')}" for name in names] + ["--shared-files"] * arguments.shared_files


def is_workload(arguments: argparse.Namespace) -> bool:
    """Whether the first word names a workload; says so if it was meant to and does not."""
    import os

    from shoal.sim.workloads.registry import WORKLOADS

    if arguments.workflow is not None or not arguments.words:
        return False
    word: str = arguments.words[0]
    name = word.partition(":")[0]
    if name in WORKLOADS:
        return True
    if "=" in name or os.path.exists(word) or re.search(r"[/.]", name):
        return False
    hint = close_match(name, WORKLOADS)
    if hint or ":" in word or looks_like_workflow(word):
        raise InputError(
            f"there is neither a workload nor a workflow file {word!r}",
            remedy=hint or f"workloads are {', '.join(WORKLOADS)}",
        )
    return False


def find_subject(arguments: argparse.Namespace) -> tuple[Subject, Resources | None]:
    """What is to be simulated, and for a workflow the resources of a node; enters the workflow's directory."""
    if is_workload(arguments):
        from shoal.sim.forecast import Subject
        from shoal.sim.workloads.registry import make_workload

        first, *more = arguments.words
        if more:
            raise InputError(f"{first!r} is a workload and has no target {more[0]!r}")
        if arguments.like is not None:
            raise InputError("--like is for workflow files; a workload says itself how long its tasks take")
        work = make_workload(first, arguments.seed or 0)
        return Subject(work.name, work), None
    from shoal.core.resources import FRACTION, Resources
    from shoal.sim.forecast import subject_of

    expected, node = expectation(arguments)
    subject = subject_of(expected)
    if arguments.cores:
        node = Resources.of({**dict(node.amounts), "cores": arguments.cores * FRACTION})
    refuse_larger_tasks(expected, node, "--cores N")
    return subject, node


def expectation(arguments: argparse.Namespace) -> tuple[Expectation, Resources]:
    """The workflow that the words name with its durations, and the node that the options describe."""
    import os

    from shoal.execution.workflow_loader import find_workflow
    from shoal.sim.expected_times import expect

    named, words = of_ledger(arguments.words) or split_words(arguments.words, arguments.workflow)
    path = os.path.abspath(find_workflow(named))
    node = node_for(arguments, path)
    return expect(path, words, arguments.like), node


def of_ledger(words: list[str]) -> tuple[str, list[str]] | None:
    """If the first word is the ledger of a run, the workflow that was run, and what it was asked for."""
    found = _LEDGER.fullmatch(words[0]) if words else None
    if found is None:
        return None
    from shoal.ledger.history import read_history
    from shoal.ledger.workspace import Workspace

    workflow = found[1] + found[2]
    last = read_history(Workspace(workflow)).last_run
    if last is None:
        raise InputError(f"there is no ledger of a run in {words[0]!r}")
    return workflow, words[1:] or list(last.targets)


def refuse_larger_tasks(expected: Expectation, node: Resources, for_cores: str) -> None:
    """A task that is larger than a node would wait for ever."""
    from shoal.core.graph import ancestors
    from shoal.core.resources import is_label, show_amount

    graph = expected.workflow.graph
    wanted = ancestors(graph, expected.workflow.targets)
    lacking = [profile.resources.lacking_in(node) for profile in graph.profiles]
    for task, number in enumerate(graph.profile):
        if lacking[number] and wanted[task] and graph.actions[task] is not None:
            name = lacking[number][0]
            if is_label(name):
                raise InputError(
                    f"{graph.names[task]!r} requires a node with the label {name}, which the nodes do not have",
                    file=graph.source,
                    line=graph.lines[task] or None,
                    remedy=f"simulate nodes that have it with --label {name}",
                )
            asked = show_amount(name, graph.profiles[number].resources.get(name))
            option = {"cores": for_cores, "memory": "--memory SIZE"}.get(name, f"--resource {name}=N")
            raise InputError(
                f"{graph.names[task]!r} asks for {name} {asked}, but the node has {show_amount(name, node.get(name))}",
                file=graph.source,
                line=graph.lines[task] or None,
                remedy=f"simulate a larger one with {option}",
            )


def cluster_of(arguments: argparse.Namespace, nodes: int, node: Resources | None) -> ClusterSpec:
    """The cluster that the options describe."""
    from shoal.core.resources import FRACTION
    from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

    kind: dict[str, Any] = {"cores": arguments.cores or WORKLOAD_CORES}
    if node is not None:
        kind["cores"] = max(1, node.get("cores") // FRACTION)
        kind["memory"] = node.get("memory")
        kind["named"] = tuple(pair for pair in node.amounts if pair[0] not in ("cores", "memory"))
    if kind["cores"] > MOST_CORES:
        raise InputError(f"--cores must be at most {MOST_CORES:,}, not {kind['cores']:,}")
    if nodes > MOST_NODES:
        raise InputError(f"--nodes must be at most {MOST_NODES:,}, not {nodes:,}")
    if arguments.bandwidth is not None:
        kind["link"] = rate_of(arguments.bandwidth, "--bandwidth")
    if arguments.speed is not None:
        kind["speed"] = speed_of(arguments.speed)
    more: dict[str, Any] = {"shared_files": arguments.shared_files}
    if arguments.shared_rate is not None:
        more["shared_rate"] = rate_of(arguments.shared_rate, "--shared-rate")
    if arguments.latency is not None:
        more["latency"] = seconds_of(arguments.latency, "--latency")
    return ClusterSpec(nodes=nodes, node=NodeSpec(**kind), **more).check()


def options_of(arguments: argparse.Namespace) -> SimulationOptions:
    """How the cluster is scheduled, but for the policy."""
    from shoal.core.policies.order import DEFAULT_ORDER
    from shoal.sim.cluster.run import SimulationOptions

    return SimulationOptions(
        order=arguments.order or DEFAULT_ORDER,
        submission=arguments.submission or SUBMISSIONS[0],
        seed=arguments.seed or 0,
    )


def policies_of(text: str | None) -> list[str]:
    """The policies that are named, each once."""
    from shoal.core.policies.stealing import policy_named

    names = [name.strip() for name in (POLICY if text is None else text).split(",")]
    for name in names:
        policy_named(name)
    return list(dict.fromkeys(names))


def rate_of(text: str, option: str) -> float:
    """Bytes per second from `10Gb/s` (bits), `125MB/s` or `125M` (bytes)."""
    from shoal.core.resources import parse_size

    found = _RATE.fullmatch(text)
    try:
        if found is not None:
            rate = float(found[1]) * _PREFIX[found[2]] / 8
        else:
            rate = float(parse_size(re.sub(r"/s\s*$", "", text), option))
    except (InputError, ValueError):
        raise InputError(f"{option} {text!r} is no rate", remedy="write it as 10Gb/s or 125MB/s") from None
    if rate <= 0:
        raise InputError(f"{option} must be more than nothing, not {text!r}")
    return rate


def seconds_of(text: str, option: str) -> float:
    """Seconds from `0.2ms`, `5us`, `1s` or a plain number of seconds."""
    found = _SECONDS.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        return float(found[1]) * _SECOND_UNITS[found[2]]
    except ValueError:
        raise InputError(f"{option} {text!r} is no time", remedy="write it as 0.2ms or 1s") from None


def speed_of(text: str) -> float:
    """A factor above zero."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise InputError(f"--speed must be a number above 0, not {text!r}")
    return speed
