"""The resource manager: grants, waiting tickets, refusals, and removed resources."""

from __future__ import annotations

import pytest

from shoal.errors import InputError
from shoal.resources.machine import MachinePart, machine
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import ANYWHERE, Requirement, require
from shoal.resources.tickets import Ticket, TicketEnded, TicketGranted, TicketLost, TicketRefused, TicketState, ranks_of
from shoal.sim.resource_histories import check_manager

CORE = require("core")


class Case:
    """A steward that is checked after every step, and the tickets by what the test calls them."""

    def __init__(self, *parts: MachinePart, patience: int = 100, may_grow: bool = False) -> None:
        self.steward = ResourceManager(parts, patience=patience, may_grow=may_grow)

    def ask(self, *wanted: Requirement, run: str = "run") -> Ticket:
        ticket = self.steward.request(run, wanted)
        check_manager(self.steward)
        return ticket

    def hold(self, *wanted: Requirement, run: str = "run") -> Ticket:
        ticket = self.ask(*wanted, run=run)
        assert ticket.state is TicketState.GRANTED
        return ticket

    def wait(self, *wanted: Requirement, run: str = "run") -> Ticket:
        ticket = self.ask(*wanted, run=run)
        assert ticket.state is TicketState.WAITING
        return ticket

    def release(self, ticket: Ticket) -> list[int]:
        """Who was granted something by that."""
        told = self.steward.release(ticket.number)
        check_manager(self.steward)
        return [each.ticket for each in told if isinstance(each, TicketGranted)]

    def units(self, ticket: Ticket) -> list[str]:
        return [unit for place in self.steward.grant(ticket.number).places for unit in place.units]

    def usage(self, path: str) -> int:
        unit = self.steward.forest.find(path)
        assert unit is not None
        return unit.usage()

    def why_refused(self, *wanted: Requirement) -> str:
        with pytest.raises(InputError) as refused:
            self.steward.request("run", wanted)
        check_manager(self.steward)
        return str(refused.value)


def test_holding_a_core_uses_what_it_is_in_and_what_is_in_it_but_no_sibling() -> None:
    case = Case(machine("n", sockets=2, cores=2, threads=2))
    case.hold(require("core", prefer=["n/socket0/core0"]))
    used = ["n", "n/socket0", "n/socket0/core0", "n/socket0/core0/thread1"]
    assert [case.usage(path) for path in used] == [1, 1, 1, 1]
    assert [case.usage(path) for path in ["n/socket0/core1", "n/socket1"]] == [0, 0]


def test_a_socket_is_free_only_when_its_last_core_is_given_back() -> None:
    case = Case(machine("n", cores=2))
    first, second = case.hold(CORE), case.hold(CORE)
    socket = case.wait(require("socket"))
    assert case.release(first) == []
    assert case.usage("n/socket0") == 1
    assert case.release(second) == [socket.number]
    assert case.usage("n/socket0/core1") == 1


def test_cores_fill_a_socket_and_a_machine_before_they_open_another() -> None:
    case = Case(machine("a", sockets=2, cores=4), machine("b", sockets=2, cores=4))
    for _ in range(3):
        case.hold(require("core", count=2))
    case.hold(require("core", count=1))
    sockets = [case.usage(path) for path in ["a/socket0", "a/socket1", "b/socket0", "b/socket1"]]
    assert sockets == [4, 3, 0, 0]


def test_a_request_goes_to_the_fullest_socket_that_has_room_for_all_of_it() -> None:
    case = Case(machine("n", sockets=3, cores=8))
    case.hold(require("core", count=3, prefer=["n/socket0"]))
    case.hold(require("core", count=6, prefer=["n/socket2"]))
    assert case.units(case.hold(require("core", count=4)))[0].startswith("n/socket0/")
    assert case.units(case.hold(require("core", count=2)))[0].startswith("n/socket2/")


def test_more_cores_than_any_socket_has_free_come_from_several() -> None:
    case = Case(machine("n", sockets=2, cores=4))
    assert len(case.units(case.hold(require("core", count=7)))) == 7


def test_a_gang_gets_different_machines_and_all_or_nothing() -> None:
    case = Case(machine("a", cores=4), machine("b", cores=4))
    gang = case.hold(require("core", count=3, nodes=2))
    assert case.steward.grant(gang.number).nodes() == ["a", "b"]
    waiting = case.wait(require("core", count=2, nodes=2))
    assert case.steward.forest.top.free["core"] == 2
    assert case.release(gang) == [waiting.number]


def test_several_requirements_are_met_together_or_not_at_all() -> None:
    case = Case(machine("a", cores=4, gpus=1), machine("b", cores=4))
    gpu = case.hold(require("gpu"))
    waiting = case.wait(CORE, require("gpu"))
    assert case.steward.forest.top.free["core"] == 8
    assert case.release(gpu) == [waiting.number]
    assert [place.requirement for place in case.steward.grant(waiting.number).places] == [0, 1]


