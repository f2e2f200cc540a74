"""What an estimate says, and the settings file that it writes."""

from __future__ import annotations

import io
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from stepspec import settings as configuration
from stepspec.evals.arms import SHIPPED
from stepspec.evals.estimate.command import show
from stepspec.evals.estimate.measurements import Measurements, SeenChain
from stepspec.evals.estimate.prediction import predict
from stepspec.evals.estimate.report import estimated_settings, headline, notes, record
from stepspec.evals.sample import Arm
from stepspec.settings import Settings

from .made import BAD, GOOD, LARGE_SERVER, SMALL_SERVER, measured

pytestmark = pytest.mark.usefixtures("nowhere")
READING = Arm.of("reading", "reading")
SLOW_TRIALS = {
    SHIPPED.name: (replace(GOOD, seconds=(2.0, 0.25)), replace(BAD, seconds=(2.0, 0.25)))
}
SLOW = measured(0, 0, trials=SLOW_TRIALS, small=replace(SMALL_SERVER, between={1: (0.2,)}))


def noted(measurements: Measurements) -> str:
    return "\n".join(notes(measurements, predict(measurements)))


def test_the_headline_says_first_whether_it_pays() -> None:
    text = headline(predict(measured(80, 20)))
    assert text.startswith("It pays: SpecReason is expected to be 2.71 [2.")
    assert "includes 1" not in text
    text = headline(predict(measured(2, 8)))
    assert text.startswith("It is not known whether it pays: SpecReason")
    assert text.endswith("The interval includes 1: see what would narrow it.")


def test_a_few_drafts_are_no_verdict_and_rank_behind_others() -> None:
    found = measured(
        1,
        0,
        arms=(SHIPPED, READING),
        trials={SHIPPED.name: (GOOD,), "reading": (GOOD,) * 6 + (BAD,) * 4},
    )
    estimate = predict(found)
    assert [method.arm.name for method in estimate.methods] == ["reading", SHIPPED.name]
    assert estimate.methods[0].alone.gain.value < estimate.methods[1].alone.gain.value
    text = headline(predict(measured(1, 0)))
    assert text.startswith("It is not known whether it pays: SpecReason")
    assert text.endswith("That is from 1 draft: measure for more --minutes.")
    assert "prior" not in tomllib.loads(
        estimated_settings(predict(measured(3, 0)), measured(3, 0), Settings(), "")
    )


def test_the_headline_says_that_it_does_not_pay_and_from_which_accept_rate_it_would() -> None:
    text = headline(predict(measured(1, 19)))
    assert text.startswith(
        "It does not pay. SpecReason, the fastest method, is expected to be 0.97"
    )
    assert "5% [1%, 24%] of 20 drafts were accepted; it breaks even at" in text
    assert "no accept rate would be enough: the small model" in headline(predict(SLOW))
    assert "No draft could be tried" in headline(predict(replace(SLOW, trials={SHIPPED.name: ()})))


@pytest.mark.parametrize(
    ("measurements", "note"),
    [
        (
            measured(8, 2, large=replace(LARGE_SERVER, prefix_cache=False)),
            "large: no prefix cache: every request",
        ),
        (
            measured(8, 2, small=replace(SMALL_SERVER, sequences=8)),
            "small: it serves 8 requests at once",
        ),
        (SLOW, "hardly faster; choose a smaller"),
        (
            measured(8, 2, skipped={"bild": "no scores"}),
            "bild: requests failed, and it was not measured any more: no",
        ),
        (
            measured(0, 0, arms=(READING,), trials={"reading": (GOOD,)}),
            "reading: each verdict reads the whole chain",
        ),
        (measured(8, 2), "SpecReason: widest is the accept rate, from 10 drafts: more --minutes"),
        (measured(80, 20, plain=(0.02, 0.1)), "SpecReason: widest is the paces, which vary"),
        (
            measured(0, 0, trials={SHIPPED.name: (replace(GOOD, own=90),) * 99}),
            "own step, which are not equally long",
        ),
        (
            measured(8, 2),
            (
                "1 of 1 chains ended; they have 100 tokens on average, so that an ordinary request"
                " takes 10."
            ),
        ),
        (
            measured(8, 2, chains=(SeenChain((10,)),)),
            "0 of 1 chains ended; they have at least 10 tokens",
        ),
    ],
)
def test_notes_name_the_cause_and_the_cure(measurements: Measurements, note: str) -> None:
    assert note in noted(measurements)


