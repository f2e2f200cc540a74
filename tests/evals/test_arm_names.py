"""Arms are named on the command line; unknown names are refused with the known ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepspec.evals.arms import LARGE, PLAIN, SMALL
from stepspec.evals.benchmarks import overlaps
from stepspec.evals.cli import arm, arms, calibrated
from stepspec.evals.sample import Arm
from stepspec.orchestrator.errors import ConfigurationError


def test_a_method_is_named_with_its_options_and_those_of_the_solver() -> None:
    assert arm("specreason") == Arm.of("specreason", "specreason")
    spec = "specreason:threshold=8.5, read=greedy,ahead=0,sure_bets=true"
    assert arm(spec) == Arm.of(spec, "specreason", {"threshold": 8.5, "read": "greedy"}, ahead=0, sure_bets=True)
    spec = "specreason:sure_bets=true"
    assert arm(spec) == Arm.of(spec, "specreason", sure_bets=True)


def test_a_policy_file_is_an_arm_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "careful.toml"
    path.write_text('policy = "bild"\nahead = 1\n[options]\nscale = "step"\n[small]\nurl = "http://h:1"\n')
    assert arm(str(path)) == Arm.of("careful", "bild", {"scale": "step"}, ahead=1)


def test_baselines_come_first_and_controls_follow_their_method() -> None:
    found = arms(["specreason", "bild"], ["large"], ["bild"])
    assert found == (
        LARGE,
        Arm.of("specreason", "specreason"),
        Arm.of("bild", "bild"),
        Arm.of("random like bild", "random", ending="small", answer="method", like="bild"),
    )
    assert arms([], ["plain", "small", "plain"], []) == (PLAIN, SMALL)


@pytest.mark.parametrize(
    ("chosen", "baselines", "controls", "complaint"),
    [
        (["specraeson"], [], [], "did you mean 'specreason'"),
        (["specreason:limit=8"], [], [], "no option 'limit'; its options: threshold=7, .*; of any arm: ahead, hedge"),
        (["specreason:thresholds=1"], [], [], "no option 'thresholds' .did you mean 'threshold'"),
        (["specreason:threshold=high"], [], [], "'threshold': a number from 0 to 9 .got 'high'"),
        (["choose:candidates=99"], [], [], "'candidates': a whole number from 1 to 20 .got 99"),
        (["specreason:threshold"], [], [], "write options as NAME=VALUE"),
        (["specreason:ahead=x"], [], [], "ahead: Input should be a valid integer"),
        (["specreason", "specreason"], [], [], "'specreason' is there twice"),
        (["specreason"], ["medium"], [], "no such baseline: 'medium'; there are plain, large, small"),
        (["specreason"], [], ["bild"], "not one of the methods of this run, which are 'specreason'"),
        (["nowhere.toml"], [], [], "no policy file at nowhere.toml"),
    ],
)
def test_unknown_names_are_refused(
    chosen: list[str], baselines: list[str], controls: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        arms(chosen, baselines, controls)


def test_an_arm_that_was_calibrated_on_the_measured_problems_has_a_warning(tmp_path: Path) -> None:
    path, plain, odd = (tmp_path / f"{name}.toml" for name in ("careful", "plain", "odd"))
    odd.write_text('policy = "bild"\ncalibration = "none"\n')
    path.write_text('policy = "bild"\n[calibration]\nbenchmark = "gsm8k, calibration half"\n')
    plain.write_text('policy = "bild"\n')
    found = calibrated(["specreason", str(path), str(plain), str(odd)])
    assert found == {"careful": "gsm8k, calibration half"}
    (half,) = overlaps(found, "gsm8k", None)
    assert half.startswith("'careful' was calibrated on half of the problems that are measured here")
    assert "--half report" in half
    (warning,) = overlaps(found, "gsm8k", "calibration")
    assert "on the very problems that are measured here" in warning
    assert overlaps(found, "gsm8k", "report") == overlaps(found, "math500", None) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("ahead = 1", "names no policy"), ("policy = ", "no policy file"), ('policy = "bild"\n[options]\nx = 1', "'x'")],
)
def test_a_policy_file_that_is_none_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        arm(str(path))