def test_things_needed_together_are_on_one_machine() -> None:
    case = Case(machine("a", cores=8), machine("b", cores=4, gpus=1))
    assert case.steward.grant(case.hold(require({"core": 4, "gpu": 1})).number).nodes() == ["b"]


def test_units_anywhere_may_be_on_several_machines_but_are_on_few() -> None:
    case = Case(*(machine(f"n{at}", cores=4) for at in range(4)))
    assert len(case.steward.grant(case.hold(require("core", count=10, nodes=ANYWHERE)).number).nodes()) == 3
    assert len(case.steward.grant(case.hold(require("core", count=4, nodes=ANYWHERE)).number).nodes()) == 1


def test_the_first_choice_that_is_free_is_selected_and_reported() -> None:
    case = Case(machine("n", cores=4, gpus=1))
    wanted = require("gpu", {"core": 2})
    choices = [case.steward.grant(case.hold(wanted).number).places[0].choice for _ in range(3)]
    assert choices == [0, 1, 1]


@pytest.mark.parametrize("wanted", ["b", "b/socket0", "b/socket0/core1", "site=y"])
def test_a_preference_is_followed_where_it_can_be(wanted: str) -> None:
    case = Case(machine("a", cores=2, labels=["site=x"]), machine("b", cores=2, labels=["site=y"]))
    case.hold(require("core", prefer=["a"]))
    unit = case.units(case.hold(require("core", prefer=["nowhere", wanted])))[0]
    assert unit.startswith(wanted if "=" not in wanted else "b/")


def test_a_preference_that_is_taken_is_no_reason_to_wait() -> None:
    case = Case(machine("a", cores=1), machine("b", cores=1))
    case.hold(require("core", prefer=["a"]))
    assert case.units(case.hold(require("core", prefer=["a"]))) == ["b/socket0/core0"]


def test_of_those_that_wait_for_the_same_the_one_that_prefers_the_machine_goes_first() -> None:
    case = Case(machine("a", cores=1), machine("b", cores=1))
    on_a, on_b = case.hold(require("core", prefer=["a"])), case.hold(CORE)
    far, near = case.wait(require("core", prefer=["a"])), case.wait(require("core", prefer=["b"]))
    assert case.release(on_b) == [near.number]
    assert case.release(on_a) == [far.number]


def test_a_required_label_or_machine_is_never_replaced_by_another() -> None:
    case = Case(machine("a", cores=1), machine("b", cores=1, labels=["site=y"]))
    case.hold(require("core", only=["site=y"]))
    case.wait(require("core", only=["site=y"]))
    case.wait(require("core", only=["b"]))
    assert case.steward.forest.top.free["core"] == 1


def test_memory_is_counted_and_taken_beside_the_cores() -> None:
    case = Case(machine("n", sockets=2, numas=1, cores=2, memory=100))
    first = case.hold(require("core", memory=40, prefer=["n/socket1"]))
    assert case.steward.grant(first.number).places[0].banks == (("n/socket1/numa1", 40),)
    second = case.hold(require("core", memory=55))
    assert case.steward.grant(second.number).places[0].memory == 55
    waiting = case.wait(require("core", memory=6))
    assert case.release(first) == [waiting.number]


def test_narrow_requests_use_what_a_blocked_wide_one_cannot() -> None:
    case = Case(machine("a", cores=2), machine("b", cores=2))
    case.hold(CORE)
    case.wait(require("node", nodes=2))
    case.hold(CORE)


def test_those_who_wait_for_one_class_do_not_hide_those_of_another() -> None:
    case = Case(machine("n", cores=2, gpus=1), patience=2)
    case.hold(require("gpu"))
    for _ in range(5):
        case.wait(require("gpu"))
    cores = [case.hold(CORE), case.hold(CORE)]
    waiting = case.wait(CORE)
    assert case.release(cores[0]) == [waiting.number]


def test_a_wide_request_that_was_passed_often_enough_gets_what_becomes_free() -> None:
    case = Case(machine("n", cores=4), patience=3)
    narrow = [case.hold(CORE) for _ in range(4)]
    wide = case.wait(require("socket"))
    served = 0
    while wide.state is TicketState.WAITING:
        case.ask(CORE)
        served += len(case.release(narrow.pop(0)))
        narrow += [ticket for ticket in case.steward.held.values() if ticket not in narrow and ticket is not wide]
        assert served <= 3 + 1
    assert case.units(wide) == ["n/socket0"]


