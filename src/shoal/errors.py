"""The exception classes of Shoal, by who has to act.

`InputError` is for the user to fix: it names file, line and remedy and leads to exit status 2. `RunError` stops a run
in progress (disk full, ledger not writable); finished tasks stay finished. A failed task is an event, not an exception.
Any other exception is a bug in Shoal.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base class of all exceptions that Shoal raises on purpose."""


class InputError(ShoalError):
    """The user's input cannot be used; says where the error is and how to fix it."""

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
        """Returns `file:line:column: message; remedy`, then the offending line with a caret where the column is
        known."""
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
    """A run in progress had to stop; everything that finished before is in the ledger."""
