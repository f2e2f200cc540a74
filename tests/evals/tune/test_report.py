"""What is said of measurements: the headline, the table, notes, settings."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from stepspec import settings as configuration
from stepspec.evals.calibration.risk_bound import Paired
from stepspec.evals.results import Interval
from stepspec.evals.tune.accuracy import Accuracy
from stepspec.evals.tune.measuring import Measured
from stepspec.evals.tune.paces import PairPaces, ServerPace
from stepspec.evals.tune.prediction import ranked
from stepspec.evals.tune.report import Report, points, times, within
from stepspec.orchestrator.prior import Prior

from .test_prediction import figures
from .world import READING, SPECREASON

PACES = PairPaces(ServerPace((0.003,), 0.02), ServerPace((0.02, 0.022), 0.2), 0.03, 8, 2)


def report(*methods: Any, **more: Any) -> Report:
    measured = Measured.of([method.arm for method in methods])
    measured.paces = PACES
    measured.seconds = 200.0
    measured.skipped = more.pop("skipped", {})
    measured.interrupted = more.pop("interrupted", False)
    return Report(measured, ranked(methods), 4.0, "20 built-in ones; give yours", **more)


def test_the_method_that_pays_is_named_first() -> None:
    lines = list(report(replace(figures(1.9, 0.2), loaded=1.12)).lines("stepspec.toml"))
    assert lines == [
        "Use reading: 1.9x as fast as the large model alone [1.6, 2.3], 1.1x with 8 users.",
        "Verdicts: 10% [5, 20] of the small model's errors let through. Answers: not measured"
        " (give problems with answers).",
        "Problems: 20 built-in ones; give yours. Wrote stepspec.toml.",
    ]


@pytest.mark.parametrize(
    ("methods", "headline"),
    [
        (
            (figures(0.8),),
            "It does not pay: reading, the best method, is 0.8x as fast as the large"
            " model alone [0.7, 0.9]; it accepts 80% of the drafts.",
        ),
        (
            (figures(1.2, 0.4),),
            "Not known yet: reading may be 1.2x as fast as the large model alone"
            " [0.8, 1.8]; 16 more minutes would be enough.",
        ),
        (
            (figures(1.01, 0.4),),
            "Not known yet: reading may be 1.01x as fast as the large model"
            " alone [0.7, 1.5]; it is about as fast, so that more minutes would not tell.",
        ),
        (
            (figures(3.0, passed=0.9),),
            "It does not pay: every method lets more than 33% of the small"
            " model's errors through, also reading, the fastest (3.0x).",
        ),
        ((), "Not known yet: no draft was tried in 4 minutes; give more."),
    ],
)
def test_the_headline_says_why_not(methods: Any, headline: str) -> None:
    assert report(*methods).headline == headline


def test_no_careless_method_is_the_best_one() -> None:
    careless = report(figures(3.0, passed=0.7))
    assert (careless.best, careless.verdict) == (None, "does not pay")


def test_a_small_model_that_is_hardly_faster_is_enough_to_know() -> None:
    measured = Measured.of([READING])
    assert Report.of(measured, 4.0, "20 built-in ones").verdict == "not known"
    measured.paces = replace(PACES, small=ServerPace((0.019,), 0.02))
    found = Report.of(measured, 4.0, "20 built-in ones")
    assert found.verdict == "does not pay"
    assert found.headline == (
        "It does not pay: the small model takes 19 ms for a token, the large one 21 ms; choose a"
        " smaller model."
    )


def test_the_table_fits_80_columns() -> None:
    long = replace(READING, name="reading:tokens=all,threshold=1,draft_tokens=24,repair_tokens=12")
    wide = replace(figures(11.5, 0.2, passed=0.25, arm=long), loaded=10.4)
    out = io.StringIO()
    console = Console(file=out, width=80, markup=False)
    console.print(report(wide, figures(1.9, arm=SPECREASON)).table())
    printed = out.getvalue()
    assert "11.5x [9.4, 14.0]" in printed
    assert "10.4x" in printed
    assert "threshold=1" in printed
    assert "..." not in printed.replace("…", "...")


def test_notes_say_what_is_not_known_and_what_failed() -> None:
    notes = list(report(figures(1.9, passed=0.3), skipped={"bild": "no scores"}).notes())
    assert notes == ["bild: left out, its requests failed: no scores"]
    unknown = replace(figures(1.9), errors=None)
    assert "too few errors" in next(report(unknown).notes())


def test_a_pair_that_solves_nothing_is_told_so() -> None:
    said = "\n".join(report(figures(1.9), solved=0, ended=5).lines())
    assert "solved none of the 5 problems that it finished" in said
    few = "\n".join(report(figures(1.9), solved=0, ended=2).lines())
    assert "solved none" not in few
    assert "Interrupted after 200 s" in "\n".join(report(interrupted=True).lines())


def test_answers_are_compared_and_calibrate_is_told_its_need() -> None:
    same = Accuracy(18, Paired(20, lost=0, gained=0))
    assert same.sentence == (
        "18 of 20 right, the large model alone 18 (+0 [-16, +16] points). `stepspec calibrate`"
        " needs 368 for a promise of 1%."
    )
    worse = Accuracy(18, Paired(20, lost=2, gained=0))
    assert worse.sentence.startswith("16 of 20 right")
    assert worse.sentence.endswith("A promise of 1% does not hold at this rate.")
    assert "more --minutes" in Accuracy(0, Paired(0, 0, 0)).sentence


def test_the_settings_are_those_of_the_method_and_the_prior(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configuration.load(small="http://s:1", large="http://l:2", ahead=1)
    strict = replace(READING, run=READING.run.with_overrides({"options": {"threshold": 1}}))
    best = replace(figures(1.9, arm=strict), loaded=0.9)
    path = tmp_path / "tuned.toml"
    path.write_text(report(best).settings(settings, "2026-11-29"))
    monkeypatch.setenv("STEPSPEC_CONFIG", str(path))
    read = configuration.load()
    assert (read.policy, read.options, read.ahead) == ("reading", {"threshold": 1}, 1)
    assert read.prior.model_dump() == {
        "accept_rate": 0.8,
        "verdict_seconds": 0.3,
        "pace": round(0.003 / 0.021, 4),
        "runs": 1,
    }
    assert path.read_text().startswith("# Use reading: 1.9x")
    path.write_text(report(figures(0.5)).settings(settings, "2026-11-29"))
    alone = configuration.load()
    assert (alone.policy, alone.prior) == ("large", Prior())


def test_keys_are_left_out_of_the_settings() -> None:
    settings = configuration.load(
        small={"url": "http://s:1", "api_key": "secret"}, large="http://l:2"
    )
    toml = report(figures(1.9)).settings(settings, "2026-11-29")
    assert "secret" not in toml
    assert "STEPSPEC_SMALL__API_KEY" in toml


def test_numbers_are_short() -> None:
    assert (times(1.94), times(1.04), times(0.96)) == ("1.9x", "1.04x", "0.96x")
    assert points(Interval(0.114, 0.04, 0.25)) == "11% [4, 25]"
    assert within(Interval(2, 0.5, 1e300)) == "[0.5, ...]"