def test_what_is_kept_for_one_does_not_stop_others_elsewhere() -> None:
    case = Case(*(machine(name, cores=4) for name in "abc"), patience=0)
    all_of_a = case.hold(require("core", count=4, prefer=["a"]))
    some_of_b, some_of_c = (case.hold(require("core", count=2, prefer=[name])) for name in "bc")
    another_of_b = case.hold(require("core", prefer=["b"]))
    wide, narrow = case.wait(require("socket", nodes=2)), case.wait(require("core", count=3))
    assert case.release(another_of_b) == []
    assert case.steward.forest.top.free["core"] == 0, "b and c are kept for the wide one"
    assert case.release(all_of_a) == [narrow.number]
    assert case.release(some_of_b) == []
    assert case.release(some_of_c) == [wide.number]


def test_a_ticket_served_elsewhere_leaves_what_was_kept_to_the_others_at_once() -> None:
    case = Case(machine("a", cores=4), machine("b", cores=4), patience=1)
    some_of_b, rest_of_b = (case.hold(require("core", count=count, only=["b"])) for count in (3, 1))
    on_a = require("core", only=["a"])
    case.hold(on_a)
    wide = case.wait(require("core", count=4))
    passing = case.hold(on_a)
    assert case.release(passing) == []
    narrow = case.wait(on_a)
    assert case.release(some_of_b) == [], "all of a is kept for the wide one"
    assert case.release(rest_of_b) == [wide.number, narrow.number]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            require("core", count=9),
            "9 core on one node can never be granted: the largest number of core on one node is 8",
        ),
        (require("tape"), "1 tape on one node can never be granted: no machine has any tape"),
        (require("core", count=4, nodes=3), "only 2 machines can provide that"),
        (require("core", memory=2 << 30), "the largest memory of a node is 1 GiB"),
        (require("core", only=["site=z"]), "no machine is site=z"),
        (require("core", count=17, nodes=ANYWHERE), "there are only 16 core in total"),
        (require("gpu", "core", count=10), "no machine has any gpu; the largest number of core on one node is 8"),
        (require({"socket": 2, "core": 1}), "can never be granted together on the 2 machines"),
    ],
)
def test_what_no_machine_can_ever_give_is_refused_at_once_and_says_why(wanted: Requirement, words: str) -> None:
    machines = [machine(name, sockets=2, cores=4, memory=1 << 30) for name in "ab"]
    assert words in Case(*machines).why_refused(wanted)


def test_requirements_that_fit_only_one_by_one_are_refused() -> None:
    case = Case(machine("a", cores=2), machine("b", cores=2))
    assert "together" in case.why_refused(require("node", nodes=2), CORE)


def test_where_machines_may_come_an_impossible_request_waits_for_them() -> None:
    case = Case(machine("a", cores=2), may_grow=True)
    large = case.wait(require("core", count=4))
    case.hold(CORE)
    assert case.steward.add(machine("b", cores=4)) == [TicketGranted(large.number, "run")]
    check_manager(case.steward)


def test_a_machine_that_is_removed_is_lost_to_those_who_hold_something_of_it() -> None:
    case = Case(machine("a", cores=2), machine("b", cores=2))
    gang = case.hold(require("core", nodes=2), run="gang")
    told = case.steward.remove("a")
    check_manager(case.steward)
    assert told == [TicketLost(gang.number, "gang", ("a/socket0/core0",))]
    assert case.units(gang) == ["b/socket0/core0"]
    case.release(gang)
    assert case.steward.forest.top.free["core"] == 2


def test_a_core_that_is_removed_is_lost_to_the_holder_of_the_node() -> None:
    case = Case(machine("a", cores=2, memory=10))
    node = case.hold(require("node", memory=5))
    assert case.steward.remove("a/socket0/core1") == [TicketLost(node.number, "run", ("a/socket0/core1",))]
    check_manager(case.steward)
    assert case.steward.grant(node.number).places[0].cpus == (0,)
    assert case.steward.grant(node.number).places[0].memory == 5


def test_who_waits_for_what_was_removed_is_refused_and_says_why() -> None:
    case = Case(machine("a", cores=2), machine("b", cores=4))
    case.hold(require("core", count=4))
    waiting = case.wait(require("core", count=3))
    (lost, refused) = case.steward.remove("b")
    assert isinstance(lost, TicketLost) and isinstance(refused, TicketRefused)
    assert refused.ticket == waiting.number and "the largest number of core on one node is 2" in refused.why
    assert waiting.state is TicketState.REFUSED


def test_an_interrupted_run_waits_for_nothing_and_keeps_what_it_holds() -> None:
    case = Case(machine("a", cores=1))
    held = case.hold(CORE, run="r")
    waiting, other = case.wait(CORE, run="r"), case.wait(CORE, run="s")
    assert case.steward.interrupt("r") == [TicketEnded(waiting.number, "r")]
    check_manager(case.steward)
    assert case.release(held) == [other.number]


