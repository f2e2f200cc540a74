"""Reflective verification at a temperature above 0 required a match, which rejects most sampled tokens."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec import Sampling, Solver, policies
from stepspec.orchestrator import Accept, Rollback
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.policies import Reflective

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM
from ..policies.test_reflective import DRAFT, Reader
from .drawing import DrawingVllm


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, "match"),
        ({"sampled": True}, "typical"),
        ({"sampled": True, "accept": "match"}, "match"),
        ({"accept": "typical"}, "typical"),
    ],
)
def test_typical_is_the_rule_for_sampled_models_and_an_option_wins(options: dict[str, Any], rule: str) -> None:
    small, large = ScriptedModel("small", counting("small", 3)), Reader("large", counting("large", 3))
    large.first = large.second = {1: {" it": -1.2, " he": -0.5}}
    policy = policies.make("reflective", small, large, **options)
    assert isinstance(policy, Reflective)
    verdict = run(policy.verify(PROBLEM, DRAFT))[0]
    assert isinstance(verdict, Accept if rule == "typical" else Rollback)
    assert [top for _, _, top in large.calls] == [20 if rule == "typical" else 2]


@pytest.mark.parametrize(("sampling", "top"), [(Sampling(seed=1), 20), (GREEDY, 2)])
@pytest.mark.parametrize("nested", [False, True])
async def test_typical_is_the_rule_of_a_run_above_temperature_0(sampling: Sampling, top: int, nested: bool) -> None:
    server = DrawingVllm()
    async with server.serve("small") as small, server.serve("large") as large:
        within = {"small": small, "large": large.model_copy(update={"role": "large"}), "policy": "reflective"}
        async with Solver(within if nested else small, large, policy="small" if nested else "reflective") as solver:
            await solver.solve("What is 1 + 1?", sampling=sampling)
    read = [body.get("sampling_params", body) for _, body in server.requests]
    assert {each["prompt_logprobs"] for each in read if "prompt_logprobs" in each} == {top}


def test_the_option_is_not_among_those_that_users_set() -> None:
    assert "sampled" not in policies.options("reflective")
    assert policies.describe_options("reflective")["accept"].default is None
