"""The resource manager: grants parts of machines to runs, whole or not at all, without starvation. Pure.

Imports `shoal.core` and `shoal.petri`. Its face: `manager.ResourceManager`. Few users load it: job servers do.
"""
