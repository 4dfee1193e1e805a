"""Readers and writers of workflow languages: text to a graph, and a graph to text.

Pure: `shoal.execution` reads the files. Imports `shoal.core`.
One package per language: rules files, Makeflow, JX and JSON, WfFormat, RO-Crate.
"""
