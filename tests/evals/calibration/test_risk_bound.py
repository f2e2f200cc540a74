"""The guarantee of a calibration: exact where it can be checked, and its limits."""

from itertools import product
from math import ceil, comb, log

import numpy as np
import pytest

from lab.calibration_simulation import KINDS, Population, Row, main, missed, simulate
from stepspec.evals.calibration.risk_bound import LossTest, Paired, p_value
from stepspec.evals.results import Interval
from stepspec.orchestrator.errors import ConfigurationError


def chance(n: int, lost: int, gained: int, p_lost: float, p_gained: float) -> float:
    rest = n - lost - gained
    ways = comb(n, lost) * comb(n - lost, gained)
    return ways * p_lost**lost * p_gained**gained * (1 - p_lost - p_gained) ** rest


@pytest.mark.parametrize(
    ("n", "limit", "level"), [(1, 0.3, 0.2), (7, 0.3, 0.05), (24, 0.02, 0.2), (24, 0.1, 0.05)]
)
def test_a_loss_at_the_limit_or_above_passes_no_more_often_than_the_level(
    n: int, limit: float, level: float
) -> None:
    passing = [
        (lost, gained)
        for lost, gained in product(range(n + 1), repeat=2)
        if lost + gained <= n and p_value(Paired(n, lost, gained), limit, level) <= level
    ]
    for gained, more in product((0.0, 0.05, 0.2, 0.34), (0.0, 0.01, 0.2)):
        lost = limit + gained + more
        if lost + gained <= 1:
            assert sum(chance(n, *counts, lost, gained) for counts in passing) <= level + 1e-12


def test_the_test_can_pass_at_all() -> None:
    """Else the one above would prove nothing."""
    assert p_value(Paired(100, 0, 0), 0.1) < 0.001
    assert p_value(Paired(2000, 100, 100), 0.05) < 0.01
    assert p_value(Paired(100, 12, 0), 0.1) > 0.5
    assert p_value(Paired(0, 0, 0), 0.5) == 1
    # what the interval of the gains may miss
    assert p_value(Paired(2000, 100, 1000), 0.02, 0.05) >= 0.005


def test_more_losses_are_worse_and_more_gains_are_no_worse() -> None:
    values = [p_value(Paired(500, lost, 20), 0.05) for lost in range(0, 60, 5)]
    assert values == sorted(values)
    gains = [p_value(Paired(2000, 120, gained), 0.05) for gained in (0, 60, 120, 240)]
    assert gains == sorted(gains, reverse=True)


def test_outcomes_are_counted_problem_by_problem() -> None:
    paired = Paired.of([True, True, False, False], [True, False, True, False])
    assert (paired, paired.loss) == (Paired(4, 1, 1), 0)
    with pytest.raises(ValueError, match="argument 2"):
        Paired.of([True], [])


@pytest.mark.parametrize("limit", [0.01, 0.05])
def test_how_many_problems_a_promise_takes_at_least(limit: float) -> None:
    test = LossTest(limit, 0.05)
    least = ceil(log(0.025) / log(1 - limit))  # half of the level, for the price of two tests
    assert test.needed() == least
    assert test.p(Paired(least, 0, 0)) <= 0.05 < test.p(Paired(least - 1, 0, 0))


def test_how_many_problems_it_takes_with_losses_and_when_none_would_do() -> None:
    test = LossTest(0.03, 0.05)
    number = test.needed(Paired(100, 1, 0))
    assert number is not None
    assert test.p(Paired(number, ceil(number / 100), 0)) <= 0.05
    assert number > (test.needed() or 0)
    assert test.needed(Paired(100, 3, 0)) is None
    assert test.needed(Paired(100, 3, 3)) is not None


def test_no_problem_promises_nothing_and_a_limit_of_all_problems_is_always_kept() -> None:
    assert LossTest(0.02, 0.05).p(Paired(0, 0, 0)) == 1
    assert LossTest(1.0, 0.05).p(Paired(1, 1, 0)) == 0


def test_too_few_problems_give_no_guarantee_even_with_gains() -> None:
    test = LossTest(0.02, 0.05)
    least = test.needed() or 0
    assert (test.p(Paired(least - 1, 0, 100)), test.p(Paired(least, 0, 100)) <= 0.05) == (1.0, True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_simulation_breaks_few_promises_and_would_notice_broken_ones(kind: str) -> None:
    row = simulate(kind, 400, 0.02, 60, seed=3)
    assert row.broken.low <= 0.05
    assert simulate(kind, 400, 0.02, 60, seed=3) == row


@pytest.mark.parametrize("limit", ["0", "0.3", "nan"])
def test_a_limit_that_there_are_no_populations_for_is_refused(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=r"up to 0\.2, above 0"):
        main(populations=1, limit=float(limit))


def test_broken_promises_miss_the_bar() -> None:
    def row(share: float) -> Row:
        return Row("at the edge", "4000 problems", 1, Interval(share, share, share), 0.0)

    assert missed([row(0.0)]) == []
    (complaint,) = missed([row(0.1)])
    assert "at the edge, 4000 problems: broken in 10.0%, which is more than 5%" in complaint


def test_trusting_the_observed_loss_breaks_half_of_the_guarantees_at_the_edge() -> None:
    assert simulate("at the edge", 400, 0.02, 200).naively > 0.3


def test_a_sample_is_paired_and_of_its_population() -> None:
    population = Population(np.array([0.1, 0.2]), np.array([0.05, 0.05]))
    strict, loose = population.sample(np.random.default_rng(0), 20_000)
    assert strict.lost <= loose.lost
    assert strict.loss == pytest.approx(0.05, abs=0.01)
    assert loose.loss == pytest.approx(0.15, abs=0.01)
