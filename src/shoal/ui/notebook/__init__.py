"""Runs, executors and futures as notebooks show them."""
