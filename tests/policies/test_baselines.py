"""The random control: *p* is the accept rate, and a decision does not depend on whether a step is right."""

import pytest

from stepspec.orchestrator import Accept, Chain, Message, Rollback, Step
from stepspec.policies import RandomControl

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM


def pair(length: int = 3) -> tuple[ScriptedModel, ScriptedModel]:
    small = ScriptedModel("small", counting("small", length))
    return small, ScriptedModel("large", counting("large", length), log=small.log)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_the_share_of_accepted_drafts_is_p(p: float) -> None:
    policy = RandomControl(*pair(), p=p)
    drafts = [Step(f"It is {number}.\n\n", "small") for number in range(1000)]
    accepted = sum(run(policy.verify(PROBLEM, draft))[0] == Accept() for draft in drafts)
    assert accepted / 1000 == pytest.approx(p, abs=0.05)  # three standard deviations, and the same draws every time


def test_a_draw_depends_on_the_seed_the_problem_the_chain_and_the_draft_alone() -> None:
    def drawn(seed: int = 0, problem: str = "Why?", before: str = "So.\n\n", draft: str = "It is.\n\n") -> float:
        chain = Chain((Message("user", problem),), (Step(before, "large", note="random"), Step(draft, "small")))
        return RandomControl(*pair(), seed=seed).drawn(chain)

    others = {drawn(1), drawn(problem="How?"), drawn(before="Now.\n\n"), drawn(draft="It is not.\n\n")}
    assert len({drawn(), *others}) == 5
    assert drawn() == drawn()
    assert RandomControl(*pair()).drawn(PROBLEM) == pytest.approx(0.9671349423)  # on every machine


def test_a_draw_equal_to_p_rejects_the_draft() -> None:
    """So that a *p* of 0 accepts nothing at all."""
    draft = Step("It is.\n\n", "small")
    drawn = RandomControl(*pair()).drawn(PROBLEM.extend(draft))
    assert run(RandomControl(*pair(), p=drawn).verify(PROBLEM, draft))[0] == Rollback(reason="random")
    assert run(RandomControl(*pair(), p=drawn + 1e-9).verify(PROBLEM, draft))[0] == Accept()
