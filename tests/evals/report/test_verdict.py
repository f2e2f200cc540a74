"""The verdicts: worked out on paper, and by simulation, that intervals cover the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepspec.evals import results
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.report.section import build_section
from stepspec.evals.report.verdict import points, verdict
from stepspec.evals.results import Interval, Result, difference
from stepspec.evals.sample import Arm, Sample

from ..scripted import compared
from .made import large, make_section, mixed

METHOD = Arm.of("method", "specreason")
Measured = dict[tuple[int, str], Sample]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESAMPLES", 200)


def measured(arm: Arm, seconds: Sequence[float], correct: Sequence[bool]) -> Measured:
    pairs = enumerate(zip(seconds, correct, strict=True))
    if arm is LARGE:
        return {(n, arm.name): large(time, correct=right) for n, (time, right) in pairs}
    return {(n, arm.name): mixed(time, correct=right, arm=arm) for n, (time, right) in pairs}


def compare(done: Measured, repeats: int = 1) -> Result:
    """Compare the method with the large model."""
    return compared(done, (LARGE, METHOD), repeats)[1]


def judged(done: Measured, max_loss: float = 0.02) -> str:
    found = compare(done)
    return verdict(found, found.n, max_loss)


def against(n: int, gained: int, lost: int, seconds: float = 2.0) -> Measured:
    """
    *n* problems that take the large model 4 seconds, and the method others, give or take a tenth.
    """
    times = [seconds * (1.1 if place % 2 else 0.9) for place in range(n)]
    ours = [place < n - lost for place in range(n)]
    theirs = [place >= gained for place in range(n)]
    return {**measured(LARGE, [4.0] * n, theirs), **measured(METHOD, times, ours)}


@pytest.mark.parametrize(
    ("counts", "seconds", "time", "accuracy"),
    [
        (
            (400, 4, 3),
            2.0,
            "2.0x faster [2.0, 2.0]",
            "+0.2 points [-1.3, +1.9]: no loss above 1.3 points at 95%",
        ),
        (
            (12, 0, 0),
            2.0,
            "2.0x faster [1.9, 2.1]",
            "+0.0 points [-24.3, +24.3]: too few problems to exclude a loss above 2 points",
        ),
        (
            (5, 0, 0),
            2.0,
            "no difference in time shown (2.04x [1.82, 2.22])",
            "+0.0 points [-43.4, +43.4]: too few problems to exclude a loss above 2 points",
        ),
        (
            (200, 0, 40),
            2.0,
            "2.0x faster [2.0, 2.0]",
            "-20.0 points [-26.1, -15.0]: a loss of at least 15.0 points at 95%",
        ),
        (
            (200, 0, 6),
            2.0,
            "2.0x faster [2.0, 2.0]",
            "-3.0 points [-6.4, -1.1]: a loss, and too few problems to "
            "tell if it is above 2 points",
        ),
        (
            (200, 20, 1),
            2.0,
            "2.0x faster [2.0, 2.0]",
            "+9.5 points [+5.7, +14.5]: more accurate at 95%",
        ),
        (
            (1000, 0, 8),
            2.0,
            "2.0x faster [2.0, 2.0]",
            "-0.8 points [-1.6, -0.4]: a loss, but none above 1.6 points at 95%",
        ),
        (
            (400, 0, 0),
            6.0,
            "1.5x slower [1.5, 1.5]",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
        (
            (400, 0, 0),
            3.98,
            "no difference in time shown (1.01x [1.00, 1.02])",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
        (
            (400, 0, 0),
            3.9,
            "1.03x faster [1.02, 1.04]",
            "+0.0 points [-1.0, +1.0]: no loss above 1.0 points at 95%",
        ),
    ],
)
def test_a_verdict_says_what_is_shown(
    counts: tuple[int, int, int], seconds: float, time: str, accuracy: str
) -> None:
    done = against(*counts, seconds)
    assert judged(done) == f"{time}, accuracy {accuracy}"
    assert compare(done).difference == difference(*counts)


def test_another_loss_may_be_acceptable() -> None:
    done = against(12, gained=0, lost=0)
    assert judged(done, max_loss=0.25).endswith("no loss above 24.3 points at 95%")


def test_the_speedup_is_the_reciprocal_of_the_ratio_of_the_tables() -> None:
    done = {
        **measured(LARGE, [3.0, 4.0, 5.0, 9.0] * 2, [True] * 8),
        **measured(METHOD, [2.0, 2.0, 2.0, 5.0] * 2, [True] * 8),
    }
    ratio = compare(done).ratio
    assert ratio.value == pytest.approx(11 / 21)
    speedup = Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    assert judged(done).startswith(f"{speedup:.1f}".replace(" [", "x faster ["))


def test_several_samples_of_a_problem_are_no_further_problems() -> None:
    rng = random.Random(4)
    once = [rng.random() < 0.9 for _ in range(60)]
    four_times = [right for right in once for _ in range(4)]
    done = measured(LARGE, [4.0] * 240, [True] * 240) | measured(METHOD, [2.0] * 240, four_times)
    found = compare(done, repeats=4)
    single = compare(
        {**measured(LARGE, [4.0] * 60, [True] * 60), **measured(METHOD, [2.0] * 60, once)}
    )
    assert found.difference.value == single.difference.value
    assert found.difference.high - found.difference.low == pytest.approx(
        single.difference.high - single.difference.low, rel=0.3
    )


def test_points() -> None:
    assert [points(share) for share in (0.02, 0.01, 0.005)] == ["2 points", "1 point", "0.5 points"]


def test_a_section_has_the_verdicts_in_the_order_of_the_times(tmp_path: Path) -> None:
    section = make_section(tmp_path)
    assert list(section.verdicts) == [SHIPPED.name]
    assert section.max_loss == 0.02
    loose = build_section(section.run, 0.7)
    assert " no loss above " in loose.verdicts[SHIPPED.name]


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
    found = [compare(drawn(rng, 50, 0.06, 0.08)) for _ in range(RUNS)]
    for truth, interval in ((0.6, "ratio"), (-0.02, "difference")):
        intervals: list[Interval] = [getattr(result, interval) for result in found]
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
