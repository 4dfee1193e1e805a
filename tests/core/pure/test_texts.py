"""Texts with bytes that are not UTF-8, written and read again."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.agent.run_description import TaskSpec
from shoal.core.file_names import Decoder, encode, restored
from shoal.core.task import Profile

names = st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"x").decode("utf-8", "surrogateescape"))
deeds = st.builds(TaskSpec, names, st.lists(names).map(tuple), st.lists(names).map(tuple), names, st.binary())


@given(st.lists(deeds))
def test_deeds_are_read_as_they_were_written(found: list[TaskSpec]) -> None:
    assert Decoder(list[TaskSpec]).decode(encode(found)) == found


@given(names, names)
def test_a_profile_that_something_else_has_decoded_is_restored(value: str, folder: str) -> None:
    profile = Profile("category", environment=(("NAME", value),), directory=folder)
    assert restored(msgspec.msgpack.decode(encode(profile), type=Profile), Profile) == profile


def test_bytes_that_look_like_the_mark_stay() -> None:
    deed = TaskSpec("\udcff", before=b"\0xff")
    assert Decoder(TaskSpec).decode(encode(deed)) == deed
