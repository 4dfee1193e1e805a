"""Labels of nodes: syntax, matching, and messages about missing labels."""

from __future__ import annotations

import pytest

from shoal.core.policies.admission import Contract
from shoal.core.resources import (
    FRACTION,
    Resources,
    carrying,
    parse_labels,
    required_labels,
    requiring,
    unmet,
    without_labels,
)
from shoal.core.store.directory import NodeInfo
from shoal.errors import InputError
from shoal.execution.executor.options import CallOptions
from shoal.formats.rules.options import make_profile

ONE = Resources.of({"cores": FRACTION})
TWO = Resources.of({"cores": 2 * FRACTION})


def test_one_label_or_several_are_sorted_and_stand_there_once() -> None:
    assert parse_labels("site=a", "requires") == ("site=a",)
    assert parse_labels(["site=a", "gpu=x", "site=a"], "requires") == ("gpu=x", "site=a")
    assert parse_labels((), "requires") == ()


@pytest.mark.parametrize("text", ["site", "=a", "site=", "9=a", "si te=a", "site= a", ""])
def test_what_is_no_label_gets_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="is not a label; write it as KEY=VALUE"):
        parse_labels(text, "requires")


@pytest.mark.parametrize("value", [7, None, ["site=a", 3], {"site": "a"}])
def test_what_is_no_text_gets_one_sentence(value: object) -> None:
    with pytest.raises(InputError, match="requires must be text such as 'site=alpha'"):
        parse_labels(value, "requires")


def test_a_node_with_a_label_has_enough_of_it_for_any_number_of_tasks() -> None:
    node = carrying(Resources.of({"cores": 1000 * FRACTION}), ["site=a"])
    contract = Contract(node, [requiring(ONE, ["site=a"]), requiring(ONE, ["site=b"])])
    assert list(contract.hopeless) == [1]
    for _ in range(1000):
        contract.take(0)
    assert not contract.fits(0), "the cores are in use"


def test_what_is_required_can_be_distinguished_from_amounts() -> None:
    request = requiring(TWO, ["site=a", "gpu=x"])
    assert required_labels(request) == ["gpu=x", "site=a"]
    assert without_labels(request) == TWO
    assert str(request) == "cores 2, the label gpu=x, the label site=a"


def test_what_no_node_has_is_explained_in_words_of_labels() -> None:
    here, there = carrying(ONE, ["site=a"]), carrying(TWO, ["site=b"])
    assert unmet(requiring(ONE, ["site=a"]), [here, there]) is None
    assert unmet(requiring(ONE, ["gpu=x"]), [here, there]) == "no node of the cluster has the label gpu=x"
    both = unmet(requiring(ONE, ["gpu=x", "os=y"]), [here, there])
    assert both == "no node of the cluster has the labels gpu=x and os=y"
    apart = unmet(requiring(TWO, ["site=a"]), [here, there])
    assert apart == "no node of the cluster has all of cores 2, the label site=a"
    assert unmet(Resources.of({"cores": 9 * FRACTION}), [here]) == "no node of the cluster has cores 9"


def test_labels_of_a_node_belong_to_what_it_has_for_tasks() -> None:
    info = NodeInfo("", "n", ONE, {"site": "a", "class": "fat=yes"}, None, "", "1")
    assert unmet(requiring(ONE, ["site=a", "class=fat=yes"]), [info.capacity()]) is None
    assert without_labels(info.capacity()) == ONE


def test_a_rule_requires_and_prefers_labels() -> None:
    profile = make_profile({"requires": "gpu=x", "prefers": ["site=b", "site=a"], "cores": 2})
    assert profile.resources == requiring(TWO, ["gpu=x"])
    assert profile.prefers == ("site=a", "site=b")


def test_a_label_among_the_resources_of_a_rule_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match="'gpu=x' in resources= is a label; write requires='gpu=x'"):
        make_profile({"resources": {"gpu=x": 1}})


def test_a_call_requires_labels_until_others_are_said() -> None:
    options = CallOptions().changed({"requires": "gpu=x", "cores": 2})
    assert options.resources == requiring(TWO, ["gpu=x"])
    assert options.changed({"cores": 1}).resources == requiring(ONE, ["gpu=x"])
    assert options.changed({"requires": ()}).resources == TWO
    with pytest.raises(InputError, match="a call requires the label gpu=x, and no agent of the cluster 'lab' has it"):
        options.check_fits(TWO, "lab")
    options.check_fits(carrying(TWO, ["gpu=x"]), "lab")
