"""Errors, split by who must act.

`InputError` is the user's to mend: it names file, line and remedy and becomes exit status 2. `RunError` stops a run
that was under way (disk full, ledger unwritable): what had finished is kept. A failed task is an event, not an
exception; anything else that is raised is a defect of Shoal.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of everything Shoal raises on purpose."""


class InputError(ShoalError):
    """Something the user wrote cannot be used; says where it stands and what to do about it."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        remedy: str | None = None,
        text: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.remedy = remedy
        self.text = text

    def __str__(self) -> str:
        """`file:line:column: message; remedy`, then the user's own line with a caret where that is known."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        sentence = f"{place}: {self.message}" if place else self.message
        if self.remedy:
            sentence += f"; {self.remedy}"
        if self.text is not None:
            sentence += f"\n    {self.text.rstrip()}"
            if self.column is not None:
                sentence += f"\n    {' ' * (self.column - 1)}^"
        return sentence


class RunError(ShoalError):
    """A run under way had to stop; everything that finished before is in the ledger."""
