"""Predictions on clusters as text, tables and data, and the options of `shoal simulate` and `shoal plan --nodes`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.quantities import count, show_bytes, show_cores, show_number, show_seconds, show_share
from shoal.core.resources import FRACTION, Resources
from shoal.errors import InputError
from shoal.sim.cluster.run import SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec
from shoal.sim.expected_times import Expectation
from shoal.sim.forecast import Advice, Prediction, Subject, knows_spread
from shoal.sim.throttled_workflow import TaskDemand, ThrottledSimulation
from shoal.ui.cli.parser import CommandParser, close_match, looks_like_workflow, split_words, whole_number
from shoal.ui.cli.run import ORDERS, node_for
from shoal.ui.cli.status_tables import laid_out
from shoal.ui.cli.text import clip, table

if TYPE_CHECKING:
    from shoal.core.resources import Resources
    from shoal.sim.cluster.run import SimulationOptions
    from shoal.sim.cluster.specification import ClusterSpec
    from shoal.sim.expected_times import Expectation
    from shoal.sim.forecast import Subject


def run_as_data(
    subject: Subject, spec: ClusterSpec, options: SimulationOptions, predictions: Sequence[Prediction], bound: float
) -> dict[str, Any]:
    """One cluster as data; times are in seconds, rates in bytes per second."""
    return {
        **_subject_as_data(subject, spec, options),
        "nodes": spec.nodes,
        "lower_bound": bound,
        "runs": [as_data(each) for each in predictions],
    }


def plan_as_data(
    subject: Subject,
    specs: Sequence[ClusterSpec],
    options: SimulationOptions,
    predictions: Sequence[Prediction],
    advice: Advice,
) -> dict[str, Any]:
    """Several clusters and what to choose, for programs."""
    return {
        **_subject_as_data(subject, specs[0], options),
        "runs": [as_data(each) for each in predictions],
        "advice": {
            "fastest": _choice(advice.fastest),
            "within_10_percent": _choice(advice.near),
            "cheapest_within_twice": _choice(advice.cheapest),
        },
    }


def _choice(prediction: Prediction) -> dict[str, Any]:
    return {
        "nodes": prediction.nodes,
        "policy": prediction.policy,
        "makespan": prediction.makespan,
        "node_hours": prediction.node_hours,
    }


def _subject_as_data(subject: Subject, spec: ClusterSpec, options: SimulationOptions) -> dict[str, Any]:
    return {
        "of": subject.name,
        "cores_per_node": spec.node.cores,
        "order": options.order,
        "submission": options.submission,
        "seed": options.seed,
        "bandwidth": spec.node.link,
        "latency": spec.latency,
        "speed": spec.node.speed,
        "durations": subject.counts(),
    }


def as_data(prediction: Prediction) -> dict[str, Any]:
    """One predicted run as data."""
    played = prediction.played
    return {
        "policy": prediction.policy,
        "nodes": prediction.nodes,
        "tasks": played.tasks,
        "makespan": prediction.makespan,
        "shortest": prediction.shortest,
        "longest": prediction.longest,
        "samples": prediction.samples,
        "utilisation": played.utilisation,
        "moved": played.moved,
        "from_shared": played.from_shared,
        "reads": played.reads,
        "hits": played.hits,
        "steals": played.steals,
        "stolen": played.stolen,
        "pushed": played.pushed,
        "messages": played.messages,
        "node_hours": prediction.node_hours,
    }


def run_as_text(
    subject: Subject, spec: ClusterSpec, options: SimulationOptions, predictions: Sequence[Prediction], bound: float
) -> list[str]:
    """One cluster as text."""
    tasks = predictions[0].played.tasks
    rows = [("policy", "makespan", "utilisation", "moved", "from shared", "hits", "steals", "node hours")]
    for each in predictions:
        played = each.played
        rows.append(
            (
                each.policy,
                show_makespan(each),
                show_share(played.utilisation),
                show_bytes(played.moved),
                show_bytes(played.from_shared),
                show_share(played.hits, played.reads) if played.reads else "-",
                f"{played.steals:,}",
                show_number(each.node_hours),
            )
        )
    on = f"{count(spec.nodes, 'node')} of {count(spec.node.cores, 'core')}"
    return [
        f"{subject.name}: {count(tasks, 'task')} on {on}, order {options.order}",
        f"durations: {subject.sentence()}",
        f"lower bound: {show_seconds(bound)}",
        *table(rows),
        *remarks(subject, predictions),
    ]


def plan_as_text(
    subject: Subject,
    specs: Sequence[ClusterSpec],
    options: SimulationOptions,
    predictions: Sequence[Prediction],
    advice: Advice,
) -> list[str]:
    """Table over numbers of nodes, and the recommendation."""
    cores = count(specs[0].node.cores, "core")
    rows = [("nodes", "policy", "makespan", "utilisation", "moved", "node hours")]
    for each in predictions:
        rows.append(
            (
                f"{each.nodes:,}",
                each.policy,
                show_makespan(each),
                show_share(each.played.utilisation),
                show_bytes(each.played.moved),
                show_number(each.node_hours),
            )
        )
    return [
        f"{subject.name}: {count(predictions[0].played.tasks, 'task')} on nodes of {cores}, order {options.order}",
        f"durations: {subject.sentence()}",
        *table(rows),
        recommend(advice),
        *remarks(subject, predictions),
    ]


def show_makespan(prediction: Prediction) -> str:
    """Makespan with its error bars, if there are any: `41.2 s (40.1 s to 43.0 s)`."""
    text = show_seconds(prediction.makespan)
    if prediction.shortest is None or prediction.longest is None:
        return text
    return f"{text} ({show_seconds(prediction.shortest)} to {show_seconds(prediction.longest)})"


def recommend(advice: Advice) -> str:
    """The recommendation in one sentence."""
    near, fastest, cheapest = advice.near, advice.fastest, advice.cheapest
    if near == fastest:
        first = f"take {_named(near)}: with {show_seconds(near.makespan)} the fastest"
    else:
        first = (
            f"take {_named(near)}: {show_seconds(near.makespan)} is within 10 % of the best time, "
            f"{show_seconds(fastest.makespan)} on {_named(fastest)}"
        )
    hours = f"{show_number(cheapest.node_hours)} node hours"
    if cheapest == near:
        return f"{first}, and with {hours} the cheapest within twice that time"
    return (
        f"{first}; the cheapest within twice the best time is {_named(cheapest)}, "
        f"{hours} in {show_seconds(cheapest.makespan)}"
    )


def _named(prediction: Prediction) -> str:
    return f"{count(prediction.nodes, 'node')} with {prediction.policy}"


def remarks(subject: Subject, predictions: Sequence[Prediction]) -> list[str]:
    """How reliable the numbers are."""
    expected = subject.expected
    if expected is None:
        return []
    known = expected.known + expected.like_category
    unknown = expected.guessed + expected.declared
    found = []
    if unknown > known:
        found.append("most durations are estimates: use the times for comparison only")
    samples = predictions[0].samples
    if samples:
        found.append(f"error bars: shortest and longest of {samples + 1} runs, durations drawn from measurements")
    elif knows_spread(expected):
        found.append("error bars: none, the workflow is too large for repeated simulation")
    elif known:
        found.append("error bars: none, the variation of durations between runs is unknown")
    return found


MOST_CATEGORIES = 6


def throttles_as_text(
    expected: Expectation, node: Resources, demands: Mapping[str, TaskDemand], found: Sequence[ThrottledSimulation]
) -> list[str]:
    """Describes the tasks, then one line for each throttle."""
    cores = node.get("cores") / FRACTION
    on = show_cores(cores)
    tasks = sum(action is not None for action in expected.workflow.graph.actions)
    present = [name for name in demands if any(name in run.together for run in found)]
    names = present[:MOST_CATEGORIES]
    heads = ("THROTTLE", "MAKESPAN", "PROCESSORS", "MOST", *(f"{clip(name, 30)} AT ONCE" for name in names))
    rows = [
        (
            run.throttle,
            show_seconds(run.makespan),
            show_share(run.processors),
            f"{run.most:,}",
            *(f"{run.together.get(name, 0.0):.1f}" for name in names),
        )
        for run in found
    ]
    left = len(present) - len(names)
    more = [f"and {left} more categories (--json lists all)"] if left > 0 else []
    return [
        f"{expected.workflow.path}: {count(tasks, 'task')} on {on}",
        f"durations: {expected.sentence()}",
        *(f"{name}: {_in_words(demands[name], cores)}" for name in names),
        *laid_out(heads, rows),
        *more,
    ]


def _in_words(demand: TaskDemand, cores: float) -> str:
    """Resource use of a task in words."""
    parts = [
        show_cores(share * cores) if name == "cpu" else f"{show_share(share)} of the {name}"
        for name, share in demand.use.items()
        if share > 0
    ]
    if demand.bears:
        parts.append(f"an external resource that serves {demand.bears:,} at once")
    return "a task uses " + (", ".join(parts) or "nothing measured")


def throttles_as_data(
    expected: Expectation, node: Resources, demands: Mapping[str, TaskDemand], found: Sequence[ThrottledSimulation]
) -> dict[str, Any]:
    """The same as data; times are in seconds."""
    return {
        "workflow": expected.workflow.path,
        "cores": node.get("cores") / FRACTION,
        "durations": expected.counts(),
        "demands": {
            name: {"use": dict(each.use), "bears": each.bears or None, "speed": each.speed}
            for name, each in demands.items()
        },
        "runs": [
            {
                "throttle": run.throttle,
                "makespan": run.makespan,
                "processors": run.processors,
                "most": run.most,
                "together": run.together,
            }
            for run in found
        ],
    }


WORKLOAD_CORES = 2
"""Cores per node for synthetic workloads, unless given."""
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
    """Adds the cluster options, except `--nodes`, which the two commands read differently."""
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
        "--bandwidth",
        metavar="RATE",
        help="bandwidth of each node's link, such as 10Gb/s, or in bytes: 125MB/s (10Gb/s)",
    )
    cluster.add_argument("--latency", metavar="SECONDS", help="latency of a message between nodes (0.2ms)")
    cluster.add_argument("--shared-files", action="store_true", help="all nodes see all files, on a shared file system")
    cluster.add_argument(
        "--shared-rate",
        metavar="RATE",
        help="total bandwidth of the shared file system, where source files come from (no limit)",
    )
    cluster.add_argument(
        "--speed", metavar="X", help="speed of the cores relative to the machine where durations were measured (1)"
    )
    cluster.add_argument(
        "--submission",
        choices=SUBMISSIONS,
        metavar="HOW",
        help="initial tasks go to all nodes or to one: all, one (all)",
    )
    cluster.add_argument("--seed", metavar="S", type=whole_number(0, "--seed"), help="random seed (0)")
    parser.add_argument("--order", choices=ORDERS, metavar="ORDER", help=f"one of {', '.join(ORDERS)}")
    parser.add_argument(
        "--like", metavar="FILE", help="take durations from the runs of another workflow, category by category"
    )


def given_for_clusters(arguments: argparse.Namespace) -> list[str]:
    """The cluster options that were given, as the user wrote them."""
    names = [name for name in _OF_CLUSTERS if getattr(arguments, name) is not None]
    return [f"--{name.replace('_', '-')}" for name in names] + ["--shared-files"] * arguments.shared_files


def is_workload(arguments: argparse.Namespace) -> bool:
    """Whether the first word names a workload; raises an error if it looks like a misspelt one."""
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
    """Returns what to simulate, and for a workflow the resources of a node. Enters the workflow's directory."""
    if is_workload(arguments):
        from shoal.sim.forecast import Subject
        from shoal.sim.workloads.registry import make_workload

        first, *more = arguments.words
        if more:
            raise InputError(f"{first!r} is a workload and has no target {more[0]!r}")
        if arguments.like is not None:
            raise InputError("--like applies to workflow files; a workload defines its own durations")
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
    """Returns the workflow with its expected durations, and the node that the options describe."""
    import os

    from shoal.execution.workflow_loader import find_workflow
    from shoal.sim.expected_times import expect

    named, words = of_ledger(arguments.words) or split_words(arguments.words, arguments.workflow)
    path = os.path.abspath(find_workflow(named))
    node = node_for(arguments, path)
    return expect(path, words, arguments.like), node


