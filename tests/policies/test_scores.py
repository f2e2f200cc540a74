"""Arithmetic on probabilities, by hand."""

from collections.abc import Sequence
from math import log

import pytest

from stepspec.orchestrator import Token
from stepspec.policies.scores import DIGITS, entropy, expected, likeliest, surest


@pytest.mark.parametrize(
    ("grades", "likely", "mean"),
    [
        ({"7": 1.0}, 7, 7),
        ({"0": 1.0}, 0, 0),
        ({"3": 0.25, "7": 0.75}, 7, 6),
        ({"0": 0.5, "9": 0.25, "8": 0.25}, 0, 4.25),
        ({"3": 0.125, "7": 0.375}, 7, 6),  # half of the probability went to other words
        (dict.fromkeys(DIGITS, 0.1), 0, 4.5),  # of equals, the lowest
    ],
)
def test_the_likeliest_and_the_mean_grade(grades: dict[str, float], likely: float, mean: float) -> None:
    assert likeliest(grades) == likely
    assert expected(grades) == pytest.approx(mean)


def rivals(*chances: float) -> tuple[Token, ...]:
    return tuple(Token("", log(chance) if chance else -9999.0) for chance in chances)


@pytest.mark.parametrize(
    ("chances", "nats"),
    [
        ((), 0),
        ((0.3,), 0),
        ((0.5, 0.5), log(2)),
        ((0.1, 0.1, 0.1, 0.1), log(4)),  # Of the rest of the probability nothing is known.
        ((0.25, 0.75), 0.562335),
        ((0.5, 0.5, 0.0), log(2)),
        ((0.0,), 0),
    ],
)
def test_entropy_is_that_of_the_known_rivals_in_nats(chances: Sequence[float], nats: float) -> None:
    assert entropy(rivals(*chances)) == pytest.approx(nats)


def test_the_surest_of_a_place_may_be_another_token_than_the_written_one() -> None:
    assert surest(Token("a", log(0.25))) == pytest.approx(0.25)
    assert surest(Token("a", log(0.25), top=rivals(0.5, 0.25))) == pytest.approx(0.5)
    assert surest(Token("a", log(0.25), top=rivals(0.125))) == pytest.approx(0.25)
