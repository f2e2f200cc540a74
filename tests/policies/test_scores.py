"""Arithmetic on probabilities, by hand."""

import pytest

from stepspec.policies.scores import DIGITS, expected, likeliest


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
