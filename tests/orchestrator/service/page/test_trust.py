"""What the page says about the judge: the promise, the drift since, and what shadows found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from stepspec import Solver
from stepspec.orchestrator.chain import Accept, Step
from stepspec.orchestrator.events import Judged
from stepspec.orchestrator.feedback.drift import LEAST
from stepspec.service_factory import judge_status

from ..served import serving
from .conftest import Open
from .made import PROBLEM, made
from .replay import Replay
from .script import script

PROMISE = {"policy": "specreason", "option": "threshold", "value": 6.0, "max_loss": 0.015, "confidence": 0.95}
QUIET = {"moved": 0.042, "grades": 1412, "least": 200, "drifted": False}
DRIFTED = {"moved": 0.31, "grades": 412, "least": 200, "drifted": True}
SHADOWS = {"checked": 120, "agreed": 117, "own_disputed": 2, "interval": [0.929, 0.991]}
TRUSTED: dict[str, Any] = {"promise": PROMISE, "drift": QUIET, "shadows": SHADOWS}
TRACE = made()
FILE = {**PROMISE, "edges": [8.0], "counts": [900, 100]}


def sentences(**status: Any) -> list[tuple[str, str, bool]]:
    found = script("return trust.trustSentences(given);", {"promise": None, "drift": None, "shadows": None, **status})
    return [(one["name"], one["text"], one["bad"]) for one in found]


def test_without_a_calibration_and_without_shadows_there_is_nothing_to_say() -> None:
    assert sentences() == []


def test_every_status_is_shown_with_its_numbers() -> None:
    assert sentences(**TRUSTED) == [
        (
            "Calibrated",
            "specreason with threshold 6 loses at most 1.5% of the problems to the large model, with 95% confidence.",
            False,
        ),
        ("Grades since", "4% of 1,412 fall into other bins than when it was calibrated: no drift.", False),
        (
            "Shadow checks",
            "the large model calls 98% of 120 accepted steps correct (95% interval 93% to 99%), and 98% of its own.",
            False,
        ),
    ]


def test_the_other_methods_that_may_be_selected_have_their_guarantees() -> None:
    other = {**PROMISE, "policy": "bild", "option": "fallback", "value": 0.5, "max_loss": 0.02}
    found = sentences(**TRUSTED, alternatives=[{**other, "drift": QUIET}, {**other, "drift": DRIFTED}])
    promised = "bild with fallback 0.5 loses at most 2% of the problems to the large model, with 95% confidence."
    assert [one for one in found if one not in sentences(**TRUSTED)] == [
        ("Calibrated as well", promised, False),
        ("Calibrated as well", promised, False),
        (
            "Grades have drifted",
            "31% of 412 fall into other bins than when bild was calibrated. It is not selected any more: run "
            "“stepspec calibrate” again.",
            True,
        ),
    ]


@pytest.mark.parametrize(
    ("drift", "name", "text"),
    [
        ({"moved": 0.0, "grades": 0}, "Grades since", "none yet."),
        ({"moved": 0.5, "grades": 9}, "Grades since", "nothing is concluded from fewer than 200"),
        (DRIFTED, "Grades have drifted", "31% of 412 .* run “stepspec calibrate” again"),
    ],
)
def test_a_drift_is_stated_and_only_then(drift: dict[str, Any], name: str, text: str) -> None:
    ((title, words, bad),) = sentences(drift=QUIET | drift)
    assert (title, bad) == (name, drift is DRIFTED)
    assert re.search(text, words)


def test_shadows_that_found_nothing_yet_have_no_share() -> None:
    assert sentences(shadows={"checked": 0, "agreed": 0, "interval": None}) == [("Shadow checks", "none yet.", False)]


@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_shown_and_shown_again_after_a_run(opened: Open) -> None:
    async with Replay(TRACE, trusted=TRUSTED).serving() as service:
        page = await opened(service.url)
        lines = page.locator("#trust li")
        await expect(lines).to_have_count(3)
        await expect(page.locator("#trust [data-bad]")).to_have_count(0)
        calm = await lines.nth(1).evaluate("line => getComputedStyle(line.firstChild).color")
        service.trusted = TRUSTED | {"drift": DRIFTED}
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#trust [data-bad]")).to_contain_text("Grades have drifted: 31% of 412")
        assert await lines.nth(1).evaluate("line => getComputedStyle(line.firstChild).color") != calm


@pytest.mark.asyncio(loop_scope="module")
async def test_a_service_that_has_nothing_to_tell_shows_nothing(opened: Open) -> None:
    async with serving() as served:
        page = await opened(served.base)
        await expect(page.locator("#method")).to_be_enabled()
        await expect(page.locator("#trust")).to_be_hidden()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_real_service_tells_its_calibration(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in FILE.items())
    (tmp_path / "stepspec.toml").write_text(f"options = {{threshold = 6.0}}\nshadow = 1.0\n[calibration]\n{lines}")
    monkeypatch.chdir(tmp_path)
    async with serving() as served:
        engine = served.service.context.offer.engine
        assert isinstance(engine, Solver)
        assert engine.promise is not None
        for place in range(LEAST - 3):
            engine.promise(Judged(place, Step("So.", "small"), Accept(9.0)))
        page = await opened(served.base)
        await expect(page.locator("#trust")).to_contain_text("specreason with threshold 6 loses at most 1.5%")
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#trust [data-bad]")).to_contain_text(f"90% of {LEAST} fall into other bins")
        await engine.shadows.settled()
        assert judge_status(engine).as_json["shadows"]["checked"] == 3
