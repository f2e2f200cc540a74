"""Seconds between tokens, from their arrivals."""

from __future__ import annotations

import pytest

from stepspec.evals.tune.paces import Arrival, paces_of, seconds_per_token


def stream(begin: float, between: float, count: int) -> list[Arrival]:
    """A request at *begin*, and *count* tokens, the first one after a second."""
    tokens = [Arrival(begin + 1 + place * between, place + 1) for place in range(count)]
    return [Arrival(begin, 0), *tokens]


def test_the_pace_of_a_stream_is_that_after_its_first_tokens() -> None:
    assert seconds_per_token([Arrival(5.0, 0)]) is None
    assert seconds_per_token(stream(5.0, 0.1, 1)) is None
    assert seconds_per_token(stream(5.0, 0.1, 11)) == pytest.approx(0.1)
    both = paces_of([stream(0, 0.1, 11), stream(3, 0.3, 5), [Arrival(0, 0)]])
    assert both == pytest.approx((0.1, 0.3))


def test_tokens_that_come_in_one_piece_count_together() -> None:
    pieces = [
        Arrival(begin + 1e-6 * place, 4 * number + place + 1)
        for number, begin in enumerate((0.0, 0.4, 0.8))
        for place in range(4)
    ]
    request = Arrival(-1.0, 0)
    assert seconds_per_token([request, *pieces]) == pytest.approx(0.1, rel=1e-4)
    assert seconds_per_token([request, *pieces[:4]]) is None
