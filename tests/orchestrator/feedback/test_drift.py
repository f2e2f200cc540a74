"""Grades that drift from the calibration are noticed; random variation is not."""

import random

import pytest

from stepspec.orchestrator import Accept, Rollback, Step
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Committed, Event, Judged
from stepspec.orchestrator.feedback.drift import LEAST, Drift, GradeWatch, Histogram, grades, surprise

STEP = Step("So.\n\n", "small")


def drawn(seed: int, n: int, mean: float = 7.0) -> list[float]:
    rng = random.Random(seed)
    return [min(9.0, max(0.0, rng.gauss(mean, 1.5))) for _ in range(n)]


def test_bins_hold_about_as_many_each() -> None:
    histogram = Histogram.of(drawn(0, 1000, mean=4.0))
    assert histogram.n == 1000
    assert max(histogram.counts) - min(histogram.counts) <= 3
    assert len(histogram.counts) == 10


def test_grades_that_are_all_the_same_have_one_bin_below_and_one_above() -> None:
    histogram = Histogram.of([9.0] * 50)
    assert (histogram.edges, histogram.counts) == ((9.0,), (50, 0))
    assert Histogram.of([]) == Histogram((), (0,))


def test_a_grade_at_an_edge_is_below_it() -> None:
    assert Histogram.of([1, 2, 2, 3, 4], (2.0, 3.0)).counts == (3, 1, 1)


@pytest.mark.parametrize(
    ("edges", "counts"), [((1.0, 1.0), (0, 0, 0)), ((2.0, 1.0), (0, 0, 0)), ((1.0,), (1,)), ((1.0,), (1, -1))]
)
def test_an_invalid_histogram_is_refused(edges: tuple[float, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="histogram"):
        Histogram(edges, counts)


def test_chance_alone_is_no_surprise_more_often_than_it_should_be() -> None:
    calibrated = Histogram.of(drawn(0, 2000))
    alarms = sum(Drift(calibrated, Histogram.of(drawn(seed, 500), calibrated.edges)).drifted for seed in range(1, 401))
    assert alarms <= 3
    surprised = sum(surprise(calibrated, Histogram.of(drawn(s, 500), calibrated.edges)) > 1.645 for s in range(1, 401))
    assert 5 <= surprised <= 40  # five in a hundred, and it is not that nothing ever surprises


@pytest.mark.parametrize("seed", range(1, 21))
def test_grades_that_wandered_away_are_noticed(seed: int) -> None:
    calibrated = Histogram.of(drawn(0, 2000))
    assert Drift(calibrated, Histogram.of(drawn(seed, 500, mean=6.0), calibrated.edges)).drifted


def test_a_surprise_that_is_too_small_to_matter_is_none() -> None:
    calibrated, live = Histogram((5.0,), (50_000, 50_000)), Histogram((5.0,), (52_000, 48_000))
    assert surprise(calibrated, live) > 3.09
    assert not Drift(calibrated, live).drifted


def test_few_grades_cause_no_warning() -> None:
    calibrated = Histogram((5.0,), (10, 990))
    assert not Drift(calibrated, Histogram((5.0,), (LEAST - 1, 0))).drifted
    assert Drift(calibrated, Histogram((5.0,), (LEAST, 0))).drifted
    assert not Drift(calibrated, Histogram((5.0,), (0, 0))).drifted


def test_without_calibrated_grades_nothing_drifts() -> None:
    drift = Drift(Histogram((), (0,)), Histogram((), (LEAST,)))
    assert (drift.moved, drift.drifted) == (0.0, False)


def test_other_bins_cannot_be_compared() -> None:
    with pytest.raises(ConfigurationError, match="different bins"):
        surprise(Histogram((1.0,), (1, 1)), Histogram((2.0,), (1, 1)))


def test_a_watch_counts_the_scores_of_all_verdicts() -> None:
    watch = GradeWatch(Histogram((5.0,), (100, 900)))
    events: list[Event] = [
        Judged(0, STEP, Accept(9.0)),
        Judged(1, STEP, Rollback(reason="grade", score=2.0)),
        Judged(1, STEP, Rollback(reason="no grade")),
        Judged(2, STEP, Accept()),
        Committed(0, STEP, 9.0),
    ]
    for event in events:
        watch(event)
    assert watch.drift.live.counts == (1, 1)
    assert grades(events) == [9.0, 2.0]
    assert watch.drift.moved == pytest.approx(0.4)
