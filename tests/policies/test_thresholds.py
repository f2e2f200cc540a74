"""What makes a method looser: values that its option may have, its default among them, the strictest first."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.orchestrator import Accept
from stepspec.orchestrator.events import Judged
from stepspec.policies import check, make, options
from stepspec.policies.thresholds import KNOBS

from ..fakes import run
from ..orchestrator.arms import ScriptedCritic, arm, taste


@pytest.mark.parametrize("policy", KNOBS)
def test_a_knob_is_turned_one_way_through_values_that_its_option_may_have(policy: str) -> None:
    knob = KNOBS[policy]
    assert options(policy)[knob.option].default in knob.values
    for value in knob.values:
        assert check(policy, {knob.option: value}) == {knob.option: value}
    ordered = sorted(set(knob.values))
    assert knob.values in (tuple(ordered), tuple(reversed(ordered)))


def accepted(policy: str, value: float) -> float:
    """The share of the drafts that *policy* accepts with that *value* of its knob, over a few seeds."""
    verdicts: list[bool] = []
    options: dict[str, Any] = {KNOBS[policy].option: value}
    for seed in range(12):
        tried = arm(policy, seed)
        critic = ScriptedCritic(lambda chain: taste(chain.text))
        tried.policy = make(policy, tried.small, tried.large, critic=critic, **options)
        run(tried.run())
        verdicts += [isinstance(event.verdict, Accept) for event in tried.events if isinstance(event, Judged)]
    return sum(verdicts) / len(verdicts)


@pytest.mark.parametrize("policy", KNOBS)
def test_the_first_value_is_the_strictest_and_the_last_the_loosest(policy: str) -> None:
    first, *_, last = KNOBS[policy].values
    assert accepted(policy, first) < accepted(policy, last)


@pytest.mark.parametrize(("policy", "highest"), [("specreason", 9), ("reward", 1)])
def test_where_a_score_is_compared_the_strictest_value_is_the_highest_score(policy: str, highest: float) -> None:
    assert KNOBS[policy].compared
    assert KNOBS[policy].values[0] == highest
    assert {name for name, knob in KNOBS.items() if knob.compared} == {"specreason", "reward"}
