"""Explanations of whole runs: every number is labelled, and every statement about a group holds for all its tasks."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from core.pure.test_explain_chain import Play, speech
from shoal.core.explain.answer import Answer, Cap, RunAnswer, Shortage, WaitCause, WaitingGroup
from shoal.core.explain.scheduler_source import among_others, explain_held, groups_of
from shoal.core.explain.sentences import REASONS, SentenceWriter, paragraph, run_lines
from shoal.core.explain.store_source import (
    MOST_ASKED,
    SilentError,
    explain_in_member,
    explain_stranded,
    whole_cluster,
    whole_member,
)
from shoal.core.peer_messages import PeerMessageReceived, ReadyTask, Roster, TasksPlaced, TaskTransfer
from shoal.core.peer_scheduler import PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources, requiring
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import CancelRequested, CapsChanged
from support.case import BrokerCase, lane, node

PLAIN = SentenceWriter(lambda task: f"t{task}", lambda moment: f"{moment:g}", lambda seconds: f"{seconds:g} s", 0.0)


def lines(whole: RunAnswer) -> list[str]:
    return run_lines(whole, PLAIN)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_every_number_counts_tasks_of_its_kind() -> None:
    play = Play("a:\nb: a\nc: b\nd:\n(all): d\ne: all\nf:\ng:", cores=1)
    play.end("a", AttemptOutcome.FAILED)
    play.now = 1.0
    play.end("d")
    whole = play.source.whole()
    found = (whole.running, whole.ready, whole.waiting, whole.done, whole.failed, whole.doomed)
    assert found == (1, 2, 0, 1, 1, 2), "a group is no task"


def test_of_a_bundle_one_runs() -> None:
    lanes = [lane(bundled=True, cores=1)]
    rows = "\n".join(f"t{at}:" for at in range(40))
    play = Play(rows, lanes=lanes, lane_of=[0] * 40)
    play.broker.lanes[0].mean_duration = 0.004
    play.end("t0")
    whole = play.source.whole()
    handed_over = len(play.broker.running)
    assert handed_over > 2 and whole.running == 1
    groups = {group.cause: group.count for group in whole.groups}
    assert groups[WaitCause.BUNDLED] == handed_over - 1
    assert sum(groups.values()) == whole.ready


def test_of_a_bundle_those_that_were_cancelled_are_distinguished() -> None:
    case = BrokerCase(node(cores=1), [lane(bundled=True, cores=1)])
    case.broker.lanes[0].mean_duration = 0.004
    case.ready(*range(40))
    case.tell(CancelRequested([1]))
    found = groups_of(case.broker, lambda task: explain_held(case.broker, task, 0.0, foresees=False))
    assert {group.cause: group.count for group in found}[WaitCause.ENDING] == 1


def test_plural_forms() -> None:
    assert lines(RunAnswer(running=1, ready=1, waiting=1))[0] == "1 running, 1 ready, 1 waiting for dependencies."
    assert lines(RunAnswer(running=2, ready=0, waiting=2))[0] == "2 running, 0 ready, 2 waiting for dependencies."
    assert lines(RunAnswer(done=1))[0] == "Nothing is left to run: 1 task is done."


@pytest.mark.parametrize(
    ("failed", "cancelled", "words"),
    [
        (2, None, "  2 failed or were cancelled; 3 cannot run because of that"),
        (2, 0, "  2 failed; 3 cannot run because of that"),
        (2, 2, "  2 were cancelled; 3 cannot run because of that"),
        (3, 1, "  2 failed, 1 was cancelled; 3 cannot run because of that"),
    ],
)
def test_what_was_cancelled_is_distinguished_if_it_is_known(failed: int, cancelled: int | None, words: str) -> None:
    told = lines(RunAnswer(failed=failed, cancelled=cancelled, doomed=3))
    assert told == ["Nothing is left to run: 0 tasks are done.", words]


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_tasks_that_ask_for_different_amounts_are_distinguished() -> None:
    case = BrokerCase(node(cores=2), [lane(cores=1), lane(cores=2)], [0, 0, 1] + [0] * 50)
    case.ready(0, 1)
    case.ready(*range(2, 20))
    groups = groups_of(case.broker, lambda task: explain_held(case.broker, task, 0.0, foresees=False))
    told = lines(RunAnswer(running=2, ready=18, groups=groups))
    assert told[1].startswith("  17 such as 't3': each waits for cores: it asks for 1, and 0 of 2 are free")
    assert told[2].startswith("  1 ('t2') waits for cores: it asks for 2, and 0 of 2 are free")


def test_resources_and_categories_are_distinguished() -> None:
    def asks(resource: str) -> tuple[WaitCause, str, int]:
        return Answer(0, WaitCause.RESOURCES, shortage=Shortage(resource, 1, 0, 1)).kind()

    def held(category: str) -> tuple[WaitCause, str, int]:
        return Answer(0, WaitCause.THROTTLE, cap=Cap(category, 3, 4)).kind()

    assert asks("cores") != asks("memory")
    assert held("a") != held("b")
    assert Answer(0, WaitCause.TOO_LARGE, detail="x").kind() != Answer(0, WaitCause.TOO_LARGE, detail="y").kind()


def test_the_throttle_is_explained_with_how_many_run_and_how_many_may() -> None:
    case = BrokerCase(node(cores=8), [Lane(Resources.parse({"cores": 1}), cap="k")])
    case.ready(*range(6))
    case.tell(CapsChanged({"k": 3}))
    answer = explain_held(case.broker, 5, 0.0) if 5 not in case.broker.running else None
    assert answer is None, "eight cores, six tasks"
    case.ready(6)
    answer = explain_held(case.broker, 6, 0.0)
    assert answer.cap is not None and (answer.cap.most, answer.cap.running) == (3, 6)
    assert "while 6 of its category run: at most 3 of them may run at the same time" in paragraph(answer, PLAIN)


@pytest.mark.parametrize("cause", [cause for cause in WaitCause if not cause.is_over and cause is not WaitCause.NEEDS])
@pytest.mark.parametrize("count", [1, 3])
def test_every_group_can_be_shown(cause: WaitCause, count: int) -> None:
    example = Answer(7, cause, 1, node="ash", until=3.0 if cause is WaitCause.RETRY else None)
    example.shortage = Shortage("cores", 10_000, 0, 10_000) if cause in (WaitCause.RESOURCES, WaitCause.LABEL) else None
    example.cap = Cap("k", 1, 1) if cause is WaitCause.THROTTLE else None
    told = lines(RunAnswer(ready=count, groups=[WaitingGroup(cause, count, example)]))
    assert told[0].endswith(f": {REASONS[cause]}.")
    assert told[1].startswith(f"  {count} ") and "'t7'" in told[1]
    assert not told[1].endswith("on ash")


def test_a_group_without_a_name_is_explained_without_one() -> None:
    whole = RunAnswer(ready=3, groups=[WaitingGroup(WaitCause.NO_NODE, 3, Answer(-1, WaitCause.NO_NODE))])
    assert lines(whole) == [
        "Nothing is running: the cluster has no node.",
        "  3: each waits for a node: the cluster has none",
    ]


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (WaitCause.THROTTLE, "the throttle holds all ready tasks back"),
        (WaitCause.NODE_LOST, "nodes are lost, and their tasks are being placed on others"),
        (WaitCause.STORE, "the cluster's store does not answer"),
        (WaitCause.LABEL, "no node has the label that the ready tasks ask for"),
        (WaitCause.TOO_LARGE, "no node can run the ready tasks"),
        (WaitCause.RESOURCES, "too little is free for the ready tasks"),
        (WaitCause.STOPPING, "the run is stopping"),
    ],
)
def test_why_nothing_runs(cause: WaitCause, why: str) -> None:
    example = Answer(0, cause, shortage=Shortage("x=y", 1, 0, 0), cap=Cap("k", 0, 0))
    assert lines(RunAnswer(ready=1, groups=[WaitingGroup(cause, 1, example)]))[0] == f"Nothing is running: {why}."


# ---- what is said of one ---------------------------------------------------------------------------------------------


def test_what_is_not_declared_is_shown_as_reckoned_with() -> None:
    short = Shortage("memory", 8_429_000_000, 1 << 30, 8 << 30, reckoned=True)
    told = paragraph(Answer(0, WaitCause.RESOURCES, shortage=short), PLAIN)
    assert told == (
        "'t0' is queued and waits for memory: it declares none (7.85 GiB are assumed), and 1 GiB of 8 GiB is free."
    )


def test_a_size_that_was_learned_is_known_to_be_one() -> None:
    case = BrokerCase(node(cores=4, memory="4G"), [lane(cores=1), lane(cores=1, memory="3G")], [0, 0, 1])
    case.broker.lanes[0].sizes = (0, 3 << 30, 0)
    case.broker.contract.change_lane(0, case.broker.lanes[0].request())
    case.ready(0, 1, 2)
    learned, declared = (explain_held(case.broker, task, 0.0).shortage for task in (1, 2))
    assert learned is not None and (learned.resource, learned.reckoned) == ("memory", True)
    assert declared is not None and (declared.resource, declared.reckoned) == ("memory", False)


def test_a_label_that_a_node_has_not_is_found_out() -> None:
    request = requiring(Resources.parse({"cores": 1}), ("site=omega",))
    answer = explain_stranded(3, request, [Resources.parse({"cores": 4})])
    assert answer.cause is WaitCause.LABEL and answer.shortage is not None
    assert answer.shortage.resource == "site=omega"
    why = "no node of the cluster has the label site=omega; it waits for one"
    assert paragraph(answer, PLAIN) == f"'t3' is ready and cannot start: {why}."


def test_a_scheduler_that_has_a_task_without_its_label_says_so() -> None:
    """A node whose labels have changed since."""
    request = requiring(Resources.parse({"cores": 1}), ("site=omega",))
    case = BrokerCase(requiring(node(cores=2), ("site=omega",)), [Lane(request)])
    case.ready(0, 1)
    assert explain_held(case.broker, 1, 0.0).cause is WaitCause.LABEL


def test_what_no_node_can_run_is_explained_with_what_none_has() -> None:
    answer = explain_stranded(3, Resources.parse({"cores": 64}), [Resources.parse({"cores": 4})])
    assert (answer.cause, answer.detail) == (
        WaitCause.TOO_LARGE,
        "no node of the cluster has cores 64; it waits for one",
    )
    assert explain_stranded(3, Resources.parse({"cores": 4}), [node(cores=4)]).cause is WaitCause.ARRIVING


def test_the_first_of_a_queue_may_be_overtaken() -> None:
    case = BrokerCase(node(cores=2), [lane(cores=2), lane(cores=1)], [1, 0, 1, 1])
    case.ready(0, 1, 2, 3)
    told = paragraph(explain_held(case.broker, 1, 0.0), PLAIN)
    assert "; it is the first of 2 in the queue, and others start before it only if they fit." in told


def test_of_those_that_go_first_the_explanation_says_which_one_needs_the_room() -> None:
    """The one that waits for the GPU goes first as well, and a task of one core is not in its way."""
    lanes = [lane(cores=1), lane(gpus=1), lane(cores=2)]
    case = BrokerCase(node(cores=2, gpus=1), lanes, [0, 1, 1, 2, 0], patience=2)
    case.ready(0, 1)
    for urgent in (1, 2):
        case.broker.lanes[urgent].passed_over = 2
    case.ready(2, 3, 4)
    answer = explain_held(case.broker, 4, 0.0)
    assert (answer.cause, answer.larger, answer.first) == (WaitCause.LARGER_FIRST, "cores 2", 3)


def test_room_that_is_kept_beside_the_data_is_a_matter_of_the_data() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0)]))
    one.handle(0.0, PeerMessageReceived(1, TaskTransfer(1, [ReadyTask(3)])))
    answer = among_others(one, Answer(3, WaitCause.LARGER_FIRST, larger="cores 2"))
    assert answer.cause is WaitCause.LOCALITY
    assert "waits on the node that has its input files, for its turn;" in paragraph(answer, PLAIN)


def test_the_node_is_named_where_it_belongs() -> None:
    told = paragraph(Answer(0, WaitCause.THROTTLE, cap=Cap("k", 1, 1), node="ash"), PLAIN)
    assert told == (
        "'t0' is queued on ash and is held back by the throttle while 1 of its category runs:"
        " at most 1 of them may run at the same time."
    )
    short = Shortage("cores", 20_000, 10_000, 20_000)
    assert paragraph(Answer(0, WaitCause.RESOURCES, shortage=short, node="ash"), PLAIN) == (
        "'t0' is queued on ash and waits for cores: it asks for 2, and 1 of 2 is free."
    )
    assert paragraph(Answer(0, WaitCause.ARRIVING, node="ash"), PLAIN) == "'t0' is ready and is being sent to ash."


def test_a_cancelled_task_is_not_shown_as_failed() -> None:
    assert paragraph(Answer(0, WaitCause.FAILED, cancelled=True, detail="cancelled"), PLAIN) == "'t0' was cancelled."
    doomed = Answer(1, WaitCause.DOOMED, chain=[0], links=1, root=Answer(0, WaitCause.FAILED, cancelled=True))
    assert paragraph(doomed, PLAIN) == "'t1' cannot run: it depends on 't0', which was cancelled."


@pytest.mark.parametrize("needs", ["lost worse", "worse lost"])
def test_what_is_doomed_is_led_to_what_failed_and_not_to_another_that_cannot_run(needs: str) -> None:
    play = Play(f"bad:\nlost: bad\nworse:\nend: {needs}", cores=2)
    play.end("bad", AttemptOutcome.FAILED)
    play.end("worse", AttemptOutcome.FAILED)
    assert play.chain("end") == ["worse"]
    assert play.why("end").root == Answer(play.number("worse"), WaitCause.FAILED)


def test_a_chain_over_a_hundred_keeps_both_its_ends() -> None:
    play = Play("t0:\n" + "\n".join(f"t{at}: t{at - 1}" for at in range(1, 140)))
    answer = play.why("t139")
    assert (answer.links, len(answer.chain)) == (139, 100)
    assert (play.chain("t139")[0], play.chain("t139")[-1]) == ("t138", "t0")
    assert "over 134 more to 't1' and 't0'; 't0' has been running" in paragraph(answer, speech(play.graph, 0.0))


# ---- a cluster -------------------------------------------------------------------------------------------------------


def asked(causes: dict[int, RunAnswer | None]) -> RunAnswer:
    """Twenty tasks are ready or run; a node that is None does not answer."""

    def ask(number: int) -> RunAnswer | None:
        said = causes[number]
        if said is None:
            raise SilentError
        return said

    books = RunAnswer(ready=20, waiting=3, done=4, failed=5, doomed=6)
    return whole_cluster(books, {number: f"n{number}" for number in causes}, ask)


def waits(count: int, amount: int = 10_000, free: int = 0) -> WaitingGroup:
    example = Answer(1, WaitCause.RESOURCES, shortage=Shortage("cores", amount, free, 40_000))
    return WaitingGroup(WaitCause.RESOURCES, count, example)


def test_what_nodes_say_is_added_up() -> None:
    whole = asked({1: RunAnswer(running=2, groups=[waits(5)]), 2: RunAnswer(running=3, groups=[waits(6), waits(4, 2)])})
    assert (whole.running, whole.ready) == (5, 15)
    assert (whole.waiting, whole.done, whole.failed, whole.doomed) == (3, 4, 5, 6)
    assert [(group.count, group.nodes) for group in whole.groups] == [(11, 2), (4, 1)]
    assert lines(whole)[1] == (
        "  11 on 2 nodes, such as 't1' on n1: each waits for cores: it asks for 1, and 0 of 4 are free on n1"
    )


def test_what_no_node_reports_is_on_its_way() -> None:
    whole = asked({1: RunAnswer(running=2, groups=[waits(5)])})
    (_, rest) = whole.groups
    assert (rest.cause, rest.count) == (WaitCause.ARRIVING, 13)
    assert lines(whole)[2].startswith("  13: each is being placed")


def test_of_a_silent_node_it_is_not_known_what_runs_there() -> None:
    whole = asked({1: RunAnswer(running=2, groups=[waits(5)]), 2: None})
    told = lines(whole)
    assert told[0] == "At least 2 running, 18 ready, 3 waiting for dependencies."
    assert "  13: each is on n2, which does not answer" in told[2]
    assert "  node n2 does not answer: its running tasks are not known" in told
    alone = lines(asked({2: None}))
    assert alone[0] == "It is not known what is running: the nodes that have tasks do not answer."


def test_without_a_node_all_wait_for_one() -> None:
    (group,) = asked({}).groups
    assert (group.cause, group.count) == (WaitCause.NO_NODE, 20)


def test_of_many_nodes_some_are_asked() -> None:
    whole = asked({number: RunAnswer() for number in range(MOST_ASKED + 6)})
    assert not whole.groups and whole.notes == ["64 of 70 nodes were asked; tasks on the others are not counted"]


def member() -> PeerScheduler:
    columns = TaskColumns(array("i", [0] * 100))
    tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, 1, Random(0)), ())
    broker = Scheduler(node(cores=1), columns, [lane()], queue=tiers)
    return PeerScheduler(0, broker, Roster(range(3)), PeerOptions("mdl"))


def test_tasks_beside_their_data_are_distinguished_from_others_that_ask_for_the_same() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0), ReadyTask(1), ReadyTask(2)]))
    one.handle(0.0, PeerMessageReceived(1, TaskTransfer(1, [ReadyTask(3)])))
    whole = whole_member(one, lambda task: explain_in_member(one, task, 0.0, since={}, foresees=False))
    assert whole.running == 1
    assert {group.cause: group.count for group in whole.groups} == {WaitCause.RESOURCES: 2, WaitCause.LOCALITY: 1}


def test_a_started_task_whose_files_are_coming_does_not_run_yet() -> None:
    one = member()
    one.handle(0.0, TasksPlaced([ReadyTask(0), ReadyTask(1)]))

    def explain(task: int) -> Answer:
        return explain_in_member(one, task, 0.0, since={}, is_coming=lambda each: each == 0)

    whole = whole_member(one, explain, lambda task: task == 0)
    assert (whole.running, [group.cause for group in whole.groups]) == (0, [WaitCause.RESOURCES, WaitCause.FETCHING])
    assert explain(50).cause is WaitCause.RECORDING
