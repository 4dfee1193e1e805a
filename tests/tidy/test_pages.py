"""Pages for those who join: what they name exists, decisions have one form, and files for servers can be read."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
YAML = [ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]
FOLDERS = "src|tests|docs|bench|tools|examples|experiments"
NAMED_PATH = re.compile(rf"(?<![\w./~-])(?:{FOLDERS})/[\w./*-]*[\w*/]")
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
NAMED_PART = re.compile(r"`([\w.]+)`\s+in\s+`((?:src|tests)/[\w./-]+\.\w+)`")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
HEADINGS = ["Context", "Decision", "Alternatives", "Consequences", "When to look at it again"]
SHORTEST, LONGEST = 25, 45
"""Lines of a decision."""
ENTRY = re.compile(r"(?P<indent>(?:  )*)(?:- )*(?:[\w.-]+:(?: .*)?|\S.*)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_and_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    paths = {path for path in NAMED_PATH.findall(text) if not any(ROOT.glob(path))}
    links = {link for link in LINK.findall(text) if ":" not in link and not (page.parent / link).exists()}
    assert (paths, links) == (set(), set())


@pytest.mark.parametrize("page", [CONTRIBUTING, *DECISIONS], ids=name_of)
def test_what_a_page_names_in_a_file_is_there(page: Path) -> None:
    text = page.read_text()
    named = [(part.rpartition(".")[2], path) for part, path in NAMED_PART.findall(text)]
    named += [(test, path) for path, test in NAMED_TEST.findall(text)]
    assert named or page is not CONTRIBUTING
    there = [(part, ROOT / path) for part, path in named if (ROOT / path).exists()]
    absent = [(part, path.name) for part, path in there if not re.search(rf"\b{part}\b", path.read_text())]
    assert absent == []


@pytest.mark.parametrize("page", [page for page in DECISIONS if page.stem != "README"], ids=name_of)
def test_decisions_have_one_form_and_stand_in_the_index(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert text.startswith("# ")
    assert SHORTEST <= len(text.splitlines()) <= LONGEST
    title = text.splitlines()[0].removeprefix("# ")
    assert f"| [{title}]({page.name}) |" in (page.parent / "README.md").read_text()


@pytest.mark.parametrize("path", YAML, ids=name_of)
def test_yaml_can_be_read(path: Path) -> None:
    """By a parser if there is one; it is none of our dependencies, so lines are looked at in any case."""
    text = path.read_text()
    if importlib.util.find_spec("yaml"):
        assert isinstance(import_module("yaml").safe_load(text), dict)
    assert "\t" not in text
    before = 0
    for line in filter(str.strip, text.splitlines()):
        entry = ENTRY.fullmatch(line)
        assert entry, line
        indent = len(entry["indent"])
        assert indent <= before + 4, line  # a list of mappings goes two levels in at once
        before = indent


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=name_of)
def test_templates_of_issues_say_what_they_are_for(path: Path) -> None:
    _, head, body = path.read_text().split("---\n", 2)
    assert {"name", "about", "labels"} == {line.partition(":")[0] for line in head.splitlines()}
    assert body.strip()


def test_the_server_tests_the_oldest_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f"python: python{oldest}\n" in workflow
    assert "make test" in workflow


def test_architecture_names_files_and_symbols_that_exist() -> None:
    """In the life of a task and in the table of changes; "`file`: `name`, `name`" means that the file has the names."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    sections = text.split("\n## The life of one task\n", 1)[1].split("\n## Glossary\n", 1)[0]
    sections += text.split("\n## Where do I change ...?\n", 1)[1].split("\n## ", 1)[0]
    sources = [path for path in (ROOT / "src" / "shoal").rglob("*.*") if path.suffix in (".py", ".c", ".js")]
    everything = "\n".join(path.read_text() for path in sources)
    names = set(re.findall(r"`([^`]+)`", sections))
    files = {name for name in names if re.fullmatch(r"[\w/]+\.(py|c|js)", name)}
    symbols = {part for name in names - files if re.fullmatch(r"[\w.]+", name) for part in name.split(".") if part}
    wrong = [name for name in files if not found_in(sources, name)]
    wrong += [name for name in symbols if not re.search(rf"\b{name}\b", everything)]
    for file, listed in re.findall(r"`([\w/]+\.(?:py|c|js))`: ((?:`[\w.]+`(?:, )?)+)", sections):
        there = "\n".join(path.read_text() for path in found_in(sources, file))
        listed_names = set(re.findall(r"`([\w.]+)`", listed)) - files
        wrong += [f"{file}: {name}" for name in listed_names if not re.search(rf"\b{name.split('.')[-1]}\b", there)]
    assert wrong == []


def found_in(sources: list[Path], name: str) -> list[Path]:
    return [path for path in sources if f"/{path.relative_to(ROOT / 'src')}".endswith(f"/{name}")]
