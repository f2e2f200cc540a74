"""The evidence, computed by hand: when it is enough, how long steps take, and how many are bad."""

from __future__ import annotations

from dataclasses import replace
from math import hypot

import pytest

from stepspec.orchestrator.feedback.adaptation import Costs, Evidence, Share, kept, needed
from stepspec.orchestrator.feedback.run_stats import RunStats, ShadowCheck
from stepspec.orchestrator.stats import wilson


def evidence(
    *grades: float | None,
    window: int = 200,
    agreed: tuple[bool, ...] = (),
    own: tuple[bool, ...] = (),
    **lesson: tuple[float, ...],
) -> Evidence:
    """The *grades* of drafts, and the results of shadows on steps with the grade 8, out of 10."""
    found = Evidence(10.0, window)
    accepted = tuple(grade is not None and grade >= 7 for grade in grades)
    checks = tuple(ShadowCheck(8.0, *each) for each in zip(agreed, own or (True,) * len(agreed), strict=True))
    found.add(RunStats(grades=grades, accepted=accepted, checks=checks, **lesson))
    return found


@pytest.mark.parametrize(
    ("drafts", "verdicts", "known"), [(5, 20, True), (4, 20, False), (5, 19, False), (9, 99, True)]
)
def test_five_drafts_and_twenty_verdicts_have_to_be_timed(drafts: int, verdicts: int, known: bool) -> None:
    timed = evidence(drafts=(1.0,) * drafts, judged=(2.0,) * verdicts, repairs=(3.0, 9.0))
    assert timed.costs == (Costs(1.0, 2.0, 3.0) if known else None)


def test_seconds_are_medians_and_a_repair_that_never_was_is_free() -> None:
    timed = evidence(drafts=(1.0, 1.0, 2.0, 9.0, 9.0), judged=(1.0,) * 9 + (3.0,) + (4.0,) * 10)
    assert timed.costs == Costs(2.0, 3.0, 0.0)


def test_only_the_last_ones_count() -> None:
    timed = evidence(1.0, 9.0, 9.0, window=2, agreed=(False, True, True))
    timed.add(RunStats(grades=(None,), accepted=(False,)))
    assert list(timed.grades) == [9.0, None]
    assert list(timed.accepted) == [True, False]
    assert [check.agreed for check in timed.checks] == [True, True]
    assert [timed.rate(threshold) for threshold in (8.0, 9.0, 9.1, None)] == [0.5, 0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    ("costs", "ahead", "pace", "rejected"),
    [
        (Costs(1.0, 2.0, 5.0), 0, 3.0, 8.0),
        (Costs(1.0, 2.0, 5.0), 1, 1.5, 8.1),
        (Costs(1.0, 2.0, 5.0), 9, 1.0, 8.2),  # no more than two bets are made until a verdict is known
        (Costs(4.0, 1.0, 5.0, toll=0.5), 1, 4.0, 10.5),  # a quarter of a bet, half of its four seconds
        (Costs(0.0, 2.0, 5.0), 1, 1.0, 7.0),
    ],
)
def test_a_step_takes_the_time_of_its_draft_or_of_a_rejected_one(
    costs: Costs, ahead: int, pace: float, rejected: float
) -> None:
    assert costs.step(1.0, ahead) == pytest.approx(pace)
    assert costs.step(0.0, ahead) == pytest.approx(rejected)
    assert costs.step(0.25, ahead) == pytest.approx(pace / 4 + rejected * 3 / 4)


@pytest.mark.parametrize(("limit", "least"), [(0.5, 4), (0.2, 16), (0.02, 189)])
def test_the_needed_number_of_steps_is_minimal(limit: float, least: int) -> None:
    assert needed(limit) == least
    assert evidence(*[9.0] * least).enough(limit)
    assert evidence(*[9.0] * (least + 9)).enough(limit)
    assert not evidence(*[9.0] * (least - 1)).enough(limit)


def test_a_grade_beyond_the_scale_is_the_end_of_the_scale() -> None:
    assert evidence(12.0, 8.0).bad(7, 0.5).mean == pytest.approx(0.1)
    assert evidence(-3.0, 8.0).bad(-5, 0.5).mean == pytest.approx(0.6)
    assert evidence(6.0, 7.0, None).bad(7, 0.5).mean == pytest.approx(0.3)


def test_shadows_count_as_soon_as_there_are_enough_of_them() -> None:
    few, enough = evidence(9.0, agreed=(True, False, False)), evidence(9.0, agreed=(True, False, False, False))
    assert few.bad(7, 0.5) == evidence(9.0).bad(7, 0.5) == replace(Share.of([1 - 9.0 / 10]), least=1 - 9.0 / 10)
    assert enough.bad(7, 0.5).mean == pytest.approx(0.1 + 0.75 - 0.2)
    more = evidence(9.0, agreed=(True, False, False, False, True))
    assert more.bad(7, 0.5).mean == pytest.approx(0.1 + 0.6 - 0.2)
    parts = (Share.of([0.1]), Share.of([1, 1, 1, 0]), Share.of([0] * 4), Share.of([0.2] * 4))
    doubts, disputed, none, known = parts
    below = [doubts.mean - doubts.least, disputed.mean - disputed.least, none.most, known.most - known.mean]
    assert enough.bad(7, 0.5).least == max(0.0, 0.65 - hypot(*below))
    assert enough.bad(7, 0.5).most == 1
    held = evidence(*[10.0] * 99, agreed=(True,) * 99).bad(7, 0.5)
    assert held.most == pytest.approx(hypot(wilson(0, 99)[1], wilson(0, 99)[1], 0.2 - wilson(0.2 * 99, 99)[0]))
    assert (held.mean, held.least) == (0, 0)


def test_the_disputed_share_of_the_large_models_own_steps_is_subtracted() -> None:
    disputed = (False,) * 8 + (True,) * 92
    excused = evidence(*[10.0] * 100, agreed=disputed, own=disputed[::-1]).bad(7, 0.5)
    alone = evidence(*[10.0] * 100, agreed=disputed).bad(7, 0.5)
    assert (excused.mean, excused.least) == (0, 0)
    assert alone.mean == 0
    assert evidence(*[8.0] * 100, agreed=disputed).bad(7, 0.5).mean == pytest.approx(0.08)
    assert evidence(*[8.0] * 100, agreed=disputed, own=disputed).bad(7, 0.5).mean == 0


def test_of_nothing_nothing_is_bad_and_all_may_be() -> None:
    assert evidence().bad(7, 0.5) == Share.of(()) == Share(0.0, 0.0, 1.0)


def test_a_share_at_the_limit_keeps_it_and_stricter_thresholds_too() -> None:
    """A mean doubt of 0.5 at 5: a user's own threshold, or a stricter one, is trusted with it, a looser one is not."""
    found = evidence(*[5.0] * 8)
    assert kept(found, (9, 7, 5, 3), 5, 0.5) == [9, 7, 5]
    assert kept(found, (9, 7, 5, 3), 3, 0.5) == [9, 7, 5, 3]
    assert kept(found, (9, 7, 5, 3), 7, 0.5) == [9, 7]
    assert kept(found, (5, 3), 9, 0.5) == []
    sure = Share.of([0.0] * 8).most
    assert kept(evidence(*[10.0] * 8), (10, 5), 9, sure) == [10, 5]
    assert kept(evidence(*[10.0] * 8), (10, 5), 9, sure - 1e-9) == [10]
