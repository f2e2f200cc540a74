"""
What real models do now and then: ends in odd places, judges without room, empty drafts, parts of
characters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepspec import policies
from stepspec.orchestrator import Budget, Chain, Policy, Step, reason
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import THINK_END, Rating
from stepspec.orchestrator.errors import ContextTooLong, VerifierFailed
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.prompts import PromptFile

from ..fakes import ScriptedModel, counting, run, saying
from ..orchestrator.arms import PROBLEM


def outcome(
    policy: Policy,
    budget: Budget | None = None,
    *,
    thinks: bool = True,
    **parts: Any,
) -> Outcome:
    chain = replace(PROBLEM, thinks=thinks)
    return run(solve(RunParts(policy, budget or Budget(), **parts), chain, lambda event: None))[0]


def test_a_verdict_that_has_no_room_rejects_and_ends_no_run() -> None:
    class Short:
        async def rate(self, chain: Chain) -> Rating:
            if len(chain.steps) > 2:
                raise ContextTooLong("full", role="critic", verb="rate")
            return Rating(1.0)

    small, large = (ScriptedModel(role, counting(role, 6)) for role in ("small", "large"))
    assert (
        outcome(policies.make("reward", small, large, critic=Short()), by_method=True).reason
        == "stop"
    )


def test_a_verifier_that_may_not_fail_fails_the_run() -> None:
    class Broken:
        async def rate(self, chain: Chain) -> Rating:
            raise VerifierFailed("broken", verifier="x")

    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    with pytest.raises(VerifierFailed):
        run(reason(policies.make("reward", small, large, critic=Broken()), PROBLEM))


@pytest.mark.parametrize("name", ["reading", "bild", "glimpse", "reflective"])
def test_an_empty_draft_of_models_that_do_not_think_is_no_answer(name: str) -> None:
    policy = policies.make(
        name, ScriptedModel("small", lambda _: ""), ScriptedModel("large", saying("It is 42."))
    )
    assert outcome(policy, thinks=False).text == "It is 42."


def test_a_stop_string_ends_a_run_of_models_that_do_not_think() -> None:
    said = saying("It is 42.\n\n", "Observation: none.\n\n", *[f"More {n}.\n\n" for n in range(50)])
    budget = Budget(60)
    models = [Budgeted(ScriptedModel(role, said), budget.left) for role in ("small", "large")]
    found = outcome(
        policies.make("specreason", *models), budget, thinks=False, stop=("Observation:",)
    )
    assert (found.reason, found.text, len(found.chain.steps)) == ("stop", "It is 42.\n\n", 2)


def test_equal_texts_of_which_only_the_draft_ends_the_turn_are_not_the_same() -> None:
    large = ScriptedModel("large", saying("So it is 42.\n\n", "Here is the proof."))
    policy = policies.make(
        "lookahead-reasoning", ScriptedModel("small", lambda _: "So it is 42."), large
    )
    assert "proof" in outcome(policy, thinks=False).text


def test_a_takeover_that_ends_within_a_character_goes_on() -> None:
    class Half(ScriptedModel):
        async def write(self, chain: Chain, *, limit: int = 512, **more: Any) -> Step:
            return (
                Step("", self.role, "length")
                if limit < 2
                else await super().write(chain, limit=limit, **more)
            )

    small = ScriptedModel("small", saying("First.\n\n", f"So.\n{THINK_END}"))
    options: dict[str, Any] = {"n1": 1, "begin": 2, "reasoning": False}
    policy = policies.make("speculative-thinking", small, Half("large", small.script), **options)
    assert run(reason(policy, PROBLEM))[0][1] == "finished"


def test_a_prompt_may_have_an_empty_opening() -> None:
    assert PromptFile.parse("Is it right?\n---\n").text == "Is it right?"
