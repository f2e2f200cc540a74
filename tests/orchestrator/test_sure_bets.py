"""No bets beyond doubtful drafts; how doubtful a draft may be follows the verdicts on those that were bet on."""

import random

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Token, reason
from stepspec.orchestrator.events import Committed, Judged
from stepspec.orchestrator.lookahead import LookaheadControl, SureBets
from stepspec.policies import SpecReason

from ..fakes import ScriptedModel, counting, run
from .arms import ARMS, PROBLEM, arm


def draft(logprob: float) -> Step:
    return Step("So.\n\n", "small", tokens=(Token("So", logprob), Token(".\n\n", logprob)))


def judged(logprob: float, *, accepted: bool) -> Judged:
    return Judged(0, draft(logprob), Accept() if accepted else Rollback(reason="grade"))


def test_the_floor_moves_within_bounds_and_only_by_drafts_that_were_bet_on() -> None:
    sure = SureBets()
    for _ in range(1000):
        sure.observe(judged(-SureBets.LEAST / 2, accepted=False))
    assert sure.doubt == SureBets.LEAST
    sure.observe(judged(-1.0, accepted=True))
    sure.observe(Committed(0, draft(-SureBets.LEAST / 2)))
    sure.observe(Judged(0, Step("So.\n\n", "large"), Rollback()))
    assert sure.doubt == SureBets.LEAST
    for _ in range(1000):
        sure.observe(judged(-SureBets.LEAST / 2, accepted=True))
    assert sure.doubt == SureBets.MOST


def test_a_rejection_raises_it_by_a_step_and_an_acceptance_lowers_it_by_less() -> None:
    """Four of five: what one rejection does, four acceptances undo."""
    sure = SureBets()
    assert sure.doubt == 1.0
    sure.observe(judged(-0.1, accepted=False))
    assert sure.doubt == pytest.approx(1 / 1.1)
    sure.observe(judged(-0.1, accepted=True))
    assert sure.doubt == pytest.approx(1.1**-0.75)
    before = sure.doubt
    for verdict in (Accept(), Rollback()):
        sure.observe(Judged(0, Step("So.\n\n", "large"), verdict))
    sure.observe(judged(-2.0, accepted=True))
    assert sure.doubt == before


def test_a_confidence_at_the_floor_is_enough_and_large_steps_are_sure() -> None:
    sure = SureBets(doubt=0.5)
    assert sure.allows(draft(-0.5))
    assert not sure.allows(draft(-0.500001))
    assert sure.allows(Step("So.\n\n", "large", tokens=(Token("So", -9.0),)))
    assert sure.allows(Step("So.\n\n", "small"))


def test_no_bet_is_made_beyond_a_doubtful_draft() -> None:
    """The second draft is doubtful: the third waits for its verdict, and the fourth is bet on the third again."""
    small = ScriptedModel("small", counting("small", 5))
    small.logprob = lambda before, token: -2.0 if before.count("\n\n") == 1 else -0.01
    large = ScriptedModel("large", counting("large", 5), log=small.log)
    sure = SureBets(doubt=0.5)
    ahead = LookaheadControl(2, sure_bets=sure)
    (chain, _), seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=ahead))
    log = small.log
    assert log.index("small write 1") < log.index("large ask 1 done")
    assert log.index("small write 2") > log.index("large ask 2 done")
    assert log.index("small write 3") < log.index("large ask 3 done")
    assert len(chain.steps) == 5
    assert seconds == 7.0  # two runs of bets instead of one, which takes 6


@pytest.mark.parametrize("name", ARMS)
def test_the_chain_is_the_same_wherever_betting_stops(name: str) -> None:
    expected = run(arm(name, 3).run(0))[0]
    for doubt in (SureBets.LEAST, 0.3, SureBets.MOST):
        assert run(arm(name, 3).run(LookaheadControl(3, sure_bets=SureBets(doubt=doubt))))[0] == expected


def test_of_the_drafts_above_the_floor_the_share_wanted_is_accepted() -> None:
    """Where doubtful drafts are accepted less often, as (1 - doubt) to the fourth."""
    rng, sure, bets = random.Random(1), SureBets(), list[bool]()
    for place in range(20_000):
        doubt = rng.random()
        accepted = rng.random() < (1 - doubt) ** 4
        if sure.allows(draft(-doubt)) and place > 2000:
            bets.append(accepted)
        sure.observe(judged(-doubt, accepted=accepted))
    assert sum(bets) / len(bets) == pytest.approx(SureBets.TARGET, abs=0.03)