def test_a_run_that_departs_leaves_nothing_behind() -> None:
    case = Case(machine("a", cores=1))
    case.hold(CORE, run="r")
    waiting, other = case.wait(CORE, run="r"), case.wait(CORE, run="s")
    assert case.steward.depart("r") == [TicketEnded(waiting.number, "r"), TicketGranted(other.number, "s")]


def test_cancelling_the_ticket_with_a_reservation_gives_the_others_what_was_kept() -> None:
    case = Case(machine("a", cores=2), patience=0)
    first, second = case.hold(CORE), case.hold(CORE)
    wide, narrow = case.wait(require("socket")), case.wait(CORE)
    assert case.release(first) == []
    assert case.steward.cancel(wide.number) == [TicketGranted(narrow.number, "run")]
    check_manager(case.steward)
    assert case.release(second) == []


@pytest.mark.parametrize("act", ["release", "cancel", "grant"])
def test_a_ticket_that_is_over_or_never_was_is_reported_in_a_sentence(act: str) -> None:
    case = Case(machine("a", cores=1))
    ticket = case.hold(CORE)
    case.release(ticket)
    with pytest.raises(InputError, match=r"ticket 1 .*has already ended"):
        getattr(case.steward, act)(ticket.number)
    with pytest.raises(InputError, match=r"ticket 9 .*was never issued"):
        getattr(case.steward, act)(9)


def test_a_waiting_ticket_cannot_be_released() -> None:
    case = Case(machine("a", cores=1))
    case.hold(CORE)
    with pytest.raises(InputError, match="ticket 2 holds nothing: it is still waiting"):
        case.steward.release(case.wait(CORE).number)


def test_machines_are_taken_in_all_or_none() -> None:
    case = Case(machine("a"))
    with pytest.raises(InputError, match="there is already a machine named 'a'"):
        case.steward.add(machine("b"), machine("a"))
    check_manager(case.steward)
    assert list(case.steward.forest.machines) == ["a"]


@pytest.mark.parametrize("name", ["", "x=y", "a/b"])
def test_a_machine_needs_a_name_that_is_no_label_and_no_path(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid machine name"):
        ResourceManager([machine(name)])


def test_removing_what_is_not_there_is_reported_and_changes_nothing() -> None:
    case = Case(machine("a"))
    with pytest.raises(InputError, match="there is no resource 'b' to remove"):
        case.steward.remove("a", "b")
    assert list(case.steward.forest.machines) == ["a"]


@pytest.mark.parametrize(
    ("choices", "options", "words"),
    [
        ((), {}, "names no class"),
        (("core",), {"count": 0}, "the number of core must be an integer of at least 1, not 0"),
        (("core",), {"nodes": -1}, "nodes must be an integer of at least 0"),
        (("core",), {"memory": 1.5}, "memory must be an integer of at least 0"),
        (("core",), {"memory": 5, "nodes": ANYWHERE}, "memory requires a number of nodes"),
        (("",), {}, "'' is not a class of resources"),
        (({},), {}, "a choice is empty"),
        (("core",), {"only": [3]}, "only=3 is neither a label nor the name"),
        (("core",), {"prefer": [None]}, "prefer=None is neither a resource"),
    ],
)
def test_a_requirement_that_makes_no_sense_is_reported_in_a_sentence(
    choices: tuple[str, ...], options: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        require(*choices, **options)  # type: ignore[arg-type]  # what is wrong is the point


def test_an_empty_request_is_rejected() -> None:
    assert "is empty" in Case(machine("a")).why_refused()


def test_ranks_know_their_hosts_their_number_and_their_place_on_the_host() -> None:
    case = Case(machine("a", cores=2), machine("b", cores=2))
    grant = case.steward.grant(case.hold(require("core", count=2, nodes=2)).number)
    per_node = ranks_of(grant)
    assert [(rank.rank, rank.node, rank.local_rank) for rank in per_node] == [(0, "a", 0), (1, "b", 0)]
    assert dict(per_node[1].environment) == {
        "SHOAL_HOSTS": "a,b",
        "SHOAL_HOST_RANKS": "1,1",
        "SHOAL_RANKS": "2",
        "SHOAL_RANK": "1",
        "SHOAL_LOCAL_RANK": "0",
    }
    per_core = ranks_of(grant, per="core")
    assert [(rank.node, rank.local_rank) for rank in per_core] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert dict(per_core[3].environment)["SHOAL_HOST_RANKS"] == "2,2"
    with pytest.raises(InputError, match="holds no gpu"):
        ranks_of(grant, per="gpu")
