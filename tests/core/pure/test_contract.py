"""Admission by contract: fractions, several resources, a node that changes size."""

from __future__ import annotations

import pytest

from shoal.core.policies.admission import Contract
from support.case import node


def test_a_lane_fits_until_the_scarcest_resource_is_taken() -> None:
    contract = Contract(node(cores=4, memory="3G"), [node(cores=1, memory="1G"), node(cores=1)])
    for _ in range(3):
        contract.take(0)
    assert not contract.fits(0)
    assert contract.fits(1)
    contract.give_back(contract.needs[0])
    assert contract.fits(0)


def test_fractions_of_a_core_fill_it_exactly() -> None:
    contract = Contract(node(cores=1), [node(cores=0.1)])
    for _ in range(10):
        contract.take(0)
    assert not contract.fits(0)
    assert contract.free == [0]


def test_taking_what_is_not_there_is_a_defect() -> None:
    contract = Contract(node(cores=1), [node(cores=1)])
    contract.take(0)
    with pytest.raises(AssertionError, match="cores oversubscribed"):
        contract.take(0)


def test_what_the_node_has_never_heard_of_can_never_fit() -> None:
    contract = Contract(node(cores=1))
    lane = contract.add_lane(node(cores=1, licence=1))
    assert not contract.could_fit(lane)
    assert not contract.fits(lane)


def test_the_number_of_places_is_that_of_the_scarcest_resource() -> None:
    contract = Contract(node(cores=8, memory="4G"), [node(cores=1, memory="1G"), node(cores=16), node()])
    assert [contract.places(lane) for lane in range(3)] == [4, 0, 1]


def test_a_node_that_shrinks_lets_what_runs_go_on_but_nothing_start() -> None:
    contract = Contract(node(cores=4), [node(cores=2)])
    contract.take(0)
    contract.take(0)
    contract.resize(node(cores=2))
    assert contract.free == [-20_000]
    contract.give_back(contract.needs[0])
    assert not contract.fits(0)
    contract.give_back(contract.needs[0])
    assert contract.fits(0)


def test_a_node_may_gain_and_lose_resources_by_name() -> None:
    contract = Contract(node(cores=1), [node(cores=1)])
    contract.resize(node(cores=1, gpus=1))
    gpu = contract.add_lane(node(gpus=1))
    assert contract.fits(gpu)
    contract.resize(node(cores=2))
    assert not contract.could_fit(gpu)
    assert contract.could_fit(0)


def test_room_is_left_when_only_the_surplus_is_taken() -> None:
    wide, narrow, other = node(cores=3, gpus=1), node(cores=1), node(memory="1G")
    contract = Contract(node(cores=4, gpus=1, memory="1G"), [wide, narrow, other])
    assert contract.leaves_room(1, 0)
    contract.take(1)
    assert not contract.leaves_room(1, 0)
    assert contract.leaves_room(2, 0)
