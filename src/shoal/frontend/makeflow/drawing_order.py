"""The order in which the original's programs list names: that of its hash table, which users' scripts have come to see.

The table starts with 127 buckets and doubles when it is more than three quarters full; a new name goes to the head of
its bucket's chain, and doubling moves the names over one by one in the order of a listing. The hash is Bob Jenkins'
"lookup2" of 1996 (https://burtleburtle.net/bob/hash/evahash.html), but reckoned in 64 bits, as the original does by
using a type that is wider than meant; the lower 32 bits of the outcome count.
"""

from __future__ import annotations

from collections.abc import Iterable

_FIRST_BUCKETS = 127
_GOLDEN_RATIO = 0x9E3779B9
_MASK = 2**64 - 1
_HALF_MASK = 2**32 - 1


def listing_order(names: Iterable[str]) -> list[str]:
    """The names, each once, as the original's table lists them after they were put in one by one."""
    hashes: dict[str, int] = {}
    chains: list[list[str]] = [[] for _ in range(_FIRST_BUCKETS)]
    for name in names:
        if name in hashes:
            continue
        if 4 * len(hashes) > 3 * len(chains):
            chains = _doubled(chains, hashes)
        number = hashes[name] = hash_of(name.encode("utf-8", "surrogateescape"))
        chains[number % len(chains)].append(name)
    return _listed(chains)


def _listed(chains: list[list[str]]) -> list[str]:
    """Chains are kept with their heads at the end."""
    return [name for chain in chains for name in reversed(chain)]


def _doubled(chains: list[list[str]], hashes: dict[str, int]) -> list[list[str]]:
    count = 2 * len(chains)
    doubled: list[list[str]] = [[] for _ in range(count)]
    for name in _listed(chains):
        doubled[hashes[name] % count].append(name)
    return doubled


def hash_of(key: bytes) -> int:
    """The number by which the original finds the bucket of a name."""
    a = b = _GOLDEN_RATIO
    c = 0
    length = len(key)
    end = length - length % 12
    for place in range(0, end, 12):
        a += int.from_bytes(key[place : place + 4], "little")
        b += int.from_bytes(key[place + 4 : place + 8], "little")
        c += int.from_bytes(key[place + 8 : place + 12], "little")
        a, b, c = _mixed(a, b, c)
    a += int.from_bytes(key[end : end + 4], "little")
    b += int.from_bytes(key[end + 4 : end + 8], "little")
    # The lowest byte of the last word is the length's.
    c += length + (int.from_bytes(key[end + 8 :], "little") << 8)
    return _mixed(a, b, c)[2] & _HALF_MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - b - c & _MASK) ^ ((c & _MASK) >> 13)
    b = (b - c - a ^ a << 8) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 13)
    a = (a - b - c & _MASK) ^ (c >> 12)
    b = (b - c - a ^ a << 16) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 5)
    a = (a - b - c & _MASK) ^ (c >> 3)
    b = (b - c - a ^ a << 10) & _MASK
    c = (c - a - b & _MASK) ^ (b >> 15)
    return a, b, c
