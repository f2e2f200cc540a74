"""The answer of a text, and right answers without algebra."""

from __future__ import annotations

from fractions import Fraction

import pytest

from stepspec.evals.grading.algebra import equal, parse
from stepspec.evals.grading.answers import Metric, extract_answer, same_letter
from stepspec.evals.grading.compare import same
from stepspec.evals.grading.normal import normal, quantity


@pytest.mark.parametrize(
    ("text", "metric", "answer"),
    [
        (r"So \boxed{3}, no: \boxed{\frac{1}{2}}.", "math", r"\frac{1}{2}"),
        (r"It is \boxed{7} and \boxed{8", "number", "7"),
        ("We get 12 crates, 1,080 bottles.", "number", "1,080"),
        ("90 * 12 = <<90*12=1080>>1080\n#### 1,080", "number", "1,080"),
        ("It costs $-3.50 today", "number", "$-3.50"),
        ("The answer is (C).", "choice", "C"),
        ("The answer is A rise in B, so the correct choice: D", "choice", "D"),
        ("Both are wrong.\n\n**B**", "choice", "B"),
        ("A rise in temperature", "choice", ""),
        ("Thinking.\n\n5 apples \n", "exact", "5 apples"),
        ("x is $\\frac{3}{4}$", "math", r"\frac{3}{4}"),
        ("Her name is\nEvelyn", "math", "Evelyn"),
        ("", "math", ""),
        ("  \n", "exact", ""),
        ("no digits at all", "number", ""),
    ],
)
def test_the_last_thing_that_looks_like_an_answer_is_the_answer(
    text: str, metric: Metric, answer: str
) -> None:
    assert extract_answer(text, metric) in (answer, answer.replace("$-", "-"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        (r"\$1,234.50", Fraction("1234.5")),
        ("50\\%", 50),
        (r"18\text{ eggs}", 18),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{6}{4}", Fraction(-3, 2)),
        ("3/4", Fraction(3, 4)),
        ("033", 33),
        ("90^\\circ", 90),
        (".5", Fraction(1, 2)),
        ("11,\\!111,\\!111", 11111111),
        ("27.0", 27),
        ("9" * 300, 10**300 - 1),
        ("1e5", 100000),
        ("1.5e-3", Fraction(3, 2000)),
        ("2 1/2", Fraction(5, 2)),
        (r"2\frac12", Fraction(5, 2)),
        ("3 million", 3000000),
    ],
)
def test_numbers_are_read_in_any_notation(text: str, value: Fraction | int) -> None:
    assert equal(parse(quantity(normal(text)).expression), parse(str(value)))
    assert same(text, str(value))


@pytest.mark.parametrize(
    "text",
    [
        "1/0",
        "2,5",
        "x = 3",
        "3 and 4",
        "",
        "9" * 5000,
        f"1/{'3' * 5000}",
        f".{'1' * 5000}",
    ],
)
def test_what_is_no_number_or_a_too_long_one_equals_no_other_number(text: str) -> None:
    assert not same(text, "7")


@pytest.mark.parametrize(
    ("answer", "is_same"),
    [
        ("(C) 42 metres", True),
        (r"\text{(C)}", True),
        ("CD", False),
        ("B", False),
        ("C or D", False),
    ],
)
def test_a_choice_is_one_letter(answer: str, is_same: bool) -> None:
    assert same_letter(answer, "C") is is_same
