"""No bets beyond doubtful drafts, by a floor that follows what became of the bets."""

import random

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Token, reason
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Committed, Judged
from stepspec.orchestrator.floor import LEAST, MOST, Floor
from stepspec.orchestrator.lookahead import LookaheadControl, confidence
from stepspec.policies import SpecReason

from ..fakes import ScriptedModel, counting, run
from .arms import ARMS, PROBLEM, arm


def draft(logprob: float) -> Step:
    return Step("So.\n\n", "small", tokens=(Token("So", logprob), Token(".\n\n", logprob)))


def judged(logprob: float, *, accepted: bool) -> Judged:
    return Judged(0, draft(logprob), Accept() if accepted else Rollback(reason="grade"))


def test_the_floor_moves_within_bounds_and_only_by_drafts_that_were_bet_on() -> None:
    floor = Floor(confidence)
    for _ in range(1000):
        floor.observe(judged(-LEAST / 2, accepted=False))
    assert floor.doubt == LEAST
    floor.observe(judged(-1.0, accepted=True))
    floor.observe(Committed(0, draft(-LEAST / 2)))
    floor.observe(Judged(0, Step("So.\n\n", "large"), Rollback()))
    assert floor.doubt == LEAST
    for _ in range(1000):
        floor.observe(judged(-LEAST / 2, accepted=True))
    assert floor.doubt == MOST


def test_a_rejection_raises_it_by_a_step_and_an_acceptance_lowers_it_by_less() -> None:
    """Four of five: what one rejection does, four acceptances undo."""
    floor = Floor(confidence)
    assert floor.doubt == 1.0
    floor.observe(judged(-0.1, accepted=False))
    assert floor.doubt == pytest.approx(1 / 1.1)
    floor.observe(judged(-0.1, accepted=True))
    assert floor.doubt == pytest.approx(1.1**-0.75)
    before = floor.doubt
    for verdict in (Accept(), Rollback()):
        floor.observe(Judged(0, Step("So.\n\n", "large"), verdict))
    floor.observe(judged(-2.0, accepted=True))
    assert floor.doubt == before


def test_the_floor_itself_is_sure_enough_and_so_is_what_nobody_doubts() -> None:
    floor = Floor(confidence, doubt=0.5)
    assert floor.carries(draft(-0.5))
    assert not floor.carries(draft(-0.500001))
    assert floor.at == pytest.approx(confidence(draft(-0.5)))
    assert floor.carries(Step("So.\n\n", "large", tokens=(Token("So", -9.0),)))
    assert floor.carries(Step("So.\n\n", "small"))


@pytest.mark.parametrize(("wanted", "step"), [(0.0, 1.1), (-0.5, 1.1), (1.0, 1.1), (1.5, 1.1), (0.8, 1.0), (0.8, 0.5)])
def test_a_floor_that_could_not_move_is_refused(wanted: float, step: float) -> None:
    with pytest.raises(ConfigurationError, match="a floor needs"):
        Floor(confidence, wanted=wanted, step=step)


def test_no_bet_is_made_beyond_a_doubtful_draft() -> None:
    """The second draft is doubtful: the third waits for its verdict, and the fourth is bet on the third again."""
    small = ScriptedModel(
        "small", counting("small", 5), logprob=lambda before, token: -2.0 if "says 0" in before else 0
    )
    small.logprob = lambda before, token: -2.0 if before.count("\n\n") == 1 else -0.01
    large = ScriptedModel("large", counting("large", 5), log=small.log)
    floor = Floor(confidence, doubt=0.5)
    ahead = LookaheadControl(lambda: 2, carries=floor.carries)
    (chain, _), seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=ahead))
    log = small.log
    assert log.index("small write 1") < log.index("large ask 1 done")
    assert log.index("small write 2") > log.index("large ask 2 done")
    assert log.index("small write 3") < log.index("large ask 3 done")
    assert len(chain.steps) == 5
    assert seconds == 7.0  # two runs of bets instead of one, which takes 6


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("doubt", [LEAST, 0.3, MOST])
def test_the_chain_is_the_same_wherever_betting_stops(name: str, doubt: float) -> None:
    plain, careful = arm(name, 3), arm(name, 3)
    floor = Floor(confidence, doubt=doubt)
    expected = run(plain.run(0))[0]
    assert run(careful.run(LookaheadControl(lambda: 3, carries=floor.carries)))[0] == expected


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
def test_of_the_drafts_above_the_floor_the_share_wanted_is_accepted(wanted: float) -> None:
    """Where doubtful drafts are accepted less often, as (1 - doubt) to the fourth."""
    rng, floor, bets = random.Random(1), Floor(confidence, wanted=wanted), list[bool]()
    for place in range(20_000):
        doubt = rng.random()
        accepted = rng.random() < (1 - doubt) ** 4
        if floor.carries(draft(-doubt)) and place > 2000:
            bets.append(accepted)
        floor.observe(judged(-doubt, accepted=accepted))
    assert sum(bets) / len(bets) == pytest.approx(wanted, abs=0.03)
