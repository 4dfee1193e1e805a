"""What a history can show to be wrong, and which promises are checked."""

from __future__ import annotations

from .project import Entry

Content = bytes | tuple[str, str]
"""A file's bytes, or ("link", target)."""
PROMISES = {"check": True, "restore": True, "refuse": True, "keep": True, "half": True, "clean": True, "left": True,
            "away": True}  # fmt: skip
"""What is promised beyond outputs that are right; the command line may leave some out."""


class Difference(Exception):  # noqa: N818  # what a fuzzer looks for, not an error of its own
    """What is not as the model demands."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


def content_of(entry: Entry) -> Content:
    if entry.kind == "link":
        return "link", str(entry.content)
    return entry.content if isinstance(entry.content, bytes) else entry.content.encode()


def is_of_dropin(path: str) -> bool:
    """What the stand-in for `makeflow` leaves, as the original does."""
    return path.startswith("makeflow.failed.") or path.endswith(".makeflowlog")
