"""
The verdicts: worked out on paper, and by simulation, that intervals cover the truth and predictions
come true.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepspec.evals import results
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.report.section import build_section
from stepspec.evals.report.verdict import Verdict, further_for_loss, judge_methods, points
from stepspec.evals.results import Interval, by_time, difference
from stepspec.evals.sample import Arm, Sample

from ..scripted import compared
from .made import large, make_section, mixed

METHOD = Arm.of("method", "specreason")
OTHER = Arm.of("other", "bild")
Measured = dict[tuple[int, str], Sample]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESAMPLES", 200)


def measured(arm: Arm, seconds: Sequence[float], correct: Sequence[bool]) -> Measured:
    pairs = enumerate(zip(seconds, correct, strict=True))
    if arm is LARGE:
        return {(n, arm.name): large(time, correct=right) for n, (time, right) in pairs}
    return {(n, arm.name): mixed(time, correct=right, arm=arm) for n, (time, right) in pairs}


def judged(done: Measured, *arms: Arm, repeats: int = 1, max_loss: float = 0.02) -> list[Verdict]:
    every = (LARGE, *arms)
    figures = by_time(compared(done, every, repeats))
    return judge_methods(figures, repeats, max_loss)


def against(n: int, gained: int, lost: int, seconds: float = 2.0, arm: Arm = METHOD) -> Measured:
    """*n* problems that take the large model 4 seconds, and *arm* others, give or take a tenth."""
    times = [seconds * (1.1 if place % 2 else 0.9) for place in range(n)]
    ours = [place < n - lost for place in range(n)]
    theirs = [place >= gained for place in range(n)]
    return {**measured(LARGE, [4.0] * n, theirs), **measured(arm, times, ours)}


@pytest.mark.parametrize(
    ("counts", "seconds", "further", "time", "accuracy"),
    [
        (
            (400, 4, 3),
            2.0,
            None,
            "2.0x faster [2.0, 2.0]",
            "+0.2 points [-1.3, +1.9]: no loss above 1.3 points at 95%",
        ),
        (
            (12, 0, 0),
            2.0,
            177,
            "2.0x faster [1.9, 2.1]",
            "+0.0 points [-24.3, +24.3]: too few problems to exclude a loss"
            " above 2 points; about 180 more would",
        ),
        (
            (5, 0, 0),
            2.0,
            184,
            "no difference in time shown (2.04x [1.82, 2.22])",
            "+0.0 points [-43.4, +43.4]: too few problems to exclude a loss"
            " above 2 points; about 180 more would",
        ),
        (
            (200, 0, 40),
            2.0,
            None,
            "2.0x faster [2.0, 2.0]",
            "-20.0 points [-26.1, -15.0]: a loss of at least 15.0 points at 95%",
        ),
        (
            (200, 0, 6),
            2.0,
            643,
            "2.0x faster [2.0, 2.0]",
            "-3.0 points [-6.4, -1.1]: a loss, and too few problems to "
            "tell if it is above 2 points; about 640 more would",
        ),
        (
            (200, 20, 1),
            2.0,
            None,
            "2.0x faster [2.0, 2.0]",
            "+9.5 points [+5.7, +14.5]: more accurate at 95%",
        ),
        (
            (1000, 0, 8),
            2.0,
            None,
            "2.0x faster [2.0, 2.0]",
            "-0.8 points [-1.6, -0.4]: a loss, but none above 1.6 points at 95%",
        ),
        (
            (400, 0, 0),
            6.0,
            None,
            "1.5x slower [1.5, 1.5]",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
        (
            (400, 0, 0),
            3.98,
            None,
            "no difference in time shown (1.01x [1.00, 1.02])",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
        (
            (400, 0, 0),
            3.9,
            None,
            "1.03x faster [1.02, 1.04]",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
    ],
)
def test_a_verdict_says_what_is_shown_and_how_many_problems_are_missing(
    counts: tuple[int, int, int], seconds: float, further: int | None, time: str, accuracy: str
) -> None:
    (found,) = judged(against(*counts, seconds), METHOD)
    assert found.sentence == f"{time}, accuracy {accuracy}"
    assert (found.difference, found.further_for_loss) == (difference(*counts), further)


def test_the_further_problems_are_just_enough() -> None:
    assert difference(12 + 177, 0, 0).low >= -0.02 > difference(12 + 176, 0, 0).low
    (looser,) = judged(against(12, gained=0, lost=0), METHOD, max_loss=0.25)
    assert looser.sentence.endswith("no loss above 24.3 points at 95%")


def test_the_speedup_is_the_reciprocal_of_the_ratio_of_the_tables() -> None:
    done = {
        **measured(LARGE, [3.0, 4.0, 5.0, 9.0], [True] * 4),
        **measured(METHOD, [2.0, 2.0, 2.0, 5.0], [True] * 4),
    }
    (found,) = judged(done, METHOD)
    tables = compared(done, (LARGE, METHOD))[-1].ratio
    assert found.speedup.value == pytest.approx(21 / 11)
    assert (1 / found.speedup.high, 1 / found.speedup.low) == pytest.approx(
        (tables.low, tables.high)
    )


def test_several_samples_of_a_problem_are_no_further_problems() -> None:
    rng = random.Random(4)
    once = [rng.random() < 0.9 for _ in range(60)]
    four_times = [right for right in once for _ in range(4)]
    done = measured(LARGE, [4.0] * 240, [True] * 240) | measured(METHOD, [2.0] * 240, four_times)
    (found,) = judged(done, METHOD, repeats=4)
    (single,) = judged(
        {**measured(LARGE, [4.0] * 60, [True] * 60), **measured(METHOD, [2.0] * 60, once)}, METHOD
    )
    assert found.difference.value == single.difference.value
    assert found.difference.high - found.difference.low == pytest.approx(
        single.difference.high - single.difference.low, rel=0.3
    )


def test_no_number_is_named_that_helps_nobody() -> None:
    assert further_for_loss(100, 3, 3, 1e-6) is None


def test_points() -> None:
    assert [points(share) for share in (0.02, 0.01, 0.005)] == ["2 points", "1 point", "0.5 points"]


def test_a_section_has_the_verdicts_in_the_order_of_the_times(tmp_path: Path) -> None:
    section = make_section(tmp_path)
    assert [verdict.arm for verdict in section.verdicts] == [SHIPPED.name]
    assert section.verdicts[0].max_loss == section.max_loss == 0.02
    assert build_section(section.run, 0.7).verdicts[0].loss == "excluded"


# Simulations: the truth is known, and many runs are drawn from it.

RUNS = 200


def drawn(
    rng: random.Random, n: int, gains: float, losses: float, ratio: float = 0.6, spread: float = 0.4
) -> Measured:
    """A run of *n* problems of unequal difficulty; *ratio* is that of the expected times."""
    difficulty = [rng.lognormvariate(0, 0.5) for _ in range(n)]
    kinds = rng.choices(
        ("gain", "loss", "right", "wrong"), (gains, losses, 0.8 - gains - losses, 0.2), k=n
    )
    theirs = [4.0 * each * rng.lognormvariate(0, spread) for each in difficulty]
    ours = [4.0 * ratio * each * rng.lognormvariate(0, spread) for each in difficulty]
    return {
        **measured(LARGE, theirs, [kind in ("loss", "right") for kind in kinds]),
        **measured(METHOD, ours, [kind in ("gain", "right") for kind in kinds]),
    }


def test_the_intervals_cover_the_truth_in_95_of_100_runs() -> None:
    rng = random.Random(11)
    found = [judged(drawn(rng, 50, 0.06, 0.08), METHOD)[0] for _ in range(RUNS)]
    for truth, interval in ((1 / 0.6, "speedup"), (-0.02, "difference")):
        intervals: list[Interval] = [getattr(verdict, interval) for verdict in found]
        covered = sum(each.low <= truth <= each.high for each in intervals) / RUNS
        assert 0.9 <= covered <= 0.99, interval  # three standard errors around 95%


def kinds_of_problems(rng: random.Random, n: int, gains: float, losses: float) -> tuple[int, int]:
    kinds = rng.choices((1, -1, 0), (gains, losses, 1 - gains - losses), k=n)
    return kinds.count(1), kinds.count(-1)


def test_a_loss_is_excluded_falsely_in_few_runs_only() -> None:
    rng = random.Random(12)  # the true loss is the limit
    outcomes = [kinds_of_problems(rng, 400, 0.03, 0.05) for _ in range(2000)]
    wrong = sum(difference(400, gained, lost).low >= -0.02 for gained, lost in outcomes) / 2000
    assert 0.015 <= wrong <= 0.04  # an end of a 95% interval


def test_with_the_predicted_number_of_problems_every_other_run_can_tell() -> None:
    """Where both arms are equally accurate, and disagree on two problems of a hundred."""
    rng = random.Random(13)
    told: list[bool] = []
    while len(told) < RUNS:
        gained, lost = kinds_of_problems(rng, 100, 0.01, 0.01)
        apart = difference(100, gained, lost)
        if apart.low >= -0.02 or apart.high < -0.02:
            continue  # these runs can tell already
        further = further_for_loss(100, gained, lost, 0.02)
        assert further is not None
        later = kinds_of_problems(rng, further, 0.01, 0.01)
        told.append(difference(100 + further, gained + later[0], lost + later[1]).low >= -0.02)
    assert 0.4 <= sum(told) / RUNS <= 0.75
