"""Asks `roc-validator` about crates, without a network: `python crate_validator.py CONTEXT SEVERITY CRATE...`.

It is run by the interpreter of the environment that has the validator, which cannot be ours: it wants an older `rich`
than import-linter does. CONTEXT is a file with the JSON-LD context of RO-Crate. Prints one line for each thing that is
wrong, and how many checks were made.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rocrate_validator import services  # type: ignore[import-not-found,unused-ignore]  # of another environment
from rocrate_validator.utils.http import HttpRequester  # type: ignore[import-not-found,unused-ignore]

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
PROFILE = "provenance-run-crate"
"""With it the validator checks those that it builds on, too: process, workflow, and RO-Crate itself."""
BIOSCHEMAS = "https://bioschemas.org/"
MAPPED = {
    "ComputationalWorkflow": f"{BIOSCHEMAS}ComputationalWorkflow",
    "FormalParameter": f"{BIOSCHEMAS}FormalParameter",
    "input": f"{BIOSCHEMAS}ComputationalWorkflow#input",
    "output": f"{BIOSCHEMAS}ComputationalWorkflow#output",
}
"""What these words mean in RO-Crate 1.1; later contexts have other addresses for them."""


class Answer:
    """The context, as if it came from its server."""

    status_code = 200
    ok = True
    headers = {"Content-Type": "application/ld+json"}  # noqa: RUF012  never changed

    def __init__(self, context: dict[str, Any]) -> None:
        self._context = context
        self.text = json.dumps(context)
        self.content = self.text.encode()

    def json(self) -> dict[str, Any]:
        return self._context

    def raise_for_status(self) -> None:
        """It never fails."""


class Session:
    """Knows the context and nothing else of the world."""

    def __init__(self, context: dict[str, Any]) -> None:
        self._context = context

    def get(self, url: str, *_: object, **__: object) -> Answer:
        if url.rstrip("/") != CONTEXT:
            raise OSError(f"there is no network for {url}")
        return Answer(self._context)

    head = get


def main() -> int:
    context = json.loads(Path(sys.argv[1]).read_text())
    context["@context"].update(MAPPED)
    checks, wrong = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for crate in sys.argv[3:]:
            settings = services.ValidationSettings(
                rocrate_uri=crate,
                profile_identifier=PROFILE,
                requirement_severity=sys.argv[2],
                offline=True,
                cache_path=Path(folder) / "cache",
            )
            HttpRequester().session = Session(context)
            result = services.validate(settings)
            checks += len(result.executed_checks)
            for issue in result.get_issues():
                wrong += 1
                print(f"{crate}: {issue.check.identifier}: {issue.message}")
    print(f"{checks} checks, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
