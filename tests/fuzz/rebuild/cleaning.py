"""One `shoal clean` within a history, and what it must leave as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .difference import PROMISES, Difference, content_of
from .project import Tree

if TYPE_CHECKING:
    from .play import Player


def clean(player: Player) -> str:
    """Cleans, after a dry run of it; says how it ended."""
    before = player.project.tree()
    model = player.model()
    foreseen = _foresee(player, before)
    said = player.shoal("clean", "--verbose", player.flow.file, *player.words())
    after = player.project.tree()
    missing = any(made.status == "missing" for made in model.made.values())
    if said.status != 0 and not missing:
        raise Difference("status", f"clean ended with {said.status}")
    if PROMISES["clean"] and foreseen is not None and foreseen != _told(said.text):
        raise Difference("dry run", f"it says {foreseen}, and clean says {_told(said.text)}")
    for path, entry in before.items():
        if entry.same(after.get(path)) or entry.kind == "directory" or player.is_settled_back(path):
            continue
        content = content_of(entry)
        is_ours = content in player.versions.get(path, ()) or content in player.unclear.get(path, ())
        if PROMISES["clean"] and not is_ours:
            raise Difference("lost", f"clean removed {path!r}, which no task made")
    _compare_written_since_kill(player, before, after)
    known = {path: after[path] for path in after if path in before}
    player.compare_others(after, known, lambda path: not player.is_settled_back(path), "clean")
    player.cut_off.clear()
    if said.status == 0:
        player.recorded.clear()
        player.settled.clear()
        player.adopted.clear()
    return f"clean (status {said.status})"


def _foresee(player: Player, before: Tree) -> list[str] | None:
    """What a dry run says, which changes nothing; None if processes of a killed run may change something meanwhile."""
    if player.cut_off and not player.command.await_leftovers():
        return None
    said = player.shoal("clean", "--dry-run", "--verbose", player.flow.file, *player.words())
    player.compare_others(before, player.project.tree(), lambda path: not player.is_settled_back(path), "a dry run")
    return _told(said.text)


def _told(text: str) -> list[str]:
    """What is removed and kept, in the words of `clean`."""
    lines = [line.replace("would remove", "removed").replace("would keep", "kept") for line in text.splitlines()]
    return [line for line in lines if line.startswith(("removed", "kept", "  "))]


def _compare_written_since_kill(player: Player, before: Tree, after: Tree) -> None:
    """What the user wrote where a killed run had been making something is moved, not removed."""
    kept: set[bytes] | None = None
    for path, entry in before.items():
        content = content_of(entry)
        is_of_user = entry.kind == "file" and isinstance(content, bytes) and content.startswith(b"user ")
        if not is_of_user or not player.is_settled_back(path) or entry.same(after.get(path)):
            continue
        if content in player.versions.get(path, ()) or content in player.unclear.get(path, ()):
            continue
        kept = player.project.kept_content() if kept is None else kept
        if PROMISES["clean"] and content not in kept:
            raise Difference("lost", f"clean removed what the user wrote to {path!r} after a kill")
