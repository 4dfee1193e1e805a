"""What is pressed in `shoal top`: bytes of a terminal in, names of keys out. Pure."""

from __future__ import annotations

_SEQUENCES = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"[H": "home",
    b"[F": "end",
    b"[1~": "home",
    b"[4~": "end",
    b"[5~": "page up",
    b"[6~": "page down",
    b"OA": "up",
    b"OB": "down",
    b"OC": "right",
    b"OD": "left",
    b"OH": "home",
    b"OF": "end",
}
_SINGLE = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "back", "\x08": "back", "\x0c": "redraw", "\x04": "q"}
_OTHERS = {"k": "up", "j": "down", "g": "home", "G": "end", " ": "page down", "Q": "q", "h": "?"}
_LONGEST = 12


def keys_in(data: bytes) -> tuple[list[str], bytes]:
    """The keys, and what is left because a sequence is not complete yet."""
    found: list[str] = []
    while data:
        if data[:1] != b"\x1b":
            letter = chr(data[0])
            found.append(_SINGLE.get(letter) or _OTHERS.get(letter, letter))
            data = data[1:]
            continue
        size = _length(data)
        if size is None:
            return found, data
        key = _SEQUENCES.get(data[1:size]) if size > 1 else "escape"
        found += [key] if key is not None else []
        data = data[size:]
    return found, b""


def _length(data: bytes) -> int | None:
    """Of the sequence at the beginning; None if more of it must come."""
    if len(data) == 1:
        return None
    if data[1:2] == b"O":
        return 3 if len(data) > 2 else None
    if data[1:2] != b"[":
        return 1
    for at in range(2, min(len(data), _LONGEST)):
        if 0x40 <= data[at] <= 0x7E:
            return at + 1
    return None if len(data) < _LONGEST else _LONGEST
