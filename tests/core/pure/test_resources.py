"""What users write about resources, and the exact integers it becomes."""

from __future__ import annotations

import pytest

from shoal.core.quantities import show_bytes
from shoal.core.resources import FRACTION, Resources, parse_amount, parse_size, show_amount
from shoal.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        (17, 17),
        (2.6, 3),
        ("2G", 2 << 30),
        ("512 MiB", 512 << 20),
        ("1.5gb", 3 << 29),
        (".5k", 512),
        (" 3T ", 3 << 40),
        ("1P", 1 << 50),
    ],
)
def test_sizes_are_read_in_powers_of_1024(text: str | int | float, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "two", "2X", "-1G", "1e3", "G", -1, float("nan"), float("inf"), True, None, [1]])
def test_what_is_not_a_size_is_refused_with_the_name_of_the_resource(text: object) -> None:
    with pytest.raises(InputError, match="memory"):
        parse_size(text, "memory")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(("value", "share"), [(1, 10_000), ("0.5", 5_000), ("1/4", 2_500), (0, 0), ("/2", 5_000)])
def test_counts_may_be_fractions(value: str | int, share: int) -> None:
    assert parse_amount(value, "cores") == share


@pytest.mark.parametrize("value", ["", "many", "1/0", "1/2/3", -1, "nan", "inf", 1e13, True, None])
def test_what_is_not_a_count_is_refused_with_the_name_of_the_resource(value: object) -> None:
    with pytest.raises(InputError, match="gpus"):
        parse_amount(value, "gpus")  # type: ignore[arg-type]  # the point of the test


def test_fractions_add_up_exactly() -> None:
    tenth = Resources.parse({"cores": 0.1}).get("cores")
    assert 10 * tenth == FRACTION


def test_equal_requests_are_equal_however_they_are_written() -> None:
    one = Resources.parse({"cores": "1/2", "memory": "1G", "gpus": 0})
    other = Resources.parse({"memory": 1 << 30, "cores": 0.5})
    assert one == other
    assert hash(one) == hash(other)
    assert one.names() == ["cores", "memory"]


def test_a_vector_follows_the_names_it_is_asked_for() -> None:
    request = Resources.parse({"cores": 2, "disk": "1K"})
    assert request.vector(["disk", "gpus", "cores"]) == (1024, 0, 2 * FRACTION)


def test_what_a_node_lacks_is_named() -> None:
    request = Resources.parse({"cores": 4, "memory": "1G", "licence": 1})
    node = Resources.parse({"cores": 2, "memory": "2G"})
    assert request.lacking_in(node) == ["cores", "licence"]
    assert Resources().lacking_in(node) == []


def test_resources_are_shown_as_people_write_them() -> None:
    assert str(Resources.parse({"cores": 0.5, "memory": "1536M"})) == "cores 0.5, memory 1.5 GiB"
    assert str(Resources()) == "nothing"
    assert show_amount("gpus", 2 * FRACTION) == "2"
    assert show_bytes(1023) == "0.999 KiB"
    assert show_bytes(5 << 50) == "5 PiB"
