"""One model alone: no verdicts and no requests to other models."""

import pytest

from stepspec.orchestrator import Ledger, reason
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Event
from stepspec.policies import make

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("name", ["small", "large"])
def test_the_text_of_one_model_equals_a_single_request(name: Role, ahead: int) -> None:
    events: list[Event] = []
    small, large = (ScriptedModel(role, counting(role, 4), observe=events.append) for role in ("small", "large"))
    author, other = (small, large) if name == "small" else (large, small)
    (chain, end), seconds = run(reason(make(name, small, large), PROBLEM, ahead=ahead, observe=events.append))
    assert chain.text == run(author.write(PROBLEM, stop=()))[0].text
    assert (end, seconds, other.log) == ("finished", 4.0, [])
    assert not [line for line in author.log if "ask" in line]
    assert Ledger.of(events).accept_rate == 1.0


@pytest.mark.parametrize("name", ["small", "large"])
def test_one_model_alone_gets_a_second_try_at_a_step_that_repeats(name: Role) -> None:
    def script(previous: tuple[str, ...]) -> str:
        return "Again.\n\n"

    models = [ScriptedModel(role, script) for role in ("small", "large")]
    chain, end = run(reason(make(name, *models), PROBLEM))[0]
    assert ([step.author for step in chain.steps], end) == ([name, name], "repetition")