def test_a_pair_without_fault_has_one_note_on_the_lengths() -> None:
    assert noted(measured(800, 200)).startswith("1 of 1 chains ended")


def loaded(toml: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    Path("settings.toml").write_text(toml)
    monkeypatch.setenv("STEPSPEC_CONFIG", "settings.toml")
    return configuration.load()


def test_the_settings_are_read_by_stepspec_and_hold_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"url": "http://l:8002/v1", "api_key": "secret", "replicas": ["http://m:8002"]}
    critic = {"url": "http://c:8003"}
    settings = configuration.load(
        small="http://s:8001/v1", large=large, critic=critic, sampling={"temperature": 0}
    )
    arm = Arm.of("careful", "specreason", {"threshold": 8})
    trials = {"careful": (GOOD,) * 8 + (BAD,) * 2}
    found = measured(
        0, 0, arms=(arm,), trials=trials, large=replace(LARGE_SERVER, suffix_scoring=True)
    )
    toml = estimated_settings(predict(found, [4]), found, settings, "2026-11-23")
    assert "secret" not in toml
    assert "STEPSPEC_LARGE__API_KEY" in toml
    assert toml.startswith("# It pays: careful")
    assert tomllib.loads(toml)["prior"] == {
        "accept_rate": 0.8,
        "verdict_seconds": 0.25,
        "pace": 0.1,
    }
    read = loaded(toml, monkeypatch)
    assert (read.policy, read.options, read.ahead) == ("specreason", {"threshold": 8}, 3)
    assert read.large is not None
    assert (read.sampling.temperature, read.critic) == (0, settings.critic)
    assert (read.large.urls, read.large.suffix_scoring) == (
        ("http://l:8002", "http://m:8002"),
        True,
    )


def test_where_nothing_pays_the_settings_are_the_large_model_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = configuration.load(small="http://s:8001/v1", large="http://l:8002/v1")
    toml = estimated_settings(predict(SLOW), SLOW, settings, "2026-11-23")
    assert tomllib.loads(toml).keys() == {"policy", "small", "large"}
    assert loaded(toml, monkeypatch).policy == "large"


def test_everything_is_printed_with_the_verdict_first() -> None:
    trials = {SHIPPED.name: (GOOD,) * 8 + (BAD,) * 2, "bild": (BAD,) * 10}
    loaded = replace(LARGE_SERVER, between={1: (0.1,), 4: (0.2,)})
    runs = {(SHIPPED.name, 4): 0.25}
    shared = replace(SMALL_SERVER, contended=(0.04,))
    arms = (SHIPPED, Arm.of("bild", "bild"))
    both = measured(0, 0, arms=arms, trials=trials, small=shared, large=loaded, runs=runs)
    text = ""
    for width in (50, 200):
        printed = io.StringIO()
        show(
            Console(file=printed, width=width), both, predict(both, [4]), 'policy = "specreason"\n'
        )
        text = printed.getvalue()
        assert "80% [49%, 94%]" in text  # no cell is cut off
    assert text.startswith("It pays: SpecReason")
    assert text.index("SpecReason", 60) < text.index("bild")
    assert re.search(r"SpecReason .* 0.81\n", text)
    assert re.search(r"bild .* -\n", text)
    assert "SpecReason saved no time with more than 1 problems at once" in text
    assert "runs = 1\n" in estimated_settings(predict(both, [4]), both, Settings(), "today")
    assert "stands still for 75% of the time" in text
    for words in (
        "80% [49%, 94%]",
        "4 at once",
        "between two tokens",
        "10.0 ms",
        "a verdict of bild",
        "Wilson",
    ):
        assert words in text


def test_the_record_has_every_figure() -> None:
    loaded = replace(LARGE_SERVER, between={1: (0.1,), 4: (0.2,)})
    found = measured(8, 2, large=loaded, runs={(SHIPPED.name, 4): 0.05})
    made = orjson.loads(orjson.dumps(record(predict(found, [4]), found, "")))
    assert (made["pays"], made["best"], len(made["trials"]["SpecReason"])) == (
        True,
        "SpecReason",
        10,
    )
    (method,) = made["methods"]
    assert [each["concurrency"] for each in method["gains"]] == [1, 4]
    assert method["gains"][0]["gain"].keys() == {"value", "low", "high"}
    assert made["servers"]["large"]["between"] == {"1": [0.1], "4": [0.2]}
    assert made["runs"] == [{"name": SHIPPED.name, "at_once": 4, "token": 0.05}]
