"""What an expression may cost: how deep it may nest and how much it may yield.

Without these a few bytes of text could use up the stack or the memory of the machine.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NESTING = 1000
"""How deep the text of an expression may nest."""
EVALUATION_DEPTH = 3000
"""How deep evaluation may go: nesting, and definitions that use definitions."""
BUDGET = 40_000_000
"""How many values one evaluation may yield; 32 characters of text count as one."""
CHARACTERS_PER_UNIT = 32
FRAMES_PER_LEVEL = 6


@contextmanager
def deep_stack() -> Iterator[None]:
    """Lets Python nest as deep as the limits above allow, and puts its own limit back afterwards.

    The collector of cyclic garbage rests meanwhile: there is none, and to search for it takes half of the time.
    """
    before, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(before, EVALUATION_DEPTH * FRAMES_PER_LEVEL + before))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if collecting:
            gc.enable()
