"""Intervals spread over equal buckets of time, exactly, in a few passes over all of them.

The area under a sum of steps up to a moment `t` is `t` times the weights begun so far, less their moments times their
weights. So two counts per bucket are enough, however many buckets an interval crosses.
"""

from __future__ import annotations

import numpy as np

from shoal.view.columns import Array, Floats, Ints

_AT_ONCE = 1 << 17
"""Intervals that are looked at together: of a million the numbers in between would need a hundred megabytes."""


def spread(begins: Floats, ends: Floats, weights: Floats, groups: Ints, count: int, edges: Floats) -> Floats:
    """Mean weight at work in each bucket, by group: a row per group, a column per bucket.

    `edges` are equally far from each other; what lies before the first or behind the last is left out.
    """
    buckets = len(edges) - 1
    first, width = float(edges[0]), float(edges[1] - edges[0])
    if not len(begins):
        return np.zeros((count, buckets))
    size = count * (buckets + 1)
    whole, moment = np.zeros(size), np.zeros(size)
    for moments, sign in ((begins, 1.0), (ends, -1.0)):
        for at in range(0, len(moments), _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            clipped = np.clip((moments[part] - first) / width, 0.0, buckets)
            # An event in a bucket counts at that bucket's end, for the part of the bucket behind it.
            key = groups[part] * (buckets + 1) + np.minimum(clipped.astype(np.int64), buckets)
            weight = sign * weights[part]
            whole += np.bincount(key, weight, size)
            moment += np.bincount(key, weight * clipped, size)
    steps = np.cumsum(whole.reshape(count, buckets + 1), axis=1)
    moments_so_far = np.cumsum(moment.reshape(count, buckets + 1), axis=1)
    found = np.zeros((count, buckets + 1))
    found[:, 1:] = steps[:, :-1] * np.arange(1, buckets + 1) - moments_so_far[:, :-1]
    means: Floats = np.diff(found, axis=1)
    means[means < 1e-9] = 0.0  # what is left of differences that should be nothing
    return means


def total_over(begins: Floats, ends: Floats, weights: Floats, edges: Floats) -> Floats:
    """The same for one group."""
    found: Floats = spread(begins, ends, weights, np.zeros(len(begins), np.int64), 1, edges)[0]
    return found


def counts_until(moments: Floats, edges: Floats) -> Ints:
    """How many of the moments lie at or before each edge."""
    found: Ints = np.searchsorted(np.sort(moments), edges, side="right").astype(np.int64)
    return found


def even_edges(begin: float, end: float, buckets: int) -> Floats:
    """Edges of equal buckets; never of no width, not even late in a long run, where numbers are further apart."""
    return np.linspace(begin, max(end, begin + max(1e-6, 1e-9 * abs(begin))), buckets + 1)


def rank_of(values: Array, most: int) -> tuple[Ints, int]:
    """For each position its place among the largest, and how many places there are; those that are left share the last.

    With no more than `most` positions each has a place of its own.
    """
    order = np.argsort(-np.asarray(values, np.float64), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if len(order) <= most:
        return place, max(1, len(order))
    return np.minimum(place, most - 1), most
