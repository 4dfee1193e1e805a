"""Runs a Makeflow as the original `makeflow` program does: messages, log, wrappers and removal of files."""
