"""Synthetic random graphs, for simulations, tests and benchmarks.

Every shape function takes a random generator and an approximate number of tasks, and returns a complete graph with
placeholder commands. The shape determines the dependencies. Resource requests come from `profiles`, one per category,
so that the same shape can be used with one scheduling lane or with several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from shoal.core.graph import Graph, GraphBuilder
from shoal.core.resources import Resources
from shoal.core.task import Profile

Profiles = Mapping[str, Profile]
"""Profile of each category; categories without a profile request one core."""


def bag(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Independent tasks of a few categories."""
    build = _Maker(profiles)
    for number in range(tasks):
        build.add(random.choice(("even", "odd")), [], f"bag/{number}")
    return build.graph()


def chain(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Each task reads the output of the one before."""
    build = _Maker(profiles)
    before: list[str] = []
    for number in range(tasks):
        before = [build.add("link", before, f"chain/{number}")]
    return build.graph()


def fan(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """One task, many readers of its output, and one reader of all their outputs."""
    build = _Maker(profiles)
    first = build.add("split", [], "fan/first")
    middle = [build.add("work", [first], f"fan/{number}") for number in range(max(1, tasks - 2))]
    build.add("join", middle, "fan/last")
    return build.graph()


def fork_join(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Stages of equal width with a group between them: a barrier without an action and without files."""
    build = _Maker(profiles)
    width = random.randint(2, max(2, tasks // 2))
    barrier: list[int] = []
    for stage in range(max(1, tasks // width)):
        for number in range(width):
            build.add("stage", [], f"stage/{stage}/{number}", after=barrier)
        last = len(build.builder.graph)
        barrier = [build.builder.task(f"barrier {stage}", None, after=range(last - width, last))]
    return build.graph()


def layered(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Random layers; each task reads up to three files of the previous layer, and sometimes an older one."""
    build = _Maker(profiles)
    layers: list[list[str]] = []
    left = tasks
    while left > 0:
        width = min(left, random.randint(1, max(1, tasks // 3)))
        left -= width
        layer = []
        for number in range(width):
            inputs = [random.choice(layers[-1]) for _ in range(random.randint(1, 3))] if layers else []
            if len(layers) > 1 and random.random() < 0.2:
                inputs.append(random.choice(random.choice(layers[:-1])))
            layer.append(build.add(f"layer{len(layers) % 3}", inputs, f"layer/{len(layers)}/{number}"))
        layers.append(layer)
    return build.graph()


def montage(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Stages of an image mosaic: project, fit the overlaps, one model of the background, correct, add, shrink."""
    build = _Maker(profiles)
    images = max(2, tasks // 4)
    projected = [build.add("project", [f"raw/{at}"], f"projected/{at}") for at in range(images)]
    fits = []
    for at in range(images):
        for other in sorted({(at + 1) % images, (at + random.randint(2, 4)) % images} - {at}):
            fits.append(build.add("fit", [projected[at], projected[other]], f"fit/{at}-{other}"))
    table = build.add("concatenate", fits, "fits.table")
    model = build.add("model", [table], "background.table")
    corrected = [build.add("correct", [file, model], f"corrected/{at}") for at, file in enumerate(projected)]
    mosaic = build.add("add", corrected, "mosaic")
    build.add("shrink", [mosaic], "mosaic.small")
    build.builder.task("all", None, inputs=["mosaic.small"])
    return build.graph()


def tangle(random: Random, tasks: int, profiles: Profiles | None = None) -> Graph:
    """Tasks of many categories that depend on random earlier ones, by files, by explicit order or through a group."""
    build = _Maker(profiles)
    files: list[str] = []
    numbers: list[int] = []
    density = random.choice((0.5, 1.0, 2.0))
    for at in range(tasks):
        wanted = min(len(files), int(random.expovariate(1.0 / density)))
        inputs = random.sample(files[-12:], min(wanted, len(files[-12:])))
        after = [random.choice(numbers)] if numbers and random.random() < 0.15 else []
        numbers.append(len(build.builder.graph))
        files.append(build.add(f"kind{random.randrange(5)}", inputs, f"tangle/{at}", after=after))
        if random.random() < 0.08:
            group = build.builder.task(f"group {at}", None, after=random.sample(numbers, min(3, len(numbers))))
            numbers.append(group)
    return build.graph()


Shape = Callable[[Random, int, Profiles | None], Graph]

SHAPES: dict[str, Shape] = {
    "bag": bag,
    "chain": chain,
    "fan": fan,
    "fork-join": fork_join,
    "layered": layered,
    "montage": montage,
    "tangle": tangle,
}

CATEGORIES = (
    *("even", "odd", "link", "split", "work", "join", "stage"),
    *("layer0", "layer1", "layer2", "kind0", "kind1", "kind2", "kind3", "kind4"),
    *("project", "fit", "concatenate", "model", "correct", "add", "shrink"),
)
"""All categories that the shapes use."""


def several_lanes(
    random: Random, node: Resources, retries: int = 0, timeout: float | None = None
) -> dict[str, Profile]:
    """A profile per category with different requests that fit on the node: some small, some as large as the node."""
    profiles = {}
    for category in CATEGORIES:
        requested = {}
        for name, amount in node.amounts:
            eighths = random.choice((1, 4, 4, 4, 8)) if name == "cores" else random.choice((0, 0, 1, 2, 4, 8))
            requested[name] = amount * eighths // 8
        profiles[category] = Profile(category, Resources.of(requested), random.randint(0, retries), timeout)
    return profiles


class _Maker:
    """A graph builder with commands named after categories, and with the profiles."""

    def __init__(self, profiles: Profiles | None) -> None:
        self.builder = GraphBuilder("<generated>")
        self.profiles = profiles or {}

    def add(self, category: str, inputs: list[str], output: str, after: list[int] | None = None) -> str:
        profile = self.profiles.get(category) or Profile(category)
        command = f"{category} {output}"
        self.builder.task("", command, inputs=inputs, outputs=[output], after=after or (), profile=profile)
        return output

    def graph(self) -> Graph:
        return self.builder.build()
