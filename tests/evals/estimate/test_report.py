"""What an estimate says, and the settings file that it writes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from stepspec import settings as configuration
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.estimate.command import show
from stepspec.evals.estimate.measurements import Measurements
from stepspec.evals.estimate.prediction import Estimate, Predictor
from stepspec.evals.estimate.report import headline, notes, record, settings_file
from stepspec.evals.sample import Arm
from stepspec.settings import Settings

from .arithmetic import ALONE, LARGE_SERVER, SMALL_SERVER, VERDICT, measured, recorded, script, simulate


def estimated(measurements: Measurements, *loads: int) -> Estimate:
    return Predictor(measurements, simulate).estimate(loads)


def noted(measurements: Measurements) -> str:
    return "\n".join(notes(measurements, estimated(measurements)))


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_headline_says_first_whether_it_pays() -> None:
    text = headline(estimated(measured(*[script(8, 2)] * 10)))
    assert text.startswith("It pays: with SpecReason, a problem is expected to take 3.2 s instead of 10 s")
    assert "3.13 [2.39, 4.05] times as fast" in text
    assert "at once" not in text


def test_the_headline_names_the_load_at_which_to_stop_or_the_highest_measured() -> None:
    assert re.search(
        r"From about \d+ problems at once the large model alone", headline(estimated(measured(script(4, 6)), 4, 16))
    )
    assert "still pays with 4 problems at once" in headline(estimated(measured(script(10, 0)), 4))


def test_an_interval_that_includes_1_is_said_to_need_more_problems() -> None:
    assert "The interval includes 1: measure more problems" in headline(estimated(measured(script(3, 7))))


def test_the_headline_says_that_it_does_not_pay_and_from_which_accept_rate_it_would() -> None:
    half = replace(SMALL_SERVER, between={1: (0.05,)})
    text = headline(estimated(measured(script(2, 8), small=half)))
    assert text.startswith("It does not pay. With SpecReason, the fastest method, a problem is expected to take 13.8 s")
    assert "20% [6%, 51%] of the 10 drafts were accepted; it breaks even at 55%." in text
    slow = replace(SMALL_SERVER, between={1: (0.2,)})
    assert "No accept rate would be enough" in headline(estimated(measured(script(8, 2), small=slow)))


@pytest.mark.parametrize(
    ("measurements", "note"),
    [
        (
            measured(script(8, 2), large=replace(LARGE_SERVER, prefix_cache=False)),
            "large: no prefix cache: every request",
        ),
        (measured(script(8, 2), small=replace(SMALL_SERVER, sequences=8)), "small: it serves 8 requests at once"),
        (measured(script(8, 2), small=replace(SMALL_SERVER, between={1: (0.08,)})), "hardly faster; choose a smaller"),
        (measured(script(8, 2), verdict=replace(VERDICT, understood=0.2)), "it puts 20% on digits"),
        (measured(script(8, 2), skipped={"bild": "no scores"}), "bild was not measured: no scores"),
        (measured(script(8, 2, uncached=True)), "SpecReason: each of its verdicts reads the whole chain again"),
        (measured(script(8, 2)), "SpecReason: only 10 drafts were judged"),
    ],
)
def test_notes_name_the_cause_and_the_cure(measurements: Measurements, note: str) -> None:
    assert note in noted(measurements)


def test_a_pair_without_fault_has_no_notes() -> None:
    assert noted(measured(*[script(8, 2)] * 10)) == ""


def test_runs_that_were_cut_and_times_that_do_not_fit_are_noted() -> None:
    runs = {LARGE.name: recorded(ALONE, seconds=10.0), SHIPPED.name: recorded(script(8, 2), seconds=6.4)}
    assert "timed runs took 2.00 times what the simulation says" in noted(measured(script(8, 2), runs=runs))
    cut = {LARGE.name: tuple(replace(run, cut=True) for run in runs[LARGE.name])}
    assert "1 of 2 runs were cut after 8192 tokens" in noted(measured(script(8, 2), runs=cut))


def loaded(toml: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    Path("settings.toml").write_text(toml)
    monkeypatch.setenv("STEPSPEC_CONFIG", "settings.toml")
    return configuration.load()


def test_the_settings_are_read_by_stepspec_and_hold_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"url": "http://l:8002/v1", "api_key": "secret", "replicas": ["http://m:8002"]}
    settings = configuration.load(small="http://s:8001/v1", large=large)
    arm = Arm.of("careful", "specreason", {"threshold": 8})
    measurements = measured(script(4, 6), arm=arm, large=replace(LARGE_SERVER, suffix_scoring=True))
    toml = settings_file(estimated(measurements, 4, 16), measurements, settings, "2026-11-23")
    assert "secret" not in toml
    assert "STEPSPEC_LARGE__API_KEY" in toml
    assert toml.startswith("# It pays: with careful")
    read = loaded(toml, monkeypatch)
    assert (read.policy, read.options, read.ahead, read.auto) == ("specreason", {"threshold": 8}, 1, True)
    assert read.large is not None
    assert (read.large.urls, read.large.suffix_scoring) == (("http://l:8002", "http://m:8002"), True)


def test_where_nothing_pays_the_settings_are_the_large_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configuration.load(small="http://s:8001/v1", large="http://l:8002/v1")
    measurements = measured(script(8, 2), small=replace(SMALL_SERVER, between={1: (0.2,)}))
    toml = settings_file(estimated(measurements), measurements, settings, "2026-11-23")
    assert tomllib.loads(toml).keys() == {"policy", "small", "large"}
    assert loaded(toml, monkeypatch).policy == "large"


def test_everything_is_printed_with_the_verdict_first() -> None:
    both = measured(script(8, 2), arms=(LARGE, SHIPPED, Arm.of("bild", "bild")), runs={"bild": recorded(script(0, 10))})
    estimate = estimated(both, 4)
    console = Console(width=200)
    with console.capture() as capture:
        show(console, both, estimate, 'policy = "specreason"\n')
    text = capture.get()
    assert text.startswith("It pays: with SpecReason")
    assert text.index("SpecReason", 60) < text.index("bild")
    for words in ("80% [49%, 94%]", "none up to 4", "between two tokens", "10.0 ms", "80 of 400 tokens read", "Wilson"):
        assert words in text


def test_the_record_has_every_figure() -> None:
    measurements = measured(script(8, 2))
    made = orjson.loads(orjson.dumps(record(estimated(measurements, 4), measurements, "")))
    assert (made["pays"], made["best"], made["problems"]) == (True, "SpecReason", 1)
    (method,) = made["methods"]
    assert [each["concurrency"] for each in method["expected"]] == [1, 4]
    assert method["expected"][0]["speed_up"].keys() == {"value", "low", "high"}
    assert made["servers"]["large"]["between"] == {"1": [0.1]}
    assert made["servers"]["large"]["costs"]["per_pass"] == pytest.approx(0.1)
