"""Fuzzers that play whole histories against the real command."""
