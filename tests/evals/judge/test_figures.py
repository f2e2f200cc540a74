"""Figures of readings, computed by hand, and which method they speak for."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest

from stepspec.evals.judge.command import conclusion
from stepspec.evals.judge.figures import JudgedStep, ReadingFigures, best, figures
from stepspec.evals.judge.readings import READINGS, Judges
from stepspec.evals.results import Interval, wilson
from stepspec.orchestrator import Step, Token
from stepspec.policies import make

from ...fakes import ScriptedModel, counting, run
from ...orchestrator.arms import PROBLEM

GAP = "largest gap, digits"
BY_NAME = {reading.name: reading for reading in READINGS}


def steps(right: Sequence[float], wrong: Sequence[float], name: str = GAP) -> list[JudgedStep]:
    made = [JudgedStep(at, True, {name: value}) for at, value in enumerate(right)]
    return made + [JudgedStep(at, False, {name: value}) for at, value in enumerate(wrong)]


def test_the_figures_of_a_reading() -> None:
    # Ten right steps; the threshold that accepts 9 of them is -4. Of four slips, -3 passes, by hand
    # 1 of 4.
    (row,) = figures(
        steps([-9, -4, -3.5, -2, -2, -1, -1, 0, 0, 0], [-3, -5, -8, -10]),
        {"score": [0.3, 0.1, 0.2]},
    )
    assert (row.reading.name, row.seconds, row.threshold, row.accepted) == (GAP, 0.2, -4, 0.9)
    assert row.passed.value == 0.25
    above = 7 + 9 + 9 + 10  # right steps that are better than each slip
    assert row.areas[0].value == row.area == pytest.approx(above / 40)
    assert row.options == {"threshold": 4, "tokens": "digits", "words": 4}


def test_the_area_counts_ties_half_and_its_interval_is_as_wide_as_theory_has_it() -> None:
    (row,) = figures(steps([9, 8, 8, 6], [8, 5, 2, 1]), {"score": [1]})
    assert row.area == pytest.approx((4 + 3.5 + 3.5 + 3) / 16)
    rng = random.Random(1)
    right, wrong = ([rng.gauss(mean, 1) for _ in range(80)] for mean in (1, 0))
    made = [replace(step, problem=at) for at, step in enumerate(steps(right, wrong))]
    (row,) = figures(made, {"score": [1]})
    a = row.area
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)  # Hanley and McNeil 1982
    error = math.sqrt((a * (1 - a) + 79 * (q1 - a * a) + 79 * (q2 - a * a)) / 6400)
    assert 1 <= (row.areas[0].high - row.areas[0].low) / (2 * 1.96 * error) <= 1.3


@pytest.mark.parametrize(("problems", "count", "apart"), [(2, 12, 1), (12, 60, 3)])
def test_few_problems_and_areas_close_to_1_make_no_judge_better_than_it_is(
    problems: int, count: int, apart: float
) -> None:
    rng, above = random.Random(2), 0
    for _ in range(60):
        right, wrong = ([rng.gauss(mean, 1) for _ in range(count)] for mean in (apart, 0))
        made = [replace(step, problem=at % problems) for at, step in enumerate(steps(right, wrong))]
        above += figures(made, {"score": [1]})[0].areas[0].low > NormalDist().cdf(
            apart / math.sqrt(2)
        )
    assert above <= 3


def test_few_steps_prove_nothing() -> None:
    (row,) = figures(steps([0] * 30, [-9] * 4), {"score": [1]})
    assert row.areas == (wilson(4, 4),)
    assert figures(steps([0] * 30, [-9] * 2), {"score": [1]}) == []


def test_own_steps_set_the_threshold_and_words_have_one_too() -> None:
    def both(gap: float, **more: Any) -> JudgedStep:
        return JudgedStep(values={GAP: -gap, "largest gap, all": -gap - 1}, **more)

    written = [
        both(gap, problem=at, right=gap < 9) for at, gap in enumerate((7, 7, 7, 7, 9, 9, 9, 9))
    ]
    own = [
        both(gap, problem=at, right=gap < 5, own=True)
        for at, gap in enumerate((0, 1, 1, 2, 3, 5, 6, 7, 1.5, 8))
    ]
    rows = {row.reading.name: row for row in figures([*written, *own], {"score": [1]})}
    row = rows[GAP]
    assert [area.value for area in row.areas] == [1.0, 1.0]
    # Six own steps are right; the largest gap of 90% and of 95% of them is 3, and 4 with the words.
    assert (row.threshold, row.accepted, row.passed.value, row.words) == (-3, 1.0, 0.0, 4)
    assert row.options == {"threshold": 3, "tokens": "digits", "words": 4}


def test_a_threshold_is_no_stricter_than_what_a_model_samples_itself() -> None:
    (row,) = figures(steps([0] * 10, [-1, -2, -3, -4]), {"score": [1]})
    assert row.options["threshold"] == 0.5
    (row,) = figures(
        steps([-at for at in range(20)], [-30] * 4, "largest gap, all"), {"score": [1]}
    )
    assert (row.threshold, row.words) == (-17, 18)  # 90% and 95% of the right steps


def test_readings_that_some_steps_lack_have_no_figures() -> None:
    assert figures([*steps([1, 1, 1], [0, 0, 0]), JudgedStep(9, True, {})], {"score": [1]}) == []


def row(
    name: str, area: float, passed: float, seconds: float = 1.0, low: float | None = None
) -> ReadingFigures:
    interval = Interval(area, area - 0.1 if low is None else low, 1.0)
    return ReadingFigures(
        BY_NAME[name], (interval,), seconds, 5.0, 0.9, Interval(passed - 0.2, 0, passed), 6.0
    )


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([row("grade, mean", 0.8, 0.3), row(GAP, 0.9, 0.2)], GAP),
        # as good, and cheaper
        ([row("grade, mean", 0.895, 0.3, seconds=0.5), row(GAP, 0.9, 0.2)], "grade, mean"),
        # of those that cost the same, the better
        ([row("largest gap, all", 0.89, 0.2), row(GAP, 0.9, 0.2)], GAP),
        ([row("grade, mean", 0.8, 0.51)], None),  # lets most slips through
        ([row("grade, mean", 0.8, 0.1, low=0.49)], None),  # may be chance
        # no option has this threshold
        ([row("reflective, match", 0.99, 0.0), row(GAP, 0.7, 0.4)], GAP),
    ],
)
def test_the_best_method_separates_well_and_is_cheap(
    rows: list[ReadingFigures], name: str | None
) -> None:
    chosen = best(rows)
    assert (chosen.reading.name if chosen else None) == name
    sentence = conclusion(rows, chosen, None)
    assert sentence.startswith(
        "No method fits this pair"
        if name is None
        else f"The method {chosen.reading.policy}"
        if chosen
        else ""
    )


class Judge(ScriptedModel):
    """Reads "12" with a gap of 3 nats, and everything else as its own choice."""

    async def score(self, chain: object, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        def token(piece: str, at: int) -> Token:
            behind = 3.0 if piece == " 12" else 0.0
            best = Token("other", -0.25, 1, 999) if behind else Token(piece, -0.25, 1, at)
            return Token(
                piece, -0.25 - behind, 2 if behind else 1, at, (best, Token("never", -9.0, 3, 1000))
            )

        return [
            tuple(token(t.text, at) for at, t in enumerate(self.read("", span))) for span in spans
        ]


def judged(**digits: float) -> Judge:
    return Judge("large", counting("large", 3), judge=lambda chain, question: digits)


def test_every_reading_of_a_step_by_hand() -> None:
    judge = judged(**{"2": 0.25, "8": 0.5, "Yes": 0.125})
    values, seconds = run(Judges(judge).read(PROBLEM, Step("It costs 12 euros.\n\n", "small")))[0]
    # Five tokens: It, costs, 12, euros and the end; 3 nats in all.
    assert values == {
        "grade, mean": pytest.approx((2 * 0.25 + 8 * 0.5) / 0.75),
        "grade, digit": 8.0,
        "yes or no": 0.125,
        "reflective, match": pytest.approx(-3.0),
        "reflective, typical": pytest.approx(values["reflective, typical"]),
        "mean log-probability, all": pytest.approx(-(5 * 0.25 + 3) / 5),
        "mean log-probability, digits": -3.25,
        "mean log-probability, formulas": pytest.approx(-(2 * 0.25 + 3) / 2),
        "least log-probability, all": -3.25,
        "least log-probability, digits": -3.25,
        "least log-probability, formulas": -3.25,
        "largest gap, all": -3.0,
        "largest gap, digits": -3.0,
        "largest gap, formulas": -3.0,
        "mean gap, all": pytest.approx(-0.6),
    }
    assert set(seconds) == {"score", "grade", "check", "reflect"}
    _, others = run(
        Judges(judge).read(PROBLEM, Step("It costs 12 euros.\n\n", "small"), ("grade", "reflect"))
    )[0]
    assert set(others) == {"score", "check"}


@pytest.mark.parametrize(
    "name",
    [reading.name for reading in READINGS if reading.options and reading.request != "reward"],
)
@pytest.mark.parametrize("margin", [-0.125, 0.125])
def test_the_options_of_a_reading_accept_what_reaches_its_threshold(
    name: str, margin: float
) -> None:
    judge = judged(**{"2": 0.25, "8": 0.5, "Yes": 0.25})
    step = Step("It costs 12 euros.\n\n", "small")
    value = run(Judges(judge).read(PROBLEM, step))[0][0][name]
    reading = BY_NAME[name]
    if reading.request == "grade":
        margin *= 8
    assert reading.options is not None
    policy = make(reading.policy, judge, judge, **reading.options(value + margin, 9.0))
    verdict = run(policy.verify(PROBLEM, step))[0]
    assert (type(verdict).__name__ == "Accept") == (margin < 0), (name, value, verdict)


def test_a_threshold_is_rounded_so_that_it_accepts_what_it_comes_from() -> None:
    options = {reading.name: reading.options for reading in READINGS if reading.options}
    found = options["largest gap, all"](-8.9987, 9.1234)
    assert min(found["threshold"], found["words"]) >= 8.9987
    for name, value, rounded in (("yes or no", 0.99987, 0.999), ("grade, mean", 8.9987, 8.99)):
        assert options[name](value, 0)["threshold"] == rounded
    assert options["yes or no"](0.5, 0)["sure"] == 1.0  # only the large model was asked


def test_a_step_without_digits_is_read_as_good() -> None:
    values, _ = run(Judges(judged(**{"9": 1.0})).read(PROBLEM, Step("So it is.\n\n", "small")))[0]
    assert (values[GAP], values["mean log-probability, digits"]) == (0.0, 0.0)
    assert math.isfinite(values["reflective, match"])
    values, _ = run(Judges(judged()).read(PROBLEM, Step("So it is.\n\n", "small")))[0]
    # a reply without any grade
    assert (values["grade, mean"], values["grade, digit"]) == (0.0, 0.0)
