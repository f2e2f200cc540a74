"""The decisions of an adaptation, computed by hand: the limit is a half, for which four steps are enough."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Adapted
from stepspec.orchestrator.feedback.adaptation import Adaptation, Choice, Costs
from stepspec.orchestrator.feedback.run_stats import RunStats, ShadowCheck
from stepspec.orchestrator.stats import wilson

THRESHOLDS = (9.0, 7.0, 5.0)


def adapting(threshold: float | None = 7.0, ahead: int = 1, most: int = 2) -> Adaptation:
    thresholds = THRESHOLDS if threshold is not None else ()
    return Adaptation(0.5, most, Choice(threshold, ahead), thresholds, top=10.0)


def graded(*grades: float, drafts: int = 0, verdicts: int = 0, repair: float = 4.0) -> RunStats:
    """Steps with such *grades*; a draft took a second, a verdict two."""
    accepted = tuple(grade >= 7 for grade in grades)
    return RunStats((1.0,) * drafts, (2.0,) * verdicts, (repair,), grades, accepted)


def test_too_few_steps_give_no_statement() -> None:
    made = adapting()
    assert made.standing("threshold") == Adapted("threshold", 7.0, 1, 0)
    made.add(graded(9.0, 9.0, 9.0))
    assert made.standing() == Adapted("", 7.0, 1, 1)
    made.add(graded(8.0))
    assert made.standing() == Adapted("", 7.0, 1, 2, bad=made.evidence.bad(7.0, 0.5).most)
    assert made.standing().bad == pytest.approx(wilson(0.5, 4)[1])


def test_without_accepted_steps_the_bad_share_is_unknown() -> None:
    made = adapting(9.0)
    made.add(graded(8.0, 8.0, 8.0, 8.0))
    assert made.standing().bad is None


def test_the_seconds_of_a_step_are_those_of_the_given_setting() -> None:
    made = adapting(most=1)
    made.add(graded(9.0, 6.0, drafts=5, verdicts=20))
    assert made.choice == Choice(7.0, 1)
    assert made.standing().seconds == Costs(1.0, 2.0, 4.0).step(0.5, 1)
    timed = adapting()
    timed.add(graded(drafts=5, verdicts=20))
    assert timed.standing().seconds is None


def test_without_a_threshold_only_the_time_is_estimated() -> None:
    made = adapting(None, 1, most=1)
    made.add(graded(9.0, 9.0, 9.0, 6.0, drafts=5, verdicts=20))
    assert made.standing() == Adapted("", None, 1, 1, seconds=Costs(1.0, 2.0, 4.0).step(0.75, 1))
    assert not made.hopeless


@pytest.mark.parametrize(
    ("grades", "hopeless"),
    [
        ((5.0, 5.0, 5.0, 5.0), False),  # half of them bad, which is the limit
        ((4.9, 4.9, 4.9, 5.0), False),  # but at least the one that is accepted
        ((4.9, 4.9, 4.9, 4.9), True),
        ((4.9, 4.9, 4.9), False),  # too few to say so
    ],
)
def test_it_is_hopeless_where_nothing_that_is_accepted_keeps_the_limit(
    grades: tuple[float, ...], hopeless: bool
) -> None:
    made = adapting(9.0)
    made.add(graded(*grades))
    assert made.hopeless is hopeless


def test_a_threshold_above_the_limit_gets_stricter_at_any_cost_of_time() -> None:
    made = adapting(5.0)
    checks = tuple(ShadowCheck(9.0, False) for _ in range(40))  # enough to exclude that a share of 0.5 is kept
    made.add(RunStats(grades=(9.0,) * 40, accepted=(True,) * 40, checks=checks))
    assert made.choice == Choice(7.0, 1)
    made.add(RunStats())
    made.add(RunStats())
    assert made.choice == Choice(9.0, 1)


@pytest.mark.parametrize(("threshold", "ahead", "chosen"), [(9.0, 0, (7.0, 1)), (7.0, 1, (5.0, 2)), (5.0, 2, (5.0, 2))])
def test_it_moves_one_place_at_a_time_to_the_fastest_setting(
    threshold: float, ahead: int, chosen: tuple[float, int]
) -> None:
    """All drafts have a 6: the loosest threshold accepts them, and two bets hide the judge."""
    made = adapting(threshold, ahead)
    made.add(graded(*[6.0] * 100, drafts=5, verdicts=20))
    assert made.choice == Choice(*chosen)


def test_it_gets_shallower_where_nothing_is_accepted_for_every_bet_is_lost() -> None:
    """7.2 seconds with two bets, 7.0 without."""
    made = adapting(None, 2)
    made.add(graded(*[6.0] * 4, drafts=5, verdicts=20))
    assert made.choice == Choice(None, 1)
    made.add(graded(6.0))
    assert made.choice == Choice(None, 1)  # a tenth of a second is not worth a change


def test_a_depth_of_none_may_be_the_most_and_equal_thresholds_may_not() -> None:
    assert Adaptation(0.5, 0, Choice(None, 0)).choice == Choice(None, 0)
    with pytest.raises(ConfigurationError, match="strictest to the loosest"):
        Adaptation(0.5, 0, Choice(9.0, 0), (9.0, 9.0))
