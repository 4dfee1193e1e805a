"""OpenMetrics as the library of Prometheus reads it, which refuses what is not in the format."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


def samples(text: str) -> dict[str, dict[Labels, float]]:
    """By name of a sample and its labels, in the order of the alphabet: the value."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]  # it has no types
        for sample in family.samples:
            mine = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in mine, (sample.name, labels)
            mine[labels] = sample.value
    return found
