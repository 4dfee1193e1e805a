"""Synthetic WfFormat files in the shapes that recorded workflows have, in every version we read.

The values are put together here, without the package's own writer, so that a test compares two things that were made
apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Value = dict[str, Any]


class TraceMaker:
    """Collects tasks and makes a file of them; dependencies follow from the files."""

    def __init__(self, name: str, system: str, seed: int = 1) -> None:
        self.name = name
        self.system = system
        self.random = Random(seed)
        self.tasks: list[Value] = []
        self.sizes: dict[str, int] = {}
        self.maker: dict[str, str] = {}

    def add(self, program: str, inputs: list[str], outputs: list[str], seconds: float, **measures: Any) -> None:
        """Adds a task; its id is made from the program and its number."""
        task_id = f"{program}_ID{len(self.tasks) + 1:06}"
        for file in (*inputs, *outputs):
            self.sizes.setdefault(file, self.random.randrange(200_000))
        self.maker.update(dict.fromkeys(outputs, task_id))
        task = {"id": task_id, "program": program, "inputs": inputs, "outputs": outputs, "seconds": seconds}
        self.tasks.append(task | {"measures": measures})

    def parents(self, task: Value) -> list[str]:
        return list(dict.fromkeys(self.maker[file] for file in task["inputs"] if file in self.maker))

    def value(self, version: str = "1.5") -> Value:
        """The whole file as a JSON value."""
        system = {"name": self.system, "version": "7.1", "url": "https://example.org/"}
        top: Value = {
            "name": self.name,
            "description": f"made by a test, shaped like {self.name}",
            "createdAt": "2024-05-01T12:00:00+00:00",
            "schemaVersion": version,
            "author": {"name": "tester", "email": "tester@example.org"},
        }
        top["wms" if version == "1.4" else "runtimeSystem"] = system
        top["workflow"] = self._workflow_14() if version == "1.4" else self._workflow()
        return top

    def text(self, version: str = "1.5") -> bytes:
        return json.dumps(self.value(version)).encode()

    def _workflow(self) -> Value:
        parents = {task["id"]: self.parents(task) for task in self.tasks}
        tasks = [
            {
                "name": task["id"],
                "id": task["id"],
                "children": [child for child, needed in parents.items() if task["id"] in needed],
                "inputFiles": task["inputs"],
                "outputFiles": task["outputs"],
                "parents": parents[task["id"]],
            }
            for task in self.tasks
        ]
        executed = [
            {
                "id": task["id"],
                "runtimeInSeconds": task["seconds"],
                "command": {"program": task["program"], "arguments": [*task["inputs"][:2], "-o", *task["outputs"][:1]]},
                "machines": ["node-1"],
                **task["measures"],
            }
            for task in self.tasks
        ]
        machine = {
            "nodeName": "node-1",
            "system": "linux",
            "architecture": "x86_64",
            "memoryInBytes": 64 << 30,
            "cpu": {"coreCount": 24, "speedInMHz": 2400, "vendor": "GenuineIntel"},
        }
        files = [{"id": name, "sizeInBytes": size} for name, size in self.sizes.items()]
        return {
            "specification": {"tasks": tasks, "files": files},
            "execution": {
                "makespanInSeconds": sum(task["seconds"] for task in self.tasks),
                "executedAt": "20240501T120000+0000",
                "tasks": executed,
                "machines": [machine],
            },
        }

    def _workflow_14(self) -> Value:
        tasks = []
        for task in self.tasks:
            files = [(name, "output") for name in task["outputs"]] + [(name, "input") for name in task["inputs"]]
            measures = {{"coreCount": "cores"}.get(key, key): value for key, value in task["measures"].items()}
            tasks.append(
                {
                    "name": task["id"],
                    "id": task["id"].rsplit("_", 1)[1],
                    "category": task["program"],
                    "type": "compute",
                    "command": {"program": task["program"], "arguments": task["inputs"][:2] or ["none"]},
                    "parents": self.parents(task),
                    "files": [{"name": name, "sizeInBytes": self.sizes[name], "link": link} for name, link in files],
                    "runtimeInSeconds": task["seconds"],
                    "machine": "node-1",
                    **measures,
                }
            )
        return {
            "makespanInSeconds": sum(task["seconds"] for task in self.tasks),
            "executedAt": "20240501T120000+0000",
            "machines": [{"nodeName": "node-1", "cpu": {"count": 24, "speed": 2400}}],
            "tasks": tasks,
        }


def split_search_join(width: int = 10, seed: int = 1) -> TraceMaker:
    """As an alignment: an index and a split, many searches, two joins; everything is measured."""
    maker = TraceMaker("split-search-join", "Makeflow", seed)
    draw = maker.random
    pieces = [f"query.{number}" for number in range(width)]
    index = ["reference.idx", "reference.tbl"]
    maker.add("split", ["query"], pieces, 0.05, coreCount=1, avgCPU=94.3, memoryInBytes=3_000_000, readBytes=2341000)
    maker.add("index", ["reference"], index, 8.0, coreCount=1, avgCPU=94.0, memoryInBytes=40_000_000)
    for piece in pieces:
        seconds = draw.uniform(0.1, 3.0)
        outputs = [f"{piece}.sam", f"{piece}.err"]
        maker.add("search", [*index, piece], outputs, seconds, coreCount=1, avgCPU=draw.uniform(1, 98))
    maker.add("join", [f"{piece}.sam" for piece in pieces], ["all.sam"], 0.6, coreCount=1)
    maker.add("join_errors", [f"{piece}.err" for piece in pieces], ["all.err"], 0.0, coreCount=1, avgCPU=0.0)
    return maker


def irregular(tasks: int = 30, seed: int = 2) -> TraceMaker:
    """As a nest of sub-workflows: file ids are paths and addresses, and some run times are 0."""
    maker = TraceMaker("irregular", "Nextflow", seed)
    draw = maker.random
    made = ["https://example.org/data:v1/genes.gtf.gz", "/reference/genome.fa"]
    for number in range(tasks):
        inputs = draw.sample(made[-8:], min(len(made[-8:]), draw.randint(1, 3)))
        outputs = [f"/{number:02x}/work/step.{part}" for part in range(draw.randint(1, 3))]
        seconds = 0.0 if draw.random() < 0.3 else draw.uniform(0.01, 20.0)
        measures = {"avgCPU": draw.uniform(0, 140), "memoryInBytes": draw.randrange(1 << 26), "writtenBytes": 1757}
        maker.add(f"STEP{number % 7}", inputs, outputs, seconds, **measures)
        made += outputs
    return maker


def mosaic(images: int = 6, seed: int = 3) -> TraceMaker:
    """Wide and narrow levels in turn, as in an image mosaic."""
    maker = TraceMaker("mosaic", "Pegasus", seed)
    draw = maker.random
    for number in range(images):
        made = [f"p{number}.fits", f"p{number}_area.fits"]
        maker.add("project", ["region.hdr", f"raw{number}.fits"], made, draw.uniform(10, 20), avgCPU=99.6, priority=20)
    fits = []
    for number in range(images):
        fits.append(f"fit.{number}.txt")
        both = [f"p{number}.fits", f"p{(number + 1) % images}.fits"]
        maker.add("difference", both, [fits[-1]], draw.uniform(0.1, 0.3), avgCPU=60.0, priority=30)
    maker.add("concatenate", fits, ["fits.tbl"], 0.7, avgCPU=20.0)
    maker.add("model", ["fits.tbl"], ["corrections.tbl"], 3.9, avgCPU=99.0)
    corrected = [f"c{number}.fits" for number in range(images)]
    for number, name in enumerate(corrected):
        maker.add("correct", [f"p{number}.fits", "corrections.tbl"], [name], 0.4, avgCPU=50.0)
    maker.add("add", corrected, ["mosaic.fits"], 0.3, avgCPU=30.0)
    return maker


def fork_joins(chains: int = 4, width: int = 5, seed: int = 4) -> TraceMaker:
    """Many fork-joins side by side, with more CPU time than run time."""
    maker = TraceMaker("fork-joins", "Pegasus", seed)
    draw = maker.random
    for chain in range(chains):
        parts = [f"chr{chain}n-{number}.tar.gz" for number in range(width)]
        for part in parts:
            source = [f"chr{chain}.vcf", "columns.txt"]
            maker.add("individuals", source, [part], draw.uniform(40, 60), avgCPU=draw.uniform(90, 190), priority=20)
        maker.add("merge", parts, [f"chr{chain}n.tar.gz"], 90.0, avgCPU=14.5, priority=30)
        maker.add("sifting", [f"sites.{chain}.vcf"], [f"sifted.{chain}.txt"], 4.5, avgCPU=80.0)
        both = [f"chr{chain}n.tar.gz", f"sifted.{chain}.txt"]
        maker.add("overlap", both, [f"overlap.{chain}.tar.gz"], 9.5, avgCPU=99.0)
    return maker


def bag_and_join(tasks: int = 60, seed: int = 5) -> TraceMaker:
    """Independent short tasks and one that reads what they made."""
    maker = TraceMaker("bag-and-join", "Pegasus", seed)
    draw = maker.random
    made = []
    for number in range(tasks):
        made.append(f"st{number}.stf")
        inputs = [f"mshock-{number}.lht", f"egf-{number}.lht"]
        maker.add("deconvolve", inputs, [made[-1]], draw.expovariate(2.0), avgCPU=97.6, priority=20)
    maker.add("sift", [*made, "stations.txt"], ["good-fits.tar.gz"], 0.35, avgCPU=11.0)
    return maker


SHAPES: dict[str, Callable[[], TraceMaker]] = {
    "split-search-join": split_search_join,
    "irregular": irregular,
    "mosaic": mosaic,
    "fork-joins": fork_joins,
    "bag-and-join": bag_and_join,
}
VERSIONS = ("1.4", "1.5", "1.6")
