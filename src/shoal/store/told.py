"""What a store in memory keeps of a run beside its books: the log for its client, further pieces, words about files."""

from __future__ import annotations


class Told:
    """Opaque bytes that others have told."""

    def __init__(self) -> None:
        self._log: list[bytes] = []
        self._pieces: dict[str, bytes] = {}
        self._about: dict[int, bytes] = {}

    def about_of(self, file: int) -> bytes | None:
        """What whoever made a file last wanted to be known of it."""
        return self._about.get(file)

    def note(self, entry: bytes) -> None:
        """Logs an entry."""
        self._log.append(entry)

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """The entries from number `start` on, as far as there are any."""
        return self._log[start : start + most]

    def put_piece(self, name: str, data: bytes) -> None:
        """Something more that belongs to the run."""
        self._pieces[name] = data

    def get_piece(self, name: str) -> bytes | None:
        """What was put under a name."""
        return self._pieces.get(name)

    def forget(self) -> None:
        """Lets go of what was told; the rest goes with the store."""
        self._log.clear()
        self._pieces.clear()