def of_ledger(words: list[str]) -> tuple[str, list[str]] | None:
    """If the first word is a run's ledger, returns the workflow that was run and its targets."""
    found = _LEDGER.fullmatch(words[0]) if words else None
    if found is None:
        return None
    from shoal.ledger.history import read_history
    from shoal.ledger.workspace import Workspace

    workflow = found[1] + found[2]
    last = read_history(Workspace(workflow)).last_run
    if last is None:
        raise InputError(f"{words[0]!r} is not the ledger of a run")
    return workflow, words[1:] or list(last.targets)


def refuse_larger_tasks(expected: Expectation, node: Resources, for_cores: str) -> None:
    """Rejects a task that is larger than a node: it would wait forever."""
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
    """Returns the cluster that the options describe."""
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
    """Returns how the cluster is scheduled, except for the policy."""
    from shoal.core.policies.order import DEFAULT_ORDER
    from shoal.sim.cluster.run import SimulationOptions

    return SimulationOptions(
        order=arguments.order or DEFAULT_ORDER,
        submission=arguments.submission or SUBMISSIONS[0],
        seed=arguments.seed or 0,
    )


def policies_of(text: str | None) -> list[str]:
    """Returns the named policies without duplicates."""
    from shoal.core.policies.stealing import policy_named

    names = [name.strip() for name in (POLICY if text is None else text).split(",")]
    for name in names:
        policy_named(name)
    return list(dict.fromkeys(names))


def rate_of(text: str, option: str) -> float:
    """Parses bytes per second from `10Gb/s` (bits), `125MB/s` or `125M` (bytes)."""
    from shoal.core.resources import parse_size

    found = _RATE.fullmatch(text)
    try:
        if found is not None:
            rate = float(found[1]) * _PREFIX[found[2]] / 8
        else:
            rate = float(parse_size(re.sub(r"/s\s*$", "", text), option))
    except (InputError, ValueError):
        raise InputError(f"{option} {text!r} is not a rate", remedy="write it as 10Gb/s or 125MB/s") from None
    if rate <= 0:
        raise InputError(f"{option} must be greater than 0, not {text!r}")
    return rate


def seconds_of(text: str, option: str) -> float:
    """Parses seconds from `0.2ms`, `5us`, `1s` or a plain number of seconds."""
    found = _SECONDS.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        return float(found[1]) * _SECOND_UNITS[found[2]]
    except ValueError:
        raise InputError(f"{option} {text!r} is not a time", remedy="write it as 0.2ms or 1s") from None


def speed_of(text: str) -> float:
    """Parses a factor greater than 0."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise InputError(f"--speed must be a number above 0, not {text!r}")
    return speed
