"""Texts with bytes that are not UTF-8, written and read again."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.about import Deed
from shoal.model.task import Profile
from shoal.model.texts import Decoder, encode, restored

names = st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"x").decode("utf-8", "surrogateescape"))
deeds = st.builds(Deed, names, st.lists(names).map(tuple), st.lists(names).map(tuple), names, st.binary())


@given(st.lists(deeds))
def test_deeds_are_read_as_they_were_written(found: list[Deed]) -> None:
    assert Decoder(list[Deed]).decode(encode(found)) == found


@given(names, names)
def test_a_profile_that_something_else_has_decoded_is_restored(value: str, folder: str) -> None:
    profile = Profile("category", environment=(("NAME", value),), directory=folder)
    assert restored(msgspec.msgpack.decode(encode(profile), type=Profile), Profile) == profile


def test_bytes_that_look_like_the_mark_stay() -> None:
    deed = Deed("\udcff", before=b"\0xff")
    assert Decoder(Deed).decode(encode(deed)) == deed
