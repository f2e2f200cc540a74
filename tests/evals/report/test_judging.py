"""The separation of right and wrong steps by scores: known areas, and special scores."""

from __future__ import annotations

import math
import random

import pytest

from stepspec.evals.report.figures import ScoredVerdict, area_under, assess_judge, scored_verdicts, separate
from stepspec.evals.results import wilson
from stepspec.evals.sample import StepRecord

from .made import KEPT, REJECTED, REPAIR, mixed

RIGHT = (9.0, 8.0, 8.0, 6.0)
WRONG = (8.0, 5.0, 2.0)


def make_verdicts(
    right: tuple[float, ...] = RIGHT, wrong: tuple[float, ...] = WRONG, threshold: float = 7.0
) -> list[ScoredVerdict]:
    pairs = [(score, True) for score in right] + [(score, False) for score in wrong]
    return [ScoredVerdict(score, score >= threshold, kind, at) for at, (score, kind) in enumerate(pairs)]


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    found = separate(make_verdicts(), doubt=False)
    assert found is not None
    pairs = [1.0 if r > w else 0.5 if r == w else 0.0 for r in RIGHT for w in WRONG]
    assert found.area.value == pytest.approx(sum(pairs) / len(pairs))
    assert found.area.low <= found.area.value <= found.area.high
    assert found.area.low < found.area.high
    assert (found.right, found.wrong) == (4, 3)
    assert found.curve[0] == (0.0, 0.0)
    assert found.curve[-1] == (1.0, 1.0)
    assert area_under(found.curve) == found.area.value


def test_a_doubt_is_the_better_the_lower_it_is() -> None:
    plain, doubt = (separate(make_verdicts(), doubt=kind) for kind in (False, True))
    assert plain is not None
    assert doubt is not None
    assert plain.area.value + doubt.area.value == pytest.approx(1.0)


def test_scores_that_never_err_are_no_proof() -> None:
    found = separate(make_verdicts((9.0,) * 30, (1.0,) * 4), doubt=False)
    assert found is not None
    assert (found.area.value, found.area.high) == (1.0, 1.0)
    assert found.area.low == wilson(4, 4).low


def test_the_interval_is_as_wide_as_theory_has_it() -> None:
    rng = random.Random(1)
    right, wrong = (tuple(rng.gauss(mean, 1) for _ in range(80)) for mean in (1, 0))
    found = separate(make_verdicts(right, wrong), doubt=False)
    assert found is not None
    a = found.area.value
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)  # Hanley and McNeil 1982
    error = math.sqrt((a * (1 - a) + 79 * (q1 - a * a) + 79 * (q2 - a * a)) / 6400)
    assert found.area.high - found.area.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_too_few_verdicts_of_either_kind_give_no_curve() -> None:
    assert separate(make_verdicts(wrong=(1.0, 2.0)), doubt=False) is None
    assert separate(make_verdicts(right=()), doubt=False) is None


def test_verdicts_without_a_score_count_for_the_accept_rate_and_not_for_the_curve() -> None:
    elsewhere = [ScoredVerdict(9.0, False, False, 20 + at, decided=False) for at in range(3)]
    found, without = (separate([*make_verdicts(), *more], doubt=False) for more in (elsewhere, []))
    assert found is not None
    assert without is not None
    assert found.curve == without.curve
    assert (found.wrong, found.right) == (6, 4)


def test_the_kept_part_of_a_rejected_draft_is_no_verdict() -> None:
    part = StepRecord("small", "kept", 2.0, "", 0.6)
    sample = mixed(1.0)
    steps = (KEPT, REJECTED, part, REPAIR, StepRecord("small", "kept", 2.0, "", 1.2))
    found = scored_verdicts(type(sample)(sample.arm, True, 1.0, sample.ledger, {}, steps=steps), 7)
    assert [(one.score, one.accepted) for one in found] == [(8.0, True), (2.0, False), (2.0, True)]
    assert {one.problem for one in found} == {7}


def test_the_lowest_accepted_score_represents_the_answer() -> None:
    grades = {0: 9.0, 1: 8.5, 2: 8.2, 3: 7.5, 4: 7.2, 5: 7.1}
    samples = {n: mixed(1.0, correct=n < 3, grade=grade) for n, grade in grades.items()}
    found = assess_judge("SpecReason", "specreason", samples, 1)
    assert found is not None
    assert found.separation is not None
    assert found.separation.area.value == 1.0  # 8, 8, 8 against 7.5, 7.2, 7.1
    assert len(found.verdicts) == 6 * 4


def test_the_worst_doubt_is_the_highest() -> None:
    grades = {0: 8.3, 1: 8.2, 2: 8.1, 3: 8.03, 4: 8.02, 5: 8.01}
    found = assess_judge("bild", "bild", {n: mixed(1.0, correct=n < 3, grade=each) for n, each in grades.items()}, 1)
    assert found is not None
    assert found.doubt
    assert found.separation is not None
    assert found.separation.area.value == 0.0  # the lowest are 8 everywhere


def test_an_arm_without_scores_has_no_judge() -> None:
    sample = mixed(1.0)
    plain = type(sample)(sample.arm, True, 1.0, sample.ledger, {}, steps=(REPAIR,))
    assert assess_judge("relay", "relay", {0: plain}, 1) is None
