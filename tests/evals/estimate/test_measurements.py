"""What is made of measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.estimate.measurements import fit_line
from stepspec.evals.estimate.measuring import pace, with_load

from .made import LARGE_SERVER


def test_a_line_goes_through_the_times_and_never_falls() -> None:
    assert fit_line({1: 0.03}) == pytest.approx((0.03, 0.0))
    assert fit_line({1: 0.031, 4: 0.034, 16: 0.046}) == pytest.approx((0.03, 0.001))
    assert fit_line({1: 0.03, 16: 0.02}) == pytest.approx((0.0231, 0.0), abs=1e-4)
    assert fit_line({1: 0.01, 16: 0.32}) == pytest.approx((0.0, 0.012))


def test_tokens_take_longer_under_load_and_wait_for_a_full_server() -> None:
    assert LARGE_SERVER.slower(16) == 1.0  # only one stream was measured
    loaded = with_load(replace(LARGE_SERVER, between={1: (0.031,)}), 16, (0.046, 16))
    assert loaded.slower(0.2) == 1.0
    assert loaded.slower(16) == pytest.approx(46 / 31)
    full = with_load(replace(LARGE_SERVER, between={1: (0.031,)}), 16, (0.034, 4))
    assert (full.sequences, set(full.between)) == (4, {1, 4})
    assert full.slower(8) == pytest.approx(34 / 31 * 2)
    assert with_load(full, 8, None) is full


def test_the_time_between_tokens_is_that_of_all_streams_together() -> None:
    def stream(begin: float, between: float, count: int) -> list[tuple[float, int]]:
        return [(begin + place * between, place + 1) for place in range(count)]

    assert pace([]) is None
    assert pace([stream(0.0, 0.1, 11)]) == pytest.approx((0.1, 1))
    # While the second one reads its prompt, the first one is faster: that time does not count.
    first = [(0.0, 1), (0.05, 2), (0.1, 3), *((0.2 + 0.2 * place, 4 + place) for place in range(8))]
    assert pace([first, stream(0.2, 0.2, 8)]) == pytest.approx((0.2, 2))


def test_tokens_that_come_in_one_piece_count_together() -> None:
    pieces = [
        (at + 1e-6 * place, 4 * number + place + 1) for number, at in enumerate((0.0, 0.4, 0.8)) for place in range(4)
    ]
    assert pace([pieces]) == pytest.approx((0.1, 1), rel=1e-4)
    assert pace([pieces[:4]]) == pytest.approx((1e-6, 1))


def test_a_server_that_is_full_serves_the_others_afterwards() -> None:
    streams = [[(begin, 1), (begin + 1.0, 11)] for begin in (0.0, 0.0, 1.5, 1.5)]
    assert pace(streams) == pytest.approx((0.1, 2))
