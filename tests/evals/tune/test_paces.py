"""Seconds between tokens, from their arrivals."""

from __future__ import annotations

import pytest

from stepspec.evals.tune.paces import Arrival, seconds_per_token


def stream(begin: float, between: float, count: int) -> list[Arrival]:
    return [Arrival(begin + place * between, place + 1) for place in range(count)]


def test_the_pace_is_the_mean_of_all_streams_after_their_first_tokens() -> None:
    assert seconds_per_token([]) is None
    assert seconds_per_token([stream(5.0, 0.1, 1)]) is None
    assert seconds_per_token([stream(5.0, 0.1, 11)]) == pytest.approx(0.1)
    assert seconds_per_token([stream(0, 0.1, 11), stream(3, 0.3, 5), []]) == pytest.approx(0.2)


def test_tokens_that_come_in_one_piece_count_together() -> None:
    pieces = [
        Arrival(begin + 1e-6 * place, 4 * number + place + 1)
        for number, begin in enumerate((0.0, 0.4, 0.8))
        for place in range(4)
    ]
    assert seconds_per_token([pieces]) == pytest.approx(0.1, rel=1e-4)
    assert seconds_per_token([pieces[:4]]) is None
