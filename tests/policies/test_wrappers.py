"""
The wrappers `Led`, `Ending` and `Guarded`; below them, the random control of the baselines, which
accepts drafts at random.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Chain, Message, Rollback, Step, reason
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import loop_guard, repair_may_start_early
from stepspec.orchestrator.lookahead import LookaheadControl, judge
from stepspec.orchestrator.repetition import LoopGuard
from stepspec.policies import Ending, Guarded, Led, RandomControl, Solo, SpecReason, make

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import ARMS, BOUNDED, PROBLEM, arm


@given(
    seed=st.integers(0, 10_000),
    ahead=st.sampled_from([0, 2]),
    first=st.integers(0, 7),
    name=st.sampled_from(ARMS),
)
@BOUNDED
def test_the_first_steps_are_the_large_models_and_the_rest_is_the_policys(
    seed: int, ahead: int, first: int, name: str
) -> None:
    tried = arm(name, seed, trouble=0.0)
    (chain, _), _ = run(reason(Led(tried.policy, tried.large, first), PROBLEM, ahead=ahead))
    alone, _ = run(
        reason(
            make("large", tried.small, tried.large), PROBLEM, spent=lambda c: len(c.steps) >= first
        )
    )
    assert chain.steps[: len(alone[0].steps)] == alone[0].steps
    rest, _ = run(reason(tried.policy, alone[0]))
    assert chain == rest[0]


def test_everything_else_is_the_policys() -> None:
    models = (
        ScriptedModel("small", counting("small", 4)),
        ScriptedModel("large", counting("large", 4)),
    )
    policy = SpecReason(*models)
    led = Led(policy, models[1], 1)
    assert led.answerer is policy.answerer
    assert repair_may_start_early(led, PROBLEM.extend(Step("So.\n\n", "large")))
    assert not repair_may_start_early(led, PROBLEM)
    assert not repair_may_start_early(Led(make("large", *models), models[1]), PROBLEM)
    draft = Step("So.\n\n", "small")
    rollback = Rollback(reason="grade")
    assert (
        run(led.repair(PROBLEM, draft, rollback))[0]
        == run(policy.repair(PROBLEM, draft, rollback))[0]
    )


@pytest.mark.parametrize("wrap", ["led", "ending"])
def test_a_step_that_a_wrapper_drafts_is_not_repaired_early(wrap: str) -> None:
    small = ScriptedModel("small", counting("small", 3))
    large = ScriptedModel("large", counting("large", 3))
    inner = SpecReason(small, large)
    policy = Led(inner, large, 2) if wrap == "led" else Ending(inner)
    events = list[Event]()
    small.observe = large.observe = events.append
    (chain, _), _ = run(
        reason(policy, PROBLEM, ahead=LookaheadControl(hedge=1.0), observe=events.append)
    )
    drafted = [event for event in events if isinstance(event, Called) and event.purpose == "draft"]
    hedged = {
        event.step for event in events if isinstance(event, Called) and event.purpose == "hedge"
    }
    by_large = {index for index, step in enumerate(chain.steps) if step.author == "large"}
    assert by_large
    assert {call.step for call in drafted if call.role == "large"} == by_large
    assert hedged
    assert hedged.isdisjoint(by_large)


def test_a_policy_that_declares_itself_unguarded_stays_so_within_other_policies() -> None:
    large = ScriptedModel("large", counting("large", 4))
    unguarded = Solo(large)
    judging = SpecReason(large, large)
    for wrapped in (Led(unguarded, large, 1), Ending(unguarded), Led(Ending(unguarded), large, 1)):
        assert loop_guard(wrapped) is None
        assert loop_guard(Guarded(wrapped)) == LoopGuard()
    for wrapped in (Led(judging, large, 1), Ending(judging)):
        assert loop_guard(wrapped) == LoopGuard()
        assert loop_guard(Guarded(wrapped, None)) is None


def test_white_space_alone_is_accepted_without_having_been_judged() -> None:
    model = ScriptedModel("large", counting("large", 4))
    verdict, _ = run(judge(SpecReason(model, model), PROBLEM, Step("\n\n", "small"), None))
    assert verdict == Accept(judged=False)


def test_first_steps_and_ends_by_the_large_model_are_not_judged() -> None:
    models = (
        ScriptedModel("small", counting("small", 4)),
        ScriptedModel("large", counting("large", 4)),
    )
    policy = SpecReason(*models)
    unjudged = Accept(judged=False)
    assert run(Led(policy, models[1], 1).verify(PROBLEM, Step("So.\n\n", "small")))[0] == unjudged
    assert run(Ending(policy).verify(PROBLEM, Step("So.\n\n", "large")))[0] == unjudged
    (judged, _) = run(Ending(policy).verify(PROBLEM, Step("So.\n\n", "small")))
    assert judged == Accept(9.0)


# The random control: *p* is the accept rate, and a decision does not depend on whether a step is
# right.


def pair(length: int = 3) -> tuple[ScriptedModel, ScriptedModel]:
    small = ScriptedModel("small", counting("small", length))
    return small, ScriptedModel("large", counting("large", length), log=small.log)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_the_share_of_accepted_drafts_is_p(p: float) -> None:
    policy = RandomControl(*pair(), p=p)
    drafts = [Step(f"It is {number}.\n\n", "small") for number in range(1000)]
    accepted = sum(run(policy.verify(PROBLEM, draft))[0] == Accept() for draft in drafts)
    # three standard deviations, and the same draws every time
    assert accepted / 1000 == pytest.approx(p, abs=0.05)


def test_a_draw_depends_on_the_seed_the_problem_the_chain_and_the_draft_alone() -> None:
    def drawn(
        seed: int = 0, problem: str = "Why?", before: str = "So.\n\n", draft: str = "It is.\n\n"
    ) -> float:
        chain = Chain(
            (Message("user", problem),),
            (Step(before, "large", note="random"), Step(draft, "small")),
        )
        return RandomControl(*pair(), seed=seed).drawn(chain)

    others = {
        drawn(1),
        drawn(problem="How?"),
        drawn(before="Now.\n\n"),
        drawn(draft="It is not.\n\n"),
    }
    assert len({drawn(), *others}) == 5
    assert drawn() == drawn()
    assert RandomControl(*pair()).drawn(PROBLEM) == pytest.approx(0.9671349423)  # on every machine


def test_a_draw_equal_to_p_rejects_the_draft() -> None:
    """So that a *p* of 0 accepts nothing at all."""
    draft = Step("It is.\n\n", "small")
    drawn = RandomControl(*pair()).drawn(PROBLEM.extend(draft))
    assert run(RandomControl(*pair(), p=drawn).verify(PROBLEM, draft))[0] == Rollback(
        reason="random"
    )
    assert run(RandomControl(*pair(), p=drawn + 1e-9).verify(PROBLEM, draft))[0] == Accept()
