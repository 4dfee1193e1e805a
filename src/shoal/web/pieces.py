"""Long tables, cut into parts of a page, so that only the rows that changed need be sent again."""

from __future__ import annotations

from typing import Any

ROWS_OF_PART = 16


def in_pieces(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows of a table as parts: `name.0`, `name.1` and so on."""
    starts = range(0, max(1, len(rows)), ROWS_OF_PART)
    return {f"{name}.{begin // ROWS_OF_PART}": rows[begin : begin + ROWS_OF_PART] for begin in starts}
