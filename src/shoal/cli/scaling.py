"""`shoal plan --nodes`: a whole run on several sizes of a cluster, as a table, a plot and a recommendation."""

from __future__ import annotations

import argparse
import re

from shoal.cli.modelled import MOST_NODES, cluster_of, find_subject, is_workload, options_of, policies_of
from shoal.cli.parser import split_words
from shoal.errors import InputError

MOST_COUNTS = 200
_LONGEST = 1000
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?::([0-9]+)(x?))?")


def show_scaling(arguments: argparse.Namespace) -> int:
    """Predicts a run for each number of nodes and each policy, and says which to choose."""
    import json
    import os

    from shoal.cli.cells import printable_lines
    from shoal.cli.destination import check_destination
    from shoal.cli.predicted import plan_as_data, plan_as_text
    from shoal.engine.forecast import advise, least_seconds, predict_all
    from shoal.engine.load import find_workflow
    from shoal.engine.workspace import Workspace

    refuse_what_only_a_plan_has(arguments)
    counts = node_counts(arguments.nodes)
    policies, options = policies_of(arguments.policy), options_of(arguments)
    cluster_of(arguments, counts[-1], None)  # refuses what cannot be before anything is loaded
    plot = os.path.abspath(arguments.plot) if arguments.plot is not None else None
    if plot is not None and not is_workload(arguments):
        workflow = find_workflow(split_words(arguments.words, arguments.workflow)[0])
        check_destination(arguments.plot, "--plot", Workspace(workflow))
    if plot is not None and not os.access(os.path.dirname(plot), os.W_OK):
        raise InputError(f"cannot write the plot {arguments.plot!r}", remedy="name a file in a directory of yours")
    subject, node = find_subject(arguments)
    specs = [cluster_of(arguments, nodes, node) for nodes in counts]
    predictions = predict_all(subject, specs, policies, options)
    advice = advise(predictions)
    if plot is not None:
        from shoal.cli.scaling_plot import draw

        bounds = [(spec.nodes, least_seconds(subject.work, spec)) for spec in specs]
        with open(plot, "w", encoding="utf-8") as file:
            file.write(draw(predictions, bounds, f"{subject.name}, nodes of {specs[0].node.cores} cores"))
    show = plan_as_data(subject, specs, options, predictions, advice) if arguments.json else None
    text = plan_as_text(subject, specs, options, predictions, advice)
    print(json.dumps(show) if show is not None else printable_lines("\n".join(text)))
    return 0


def refuse_what_only_a_plan_has(arguments: argparse.Namespace) -> None:
    """Options that say what of the workflow runs have no meaning for a forecast of a whole run."""
    if arguments.jobs is not None:
        raise InputError("--jobs is for one node", remedy="say with --cores how many cores a node has")
    for name, given in (("--verbose", arguments.verbose), ("--force", arguments.force)):
        if given:
            raise InputError(f"{name} does not go with --nodes, which predicts a whole run")


def node_counts(text: str) -> list[int]:
    """Numbers of nodes from `8`, `1,2,4`, `1..64` (doubling), `1..64:4x` (a factor) or `10..50:10` (a step)."""
    if len(text) > _LONGEST:
        raise _no_range(text[:20] + "...")
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_counts_of(part.strip(), text))
        if len(counts) > MOST_COUNTS:
            raise InputError(f"--nodes {text!r} asks for more than {MOST_COUNTS} sizes", remedy="take larger steps")
    return sorted(counts)


def _counts_of(part: str, whole: str) -> list[int]:
    if part.isascii() and part.isdigit():
        return [_allowed(int(part))]
    found = _RANGE.fullmatch(part)
    if found is None:
        raise _no_range(whole)
    first, last = _allowed(int(found[1])), _allowed(int(found[2]))
    if first > last:
        raise InputError(f"--nodes {part!r} goes from more nodes to fewer", remedy=f"write {last}..{first}")
    step, is_factor = int(found[3] or 2), found[3] is None or bool(found[4])
    if step < 1 + is_factor:
        what = "factor must be at least 2" if is_factor else "step must be at least 1"
        raise InputError(f"--nodes {part!r} never ends", remedy=f"the {what}")
    if not is_factor:
        return list(range(first, min(last, first + step * MOST_COUNTS) + 1, step))
    counts = [first]
    while counts[-1] * step < last:
        counts.append(counts[-1] * step)
    return [*counts, last]


def _allowed(nodes: int) -> int:
    if nodes < 1:
        raise InputError(f"a cluster needs at least one node, not {nodes}", remedy="say --nodes 1 or more")
    if nodes > MOST_NODES:
        raise InputError(f"--nodes must be at most {MOST_NODES:,}, not {nodes:,}")
    return nodes


def _no_range(text: str) -> InputError:
    return InputError(
        f"--nodes {text!r} says no numbers of nodes",
        remedy="write 1..64, 1..64:4x, 10..50:10 or 1,2,4",
    )
