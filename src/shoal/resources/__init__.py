"""The resource manager: grants parts of machines to runs, all or nothing, without starvation. Pure.

Imports `shoal.core` and `shoal.petri`. Main entry point: `manager.ResourceManager`. Only job servers load it.
"""
