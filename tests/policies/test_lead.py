"""The large model begins, and the policy does not notice."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Message, Rollback, Step, reason
from stepspec.orchestrator.chain import DELIMITER, THINK_END
from stepspec.orchestrator.interfaces import foreseeable
from stepspec.policies import Led, SpecReason, make
from stepspec.policies.lead import PLANNING
from stepspec.prompts import load

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import ARMS, BOUNDED, PROBLEM, arm

PLAN = load("lead.plan")


class Listening(ScriptedModel):
    """Keeps what it was asked to write."""

    asked: list[tuple[Chain, str, int]]

    async def write(self, chain: Chain, **options: Any) -> Step:
        self.asked.append((chain, options.get("opening", ""), options.get("limit", 0)))
        return await super().write(chain, **options)


def planner(script: str) -> Listening:
    large = Listening("large", lambda said: script if not said else counting("large", 4)(said))
    large.asked = []
    return large


def small() -> ScriptedModel:
    return ScriptedModel("small", counting("small", 4))


@given(seed=st.integers(0, 10_000), ahead=st.sampled_from([0, 2]), first=st.integers(0, 3), name=st.sampled_from(ARMS))
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


@given(seed=st.integers(0, 10_000), ahead=st.sampled_from([0, 2]))
@BOUNDED
def test_as_many_first_steps_as_there_are_equal_the_large_model_alone(seed: int, ahead: int) -> None:
    tried = arm("specreason", seed)
    alone, _ = run(reason(make("large", tried.small, tried.large), PROBLEM))
    tried.log.clear()
    policy = Led(SpecReason(tried.small, tried.large), tried.large, first=len(alone[0].steps))
    assert run(reason(policy, PROBLEM, ahead=ahead))[0] == alone
    assert not [line for line in tried.log if "ask" in line or line.startswith("small")]


@pytest.mark.parametrize(
    ("script", "plan"),
    [
        (" first, then second.\n\n", "Plan: first, then second.\n\n"),
        (f" first.\n{THINK_END}", "Plan: first.\n\n"),
        (" first.", "Plan: first.\n\n"),
    ],
    ids=["a paragraph", "closes the thinking", "ends the turn"],
)
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_plan_is_asked_for_in_the_problem_and_kept_without_the_question(script: str, plan: str, ahead: int) -> None:
    large = planner(f"Plan:{script}")
    policy = Led(SpecReason(small(), large), large, plan=True)
    (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
    assert end == "finished"
    assert chain.messages == PROBLEM.messages
    assert (chain.steps[0].text, chain.steps[0].author, chain.steps[0].stop) == (plan, "large", "delimiter")
    assert "".join(token.text for token in chain.steps[0].tokens) == plan
    assert [step.author for step in chain.steps[1:]] == ["small"] * 3
    asked, opening, limit = large.asked[0]
    assert asked.messages == (Message("user", f"{PROBLEM.messages[0].content}\n\n{PLAN.text}"),)
    assert (opening, limit) == ("Plan:", PLANNING)


def test_a_plan_that_says_nothing_is_refused_like_any_other_empty_step() -> None:
    large = planner(f"{THINK_END}")
    plan, _ = run(Led(SpecReason(small(), large), large, plan=True).draft(PROBLEM))
    assert plan.text == f"Plan:{DELIMITER}"


def test_first_steps_come_after_the_plan() -> None:
    large = planner("Plan: first.\n\n")
    policy = Led(SpecReason(small(), large), large, first=2, plan=True)
    (chain, _), _ = run(reason(policy, PROBLEM))
    assert [step.author for step in chain.steps] == ["large"] * 3 + ["small"]
    assert [opening for _, opening, _ in large.asked] == ["Plan:", "", ""]


def test_only_the_last_turn_of_a_conversation_is_asked_for_a_plan() -> None:
    turns = Message("system", "Be brief."), Message("user", "Hello"), Message("user", "What is 6 x 7?")
    large = planner("Plan: first.\n\n")
    run(Led(SpecReason(small(), large), large, plan=True).draft(Chain.of(turns)))
    assert large.asked[0][0].messages == (*turns[:2], Message("user", f"What is 6 x 7?\n\n{PLAN.text}"))


def test_everything_else_is_the_policys() -> None:
    models = small(), planner("Plan:\n\n")
    policy = SpecReason(*models)
    led = Led(policy, models[1], 1)
    assert led.answerer is policy.answerer
    assert foreseeable(led)
    assert not foreseeable(Led(make("large", *models), models[1]))
    draft, rollback = Step("So.\n\n", "small"), Rollback(reason="grade")
    assert run(led.repair(PROBLEM, draft, rollback))[0] == run(policy.repair(PROBLEM, draft, rollback))[0]


@pytest.mark.parametrize(("first", "led"), [(None, 1), (0, 1), (1, 2), (2, 3)])
def test_the_plan_comes_on_top_of_the_first_steps(first: int | None, led: int) -> None:
    large = planner("First add, then halve.\n\n")
    large.judge = lambda chain, question: {"0": 1.0}  # nobody else's step would stand
    more = {} if first is None else {"first": first}
    policy = Led(SpecReason(small(), large), large, plan=True, **more)
    steps = [Step(f"Step {number}.\n\n", "large") for number in range(4)]
    verdicts = [run(policy.verify(Chain(PROBLEM.messages, tuple(steps[:n])), steps[n]))[0] for n in range(4)]
    assert [isinstance(verdict, Rollback) for verdict in verdicts] == [n >= led for n in range(4)]


def test_a_led_policy_is_a_value() -> None:
    policy = Led(SpecReason(small(), small()), small())
    assert not hasattr(policy, "__dict__")
    with pytest.raises(FrozenInstanceError):
        policy.first = 3  # type: ignore[misc]


@pytest.mark.parametrize(("script", "stop"), [("Add.\n\n", "delimiter"), (" and" * (PLANNING + 9), "length")])
def test_a_plan_that_did_not_end_the_thinking_is_left_as_it_was_written(script: str, stop: str) -> None:
    written: list[Step] = []

    class Keeping(Listening):
        async def write(self, chain: Chain, **options: Any) -> Step:
            written.append(await super().write(chain, **options))
            return written[-1]

    large = Keeping("large", lambda said: script)
    large.asked = []
    draft = run(Led(SpecReason(small(), large), large, plan=True).draft(PROBLEM))[0]
    assert draft.stop == stop
    assert draft == written[0]
