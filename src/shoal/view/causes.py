"""What messages about different failures have in common. Needs no numpy, since the display of a run counts them too."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<!status )(?<!signal )\b\d+(?:\.\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def cause_of(message: str) -> str:
    """What messages about different tasks have in common: without numbers (other than exit status and signal) and names
    in quotes."""
    return _NUMBER.sub("N", _QUOTED.sub("'…'", message)).strip()[:300]
