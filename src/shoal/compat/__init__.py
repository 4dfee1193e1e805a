"""Replacements for other programs: `makeflow` and `resource_monitor`, with their options, logs and exit statuses.

Imports `shoal.execution` and the layers below it. Few users load it.
"""
