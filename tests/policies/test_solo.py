"""One model alone: no verdicts and no requests to other models."""

import pytest

from stepspec.orchestrator import Ledger, reason
from stepspec.orchestrator.chain import DELIMITER, Role
from stepspec.orchestrator.events import Event
from stepspec.policies import Guarded, make

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
def test_one_model_alone_gets_a_second_try_at_a_step_that_repeats_if_loops_are_stopped(name: Role) -> None:
    again = " ".join(map(str, range(150))) + DELIMITER
    models = [ScriptedModel(role, lambda previous: again) for role in ("small", "large")]
    chain, end = run(reason(Guarded(make(name, *models)), PROBLEM))[0]
    assert [(step.author, step.note) for step in chain.steps] == [(name, "")] * 2 + [(name, "repetition")]
    assert end == "repetition"
