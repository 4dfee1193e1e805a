"""Workloads of published papers, by name; `registry` lists them."""
