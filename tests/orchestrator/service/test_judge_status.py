"""The status of the judge: for the page, and for Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solver
from stepspec.orchestrator.chain import Accept, Step
from stepspec.orchestrator.events import Judged
from stepspec.orchestrator.feedback.drift import LEAST

from .served import Served, serving
from .test_observers import found, metrics

CALIBRATION = {
    "policy": "specreason", "option": "threshold", "value": 6.0, "max_loss": 0.01, "confidence": 0.95,
    "edges": [8.0], "counts": [900, 100],
}  # fmt: skip
OPTIONS = {"threshold": 6.0}


@pytest.fixture(autouse=True)
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with what a calibration promised of OPTIONS."""
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in CALIBRATION.items())
    (tmp_path / "stepspec.toml").write_text(f"[calibration]\n{lines}")
    monkeypatch.chdir(tmp_path)


def engine_of(served: Served) -> Solver:
    engine = served.service.context.offer.engine
    assert isinstance(engine, Solver)
    return engine


def judge(served: Served, times: int) -> None:
    """Let so many drafts have been judged, all better than most of the calibration's."""
    promise = engine_of(served).promise
    assert promise is not None
    for place in range(times):
        promise(Judged(place, Step("So.", "small"), Accept(9.0)))


async def test_a_guarantee_is_shown_with_its_drift() -> None:
    async with serving(options=OPTIONS) as served:
        before = (await served.get("/live/trust")).json
        judge(served, LEAST)
        after = (await served.get("/live/trust")).json
    assert before["promise"] == {key: CALIBRATION[key] for key in before["promise"]}
    assert set(before["promise"]) == {"policy", "option", "value", "max_loss", "confidence"}
    assert before["drift"] == {"moved": 0.0, "grades": 0, "least": LEAST, "drifted": False}
    assert after["drift"] == {"moved": pytest.approx(0.9), "grades": LEAST, "least": LEAST, "drifted": True}
    assert after["shadows"] is None


@pytest.mark.parametrize("chosen", [{"policy": "large"}, {"options": {"threshold": 5}}])
async def test_a_guarantee_is_shown_only_for_the_method_of_auto(chosen: dict[str, Any]) -> None:
    async with serving(**chosen) as served:
        status = (await served.get("/live/trust")).json
        samples = await metrics(served)
    assert (status["promise"], status["drift"]) == (None, None)
    assert not [name for name, _ in samples if "drift" in name]


async def test_alternatives_have_their_guarantees_and_selections_are_counted(tmp_path: Path) -> None:
    other = {**CALIBRATION, "policy": "bild", "option": "rollback", "value": 4.0}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in other.items())
    (tmp_path / "bild.toml").write_text(f'policy = "bild"\noptions = {{rollback = 4.0}}\n[calibration]\n{lines}')
    async with serving(options=OPTIONS, alternatives=["bild.toml"]) as served:
        promise = engine_of(served).alternatives["bild"]
        for place in range(LEAST):
            promise(Judged(place, Step("So.", "small"), Accept(9.0)))
        status = (await served.get("/live/trust")).json
        await served.chat()
        await served.chat(model="specreason")
        samples = await metrics(served)
    assert [(each["policy"], each["drift"]["drifted"]) for each in status["alternatives"]] == [("bild", True)]
    assert found(samples, "grades_total", model="bild") == LEAST
    assert found(samples, "selections_total", model="specreason", policy="specreason") == 1


async def test_drift_is_measured() -> None:
    async with serving(options=OPTIONS) as served:
        judge(served, LEAST - 1)
        first = await metrics(served)
        await served.chat()
        second, third = await metrics(served), await metrics(served)
    model = {"model": "specreason"}
    assert (found(first, "grades_total", **model), found(first, "grade_drifted", **model)) == (LEAST - 1, 0)
    assert found(second, "grades_total", **model) == found(third, "grades_total", **model) == LEAST + 2
    assert found(second, "grade_drift", **model) == pytest.approx(0.9)
    assert found(second, "grade_drifted", **model) == 1


async def test_shadow_checks_are_counted_by_outcome() -> None:
    async with serving(options=OPTIONS, shadow=1.0) as served:
        none = (await served.get("/live/trust")).json["shadows"]
        await served.chat()
        await engine_of(served).shadows.settled()
        record = engine_of(served).shadows.record
        samples, again = await metrics(served), await metrics(served)
        status = (await served.get("/live/trust")).json["shadows"]
    assert (none["checked"], none["interval"]) == (0, None)
    assert (status["checked"], status["agreed"], status["disputed"], status["own_disputed"]) == (3, 3, 0, 0)
    assert status["interval"] == [pytest.approx(0.438, abs=0.001), 1.0]
    for scraped in (samples, again):
        assert found(scraped, "shadows_total", outcome="agreed") == 3
        assert [found(scraped, "shadows_total", outcome=one) for one in ("disputed", "failed", "skipped")] == [0, 0, 0]
        assert found(scraped, "shadow_own_disputed_total") == 0
        assert found(scraped, "shadow_tokens_total", verb="written") == record.written > 0
        assert found(scraped, "shadow_tokens_total", verb="read") == record.read > 0


async def test_the_methods_are_listed_with_the_configured_options() -> None:
    async with serving(options=OPTIONS) as served:
        methods = (await served.get("/live/methods")).json["methods"]
    options = {method["name"]: method["options"] for method in methods}
    assert (options["specreason"]["threshold"], options["specreason"]["read"]) == (6.0, "expected")
    assert options["reflective"]["top"] is None
