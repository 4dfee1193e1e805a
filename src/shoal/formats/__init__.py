"""Workflow languages, in and out: text to a graph, and a graph to text. Pure: reading files is execution's part.

Imports `shoal.core`. One package per language: rules files, Makeflow, JX and JSON, WfFormat, RO-Crate.
"""
