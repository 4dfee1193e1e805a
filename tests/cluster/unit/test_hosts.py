"""The list of hosts and the choice among them, and what all starters have in common; nothing is connected to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.nodes.local import LocalStarter
from shoal.cluster.nodes.slurm import SlurmStarter
from shoal.cluster.nodes.ssh import SshHost, SshStarter, parse_hosts
from shoal.cluster.nodes.starters import SshHandle, Starter
from shoal.errors import InputError


def test_hosts_have_one_slot_unless_it_is_said() -> None:
    text = "# rack 1\nnode01\nme@node02.site  4 # the fat one\n\n10.0.0.7 2\n"
    assert parse_hosts(text) == [SshHost("node01"), SshHost("me@node02.site", 4), SshHost("10.0.0.7", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-oProxyCommand=id", "host \\[slots\\]"),
        ("a b", "host \\[slots\\]"),
        ("a 1 2", "host \\[slots\\]"),
        ("a;id", "host \\[slots\\]"),
        ("a 0", "slots must be"),
        ("a\na", "twice"),
        ("# nothing\n", "no host"),
    ],
)
def test_a_wrong_line_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_hosts(text, "hosts")


@given(st.text(max_size=60))
def test_any_text_is_a_list_of_hosts_or_one_sentence(text: str) -> None:
    try:
        hosts = parse_hosts(text, "hosts")
    except InputError:
        return
    assert all(not host.name.startswith("-") and host.slots > 0 for host in hosts)


def test_the_emptiest_host_gets_the_next_node_and_no_slot_is_used_twice() -> None:
    starter = SshStarter([SshHost("a", 1), SshHost("b", 3)], ["x"], "logs")
    assert starter.room == 4
    assert starter._places(10, []) == ["a", "b", "b", "b"]
    there = [SshHandle("n", "b", 1, 1, "", ""), SshHandle("m", "b", 2, 1, "", "")]
    assert starter._places(10, there) == ["a", "b"]


def test_every_way_of_starting_keeps_the_same_promise_and_asks_nobody_about_nothing() -> None:
    ways: list[Starter] = [
        LocalStarter(["x"], "logs"),
        SshStarter([SshHost("nowhere")], ["x"], "logs"),
        SlurmStarter(["x"], "logs"),
    ]
    stranger = [SshHandle("n", "nowhere", 1, 1, "", "")]
    for way in ways:
        assert way.poll([]) == {}
        way.stop([])
    assert ways[0].poll(stranger) == ways[2].poll(stranger) == {}
