"""Names and what they mean during an evaluation: frames of local names, and the definitions of a document.

The value of a definition depends on the names it reads, and these on where it is used. So it is remembered only if it
read no local name of its users, and used again only where no local name stands before a name it has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.frontend.jx.nodes import Constant, Node, ObjectNode
from shoal.frontend.jx.values import Value

_NONE_READ = 1 << 62


class Frame:
    """Local names, of one turn of a comprehension or of the fields of one object, before those of the frame around."""

    __slots__ = ("around", "depth", "names")

    def __init__(self, names: Mapping[str, Value], around: Frame | None) -> None:
        self.names = names
        self.around = around
        self.depth: int = 1 if around is None else around.depth + 1

    def find(self, name: str) -> Frame | None:
        """The innermost frame that has this name."""
        frame: Frame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.around
        return frame


@dataclass(slots=True)
class Reading:
    """What an evaluation under way has read: global names, and the outermost frame of which it read a local name."""

    depth: int
    names: dict[str, None] = field(default_factory=dict)
    outermost: int = _NONE_READ


class Definitions:
    """The `define` of a document, and the values found so far."""

    def __init__(self, body: Node) -> None:
        self.bodies: dict[str, Node] = {}
        self.readings: list[Reading] = []
        self.known: dict[str, tuple[Value, Reading]] = {}
        for pair in _literal_pairs(body)[::-1]:
            if pair[0] == "define":
                self.bodies = dict(_literal_pairs(pair[1]))

    def note_local(self, depth: int) -> None:
        if self.readings and depth < self.readings[-1].outermost:
            self.readings[-1].outermost = depth

    def note_global(self, name: str) -> None:
        if self.readings:
            self.readings[-1].names[name] = None

    def remembered(self, name: str, frame: Frame | None) -> tuple[Value] | None:
        """The value of a definition if it is known and holds here."""
        known = self.known.get(name)
        if known is None:
            return None
        value, reading = known
        if frame is not None and any(frame.find(read) is not None for read in reading.names):
            return None
        self._pass_on(reading)
        return (value,)

    def begin(self, frame: Frame | None) -> Reading:
        """A definition is about to be evaluated in this frame."""
        reading = Reading(0 if frame is None else frame.depth)
        self.readings.append(reading)
        return reading

    def end(self, name: str, reading: Reading, value: Value) -> None:
        """It has been evaluated: remembers its value if that does not depend on local names around it."""
        self.readings.pop()
        self._pass_on(reading)
        if reading.outermost > reading.depth:
            self.known[name] = (value, reading)

    def _pass_on(self, reading: Reading) -> None:
        """What a definition has read, the one that uses it has read as well."""
        if self.readings:
            self.readings[-1].names.update(reading.names)
            self.note_local(reading.outermost)


def _literal_pairs(node: Node) -> list[tuple[str, Node]]:
    """The pairs of an object whose keys are written out."""
    if not isinstance(node, ObjectNode):
        return []
    return [
        (pair.key.value, pair.value)
        for pair in node.pairs
        if not pair.clauses and isinstance(pair.key, Constant) and isinstance(pair.key.value, str)
    ]
