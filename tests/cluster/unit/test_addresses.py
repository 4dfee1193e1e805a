"""By which address others reach this machine; nothing is sent."""

from __future__ import annotations

import pytest

from shoal.cluster.nodes.machine import LOOPBACK, checked_host, host_of, own_address_for, own_address_for_hosts
from shoal.errors import InputError


def test_the_host_of_an_address_is_what_stands_before_the_port() -> None:
    assert host_of("tcp://10.0.0.7:4711") == "10.0.0.7"


def test_whoever_is_on_this_machine_is_reached_by_loopback() -> None:
    assert own_address_for(["tcp://127.0.0.1:4711"]) == LOOPBACK
    assert own_address_for(["tcp://no-such-host.invalid:1", "tcp://127.0.0.1:4711"]) == LOOPBACK
    assert own_address_for_hosts(["127.0.0.1", "localhost"]) == LOOPBACK


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("no-such-host.invalid", "is no address of this machine"),
        ("203.0.113.77", "is no address of this machine"),
        ("0.0.0.0", "a node could connect to"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_one_sentence(host: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked_host(host)


def test_a_name_of_this_machine_stands_for_its_number() -> None:
    assert checked_host("localhost") == LOOPBACK
