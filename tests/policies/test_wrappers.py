"""One model alone, and a policy whose first steps are the large model's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Ledger, Rollback, Step, reason
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.interfaces import foreseeable
from stepspec.policies import Led, SpecReason, make

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import ARMS, BOUNDED, PROBLEM, arm


@given(seed=st.integers(0, 10_000), ahead=st.sampled_from([0, 2]), first=st.integers(0, 7), name=st.sampled_from(ARMS))
@BOUNDED
def test_the_first_steps_are_the_large_models_and_the_rest_is_the_policys(
    seed: int, ahead: int, first: int, name: str
) -> None:
    tried = arm(name, seed, trouble=0.0)
    (chain, _), _ = run(reason(Led(tried.policy, tried.large, first), PROBLEM, ahead=ahead))
    alone, _ = run(reason(make("large", tried.small, tried.large), PROBLEM, spent=lambda c: len(c.steps) >= first))
    assert chain.steps[: len(alone[0].steps)] == alone[0].steps
    rest, _ = run(reason(tried.policy, alone[0]))
    assert chain == rest[0]


def test_everything_else_is_the_policys() -> None:
    models = ScriptedModel("small", counting("small", 4)), ScriptedModel("large", counting("large", 4))
    policy = SpecReason(*models)
    led = Led(policy, models[1], 1)
    assert led.answerer is policy.answerer
    assert foreseeable(led)
    assert not foreseeable(Led(make("large", *models), models[1]))
    draft, rollback = Step("So.\n\n", "small"), Rollback(reason="grade")
    assert run(led.repair(PROBLEM, draft, rollback))[0] == run(policy.repair(PROBLEM, draft, rollback))[0]


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
