"""The threshold follows a target for the large model's share: on a curve that is known, within what is allowed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stepspec import policies
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.feedback.calibration_monitor import Calibration
from stepspec.orchestrator.feedback.spend_target import (
    PACE,
    TOGETHER,
    ShareControl,
    SpendTargets,
    Tokens,
    follow,
)
from stepspec.orchestrator.run_options import RunOptions

VALUES = (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0)


def curve(value: float) -> float:
    """The share of the tokens that the large model writes with a threshold: from 0.95 down to 0.05."""
    return 0.05 + 0.1 * value


def simulate(control: ShareControl, runs: int, share: Callable[[float], float] = curve, seed: int = 1) -> list[Tokens]:
    """Make *runs* whose tokens scatter around the share of their threshold."""
    chance, made = random.Random(seed), list[Tokens]()
    for _ in range(runs):
        targeted = control.begin()
        total = chance.randint(50, 400)
        large = sum(chance.random() < share(targeted.value) for _ in range(total))
        made.append(Tokens(large, total))
        control.learn(targeted.value, made[-1])
    return made


def reached(runs: list[Tokens]) -> float:
    return sum(run.large for run in runs) / sum(run.total for run in runs)


@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.68])
@pytest.mark.parametrize("start", [0.0, 4.0, 9.0])
def test_the_share_reaches_the_target_from_every_start(target: float, start: float) -> None:
    control = ShareControl("threshold", target, VALUES, float(VALUES.index(start)))
    runs = simulate(control, 400)
    assert reached(runs[50:]) == pytest.approx(target, abs=0.015)
    assert not control.out_of_reach


def test_the_share_is_within_the_stated_bound() -> None:
    """The sum of the errors moves the place, which cannot leave the way between the ends."""
    control = ShareControl("threshold", 0.4, VALUES, 5.0)
    for count in (20, 80, 200):
        control.place, control.runs = 5.0, 0
        control._tokens = 0  # pyright: ignore[reportPrivateUsage]
        runs = list[Tokens]()
        for _ in range(count):
            targeted = control.begin()
            runs.append(Tokens(round(100 * curve(targeted.value)), 100))  # equal runs, without chance
            control.learn(targeted.value, runs[-1])
        assert abs(reached(runs) - 0.4) <= (len(VALUES) - 1) / (PACE * len(VALUES) * count)


def test_it_follows_problems_that_get_harder() -> None:
    control = ShareControl("threshold", 0.3, VALUES, 4.0)
    simulate(control, 100)
    easy = control.value
    later = simulate(control, 200, lambda value: min(1.0, curve(value) + 0.2), seed=2)
    assert control.value < easy
    assert reached(later[50:]) == pytest.approx(0.3, abs=0.02)


def test_a_target_below_what_is_allowed_is_out_of_reach() -> None:
    control = ShareControl("threshold", 0.3, VALUES[:4], 3.0)  # 9 to 6: at least 0.65
    simulate(control, 4)
    assert not control.out_of_reach  # too few runs
    simulate(control, 20)
    assert control.value == 6.0
    assert control.begin().out_of_reach
    assert control.share == pytest.approx(0.65, abs=0.05)


@pytest.mark.parametrize("crowd", [1, 4, 8, 40])
def test_many_runs_under_way_together_make_smaller_steps(crowd: int) -> None:
    control = ShareControl("threshold", 0.2, VALUES, 2.0)
    begun = [control.begin() for _ in range(crowd)]
    control.learn(begun[0].value, Tokens(40, 100))
    assert control.place == pytest.approx(2.0 + PACE * 10 * 0.2 * min(1.0, TOGETHER / crowd))


def test_a_crowd_of_runs_reaches_the_target_too() -> None:
    control, chance, made = ShareControl("threshold", 0.3, VALUES, 0.0), random.Random(1), list[Tokens]()
    under_way = [control.begin() for _ in range(32)]
    for _ in range(800):
        oldest = under_way.pop(0)
        made.append(Tokens(sum(chance.random() < curve(oldest.value) for _ in range(200)), 200))
        control.learn(oldest.value, made[-1])
        under_way.append(control.begin())
    assert reached(made[200:]) == pytest.approx(0.3, abs=0.02)


def test_a_run_that_ends_early_changes_nothing() -> None:
    control = ShareControl("threshold", 0.2, VALUES, 2.0)
    follow(control, control.begin(), None)
    assert (control.place, control.runs, control.share) == (2.0, 0, None)
    follow(control, control.begin(), None)
    control.learn(control.begin().value, Tokens(70, 100))
    assert control.place == pytest.approx(2.0 + PACE * 10 * 0.5)  # It was under way alone.


def calibrated(value: float, policy: str = "specreason", option: str = "threshold") -> Calibration:
    return Calibration(policy=policy, option=option, value=value, max_loss=0.1, confidence=0.9)


def targeted(**values: object) -> RunOptions:
    return RunOptions.model_validate({"max_large_share": 0.1, **values})


def test_no_threshold_is_looser_than_the_calibrated_one() -> None:
    targets = SpendTargets(policies.adaptable, calibrated(6.5))
    control = targets.of(targeted(options={"threshold": 6.5}))
    assert control is not None
    assert control.value == control.thresholds[-1] == 6.5
    assert control.thresholds == (9, 8.5, 8, 7.5, 7, 6.5)
    simulate(control, 50)
    assert control.value == 6.5


def test_where_less_is_looser_too() -> None:
    threshold = policies.METHODS.find("bild").threshold
    assert threshold is not None
    assert threshold.values[0] < threshold.values[-1]
    targets = SpendTargets(policies.adaptable, calibrated(2.0, "bild", threshold.option))
    control = targets.of(targeted(policy="bild", options={threshold.option: 2.0}))
    assert control is not None
    assert (control.thresholds[0], control.thresholds[-1]) == (threshold.values[0], 2.0)


def test_runs_with_the_same_options_and_target_follow_one_control() -> None:
    targets = SpendTargets(policies.adaptable)
    control = targets.of(targeted())
    assert control is targets.of(targeted(ahead=0))
    assert control is not targets.of(targeted(max_large_share=0.2))
    assert targets.of(RunOptions()) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policy": "large"}, "large with these options has no threshold"),
        ({"options": {"skip": 3}}, "specreason with these options has no threshold"),
        ({"adapt": 0.1}, "max_large_share and adapt both decide"),
    ],
)
def test_a_target_that_nothing_follows_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SpendTargets(policies.adaptable).check(targeted(**values))
