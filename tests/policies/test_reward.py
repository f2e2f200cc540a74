"""Reward-guided speculative decoding: the threshold and its limits, and the rated steps."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Verdict, reason
from stepspec.policies import Reward, make

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM, ScriptedCritic


def policy(reward: float, **options: Any) -> Reward:
    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    made = make("reward", small, large, critic=ScriptedCritic(lambda chain: reward), **options)
    assert isinstance(made, Reward)
    return made


@pytest.mark.parametrize(
    ("reward", "options", "ruling"),
    [
        (0.7, {}, Accept(0.7)),
        (0.6875, {}, Rollback(reason="reward", score=0.6875)),
        (0.0, {"threshold": 0}, Accept(0.0)),
        (0.9375, {"threshold": 1}, Rollback(reason="reward", score=0.9375)),
    ],
)
def test_a_reward_that_reaches_the_threshold_is_enough(
    reward: float, options: dict[str, Any], ruling: Verdict
) -> None:
    assert run(policy(reward, **options).verify(PROBLEM, Step("So.\n\n", "small")))[0] == ruling


def test_the_critic_reads_the_draft_in_its_chain_and_the_large_models_steps_before_it() -> None:
    read: list[Chain] = []

    def reward(chain: Chain) -> float:
        read.append(chain)
        return 0.0 if len(chain.steps) == 1 else 1.0

    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    chain, _ = run(reason(Reward(small, large, ScriptedCritic(reward)), PROBLEM))[0]
    assert [step.author for step in chain.steps] == ["large", "small", "small"]
    assert [step.note for step in chain.steps] == ["reward", "", ""]
    assert [[step.author for step in chain.steps] for chain in read] == [
        ["small"], ["large", "small"], ["large", "small", "small"],
    ]  # fmt: skip
