"""What becomes of an agent whose share of a run fails while it takes a message of another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cluster.agent.agent import Agent
from shoal.cluster.agent.messages import PeersChangedEvent, PieceReceivedReply, TasksUnwantedEvent
from shoal.core.store.interface import GoneError
from shoal.errors import RunError

MESSAGES = [PeersChangedEvent("r"), PieceReceivedReply("r", []), TasksUnwantedEvent("r", [1])]


def agent_with(problem: Exception) -> Any:
    """An agent whose share cannot do what it is asked for."""

    def fail(*given: object) -> None:
        raise problem

    agent = object.__new__(Agent)
    agent.share = SimpleNamespace(run="r", look_around=fail, promised=fail, cancel=fail)  # type: ignore[assignment]
    agent.membership = SimpleNamespace(nodes={})  # type: ignore[assignment]
    agent._problem = None
    return agent


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("problem", [RunError("the store has not replied for 60 s"), GoneError("it has lost the run")])
def test_an_agent_whose_store_fails_joins_as_a_new_node(message: Any, problem: Exception) -> None:
    """Else the share would go on with tasks that it counts as running and that were never started."""
    agent = agent_with(problem)
    agent.hear(message)
    with pytest.raises(type(problem)):
        agent._raise_problem()
    agent._raise_problem()


def test_also_if_it_is_a_client_that_cancels() -> None:
    agent = agent_with(RunError("the store has not replied for 60 s"))
    agent.unwanted("r", [1])
    with pytest.raises(RunError):
        agent._raise_problem()


def test_a_defect_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    agent = agent_with(KeyError(7))
    with pytest.raises(KeyError):  # to the desk, which tells the sender
        agent.hear(MESSAGES[0])
    assert capsys.readouterr().err == "shoal agent: internal error while handling a message: KeyError: 7\n"
