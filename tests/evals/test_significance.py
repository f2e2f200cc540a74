"""Intervals and tests of two arms on the same problems."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.evals.results import Z, _statistic, difference, mcnemar  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (0, 6, 2 / 64), (5, 5, 1.0), (1, 9, 2 * 11 / 1024), (9, 1, 2 * 11 / 1024)],
)
def test_mcnemar_counts_how_uneven_the_split_is(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p)


def test_many_problems_are_no_trouble() -> None:
    assert mcnemar(2000, 1900) == pytest.approx(0.1129, abs=5e-4)


def test_agreement_on_every_problem_is_no_proof_that_there_is_no_difference() -> None:
    found = difference(100, 0, 0)
    assert found.value == 0
    assert found.high == -found.low == pytest.approx(Z * Z / (100 + Z * Z))


@given(st.integers(1, 400), st.data())
def test_the_interval_ends_where_the_statistic_is_that_of_95_per_cent(n: int, data: st.DataObject) -> None:
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    found = difference(n, gained, lost)
    mirrored = difference(n, lost, gained)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert [mirrored.low, mirrored.high] == pytest.approx([-found.high, -found.low], abs=1e-9)
    for edge, sign in ((found.low, 1), (found.high, -1)):
        if abs(edge) < 1 - 1e-6:
            assert sign * _statistic(n, gained, lost, edge) == pytest.approx(Z, abs=1e-3)
    assert not math.isnan(found.low + found.high)
