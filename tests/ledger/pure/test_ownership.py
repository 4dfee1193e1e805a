"""What a task made is known again in every form in which it may stand there, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from shoal.execution.files.moves import mirrored, movable, unmirrored
from shoal.ledger.ownership import DirectoryEntry, MadeOutput, decode_listings, encode_listings, made_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, UNSAID, TaskEnded

FILE = DirectoryEntry("file", 5, 77, "")
DIRECTORY = DirectoryEntry("directory", 0, 0, "")
LISTING = {"": DIRECTORY, "sub": DIRECTORY, "sub/a": FILE, "to": DirectoryEntry("link", 3, 9, "sub/a"), "n\udcff": FILE}


def result(outcome: str = "ok", listing: bytes = b"", check: int = BY_TIME) -> TaskEnded:
    figures = (0, 1.0, 2.0, 0.0, 0.0, 0, 0, 0, "", b"", b"", b"")
    return TaskEnded(0, 1, outcome, True, *figures, [(5, 77), (9, 88)], None, check=check, listing=listing)


def test_listings_survive_the_ledger() -> None:
    listings = {0: LISTING, 3: {"": DirectoryEntry("link", 0, 0, "x")}}
    assert decode_listings(encode_listings(listings)) == listings
    assert encode_listings({}) == b""
    assert decode_listings(b"\xc1") == {}


def test_only_accepted_results_have_made_something() -> None:
    assert made_of(None) == made_of(result("failed")) == []
    first, second = made_of(result(listing=encode_listings({1: LISTING})))
    assert first.pair == (5, 77) and first.listing is None and not first.is_directory()
    assert second.is_directory() and second.lists("sub/a") and not second.lists("own")


@pytest.mark.parametrize(
    "found", [FILE._replace(size=6), FILE._replace(number=78), DirectoryEntry("link", 5, 77, "x"), DIRECTORY]
)
def test_what_differs_is_not_ours(found: DirectoryEntry) -> None:
    made = MadeOutput((5, 77), BY_TIME, None)
    assert made.has_left("", FILE)
    assert not made.has_left("", found)
    assert not MadeOutput((5, 77), BY_TIME, LISTING).has_left("sub/a", found)


def test_a_link_is_ours_by_what_it_says() -> None:
    made = MadeOutput((5, 77), BY_TIME, {"": DirectoryEntry("link", 0, 0, "there")})
    assert made.has_left("", DirectoryEntry("link", 9, 9, "there"))
    assert not made.has_left("", DirectoryEntry("link", 0, 0, "elsewhere"))
    assert not made.has_left("", FILE), "what it led to has come to stand there: that is not ours"


def test_old_ledgers_are_compared_in_both_ways() -> None:
    assert MadeOutput((5, 77), UNSAID, None).checks() == (BY_TIME, BY_CONTENT)
    assert MadeOutput((5, 77), BY_CONTENT, None).checks() == (BY_CONTENT,)


ENTRIES = ["a", "b", "sub", "sub/a", "sub/in", "sub/in/x", "z"]


@pytest.mark.parametrize(
    ("stay", "others", "expected"),
    [
        ([], [], [""]),
        (["b"], [], ["a", "sub", "z"]),
        (["sub/in/x"], [], ["a", "b", "sub/a", "z"]),
        (["sub"], [], ["a", "b", "z", "sub/a", "sub/in"]),
        ([], ["sub/in"], ["a", "b", "z", "sub/a"]),
        ([], ["sub/new"], ["a", "b", "z", "sub/a", "sub/in"]),
        (ENTRIES, [], []),
    ],
)
def test_as_little_as_possible_is_moved(stay: list[str], others: list[str], expected: list[str]) -> None:
    assert sorted(movable(ENTRIES, lambda name: name in stay, others, remains=False)) == sorted(expected)


@pytest.mark.parametrize("path", ["a", "a/b", "../a", "/a/b", "%", "%/%up", "%%x/..", "%root"])
def test_places_of_ours_tell_the_path(path: str) -> None:
    assert ".." not in mirrored(path) and "%" not in mirrored(path)
    assert unmirrored(mirrored(path)) == path
