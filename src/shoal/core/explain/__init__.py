"""Explanations why a task or a run is in its state: answers as data, their sources, and sentences. Pure."""
