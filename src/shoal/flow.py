"""The former name of `shoal.petri`: programs and recorded tokens that say `shoal.flow.net` find the same objects."""

from __future__ import annotations

import sys

from shoal import petri
from shoal.petri import language

net = petri
sys.modules["shoal.flow.net"] = petri
sys.modules["shoal.flow.net.words"] = language
