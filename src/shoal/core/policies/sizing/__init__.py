"""Automatic sizing: resources for tasks that do not declare them, learned from tasks of the same category. Pure."""
