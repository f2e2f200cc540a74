"""Spend targets of requests: followed, reported in the reply and in metrics, and refused where nothing follows them."""

from __future__ import annotations

import asyncio

import pytest

from stepspec import Solver
from stepspec.orchestrator.errors import ConfigurationError

from .served import ANSWER, serving


async def test_a_target_is_followed_and_reported_when_it_cannot_be_met() -> None:
    """The judge likes every draft, so that the large model writes the answer alone; that exceeds a target of 0."""
    async with serving() as served:
        replies = [await served.chat(method="specreason", stepspec={"max_large_share": 0.0}) for _ in range(30)]
        metrics = (await served.get("/metrics")).body.decode()
        plain = await served.chat(method="specreason")
    told = [reply.json["stepspec"]["spending"] for reply in replies]
    assert told[0] == {
        "max_large_share": 0.0,
        "threshold": 7.0,
        "share": None,
        "out_of_reach": False,
        "capped_after": None,
        "capped_at": None,
    }
    assert told[-1]["threshold"] == 0.0
    assert told[-1]["share"] == pytest.approx(replies[0].json["stepspec"]["share_large"])
    assert told[-1]["out_of_reach"]
    missed = sum(each["out_of_reach"] for each in told)
    assert 0 < missed < 30
    assert f'stepspec_large_share_missed_total{{model="specreason"}} {float(missed)}' in metrics
    assert plain.json["stepspec"]["spending"] is None


async def test_a_target_that_nothing_follows_is_refused_with_a_cure() -> None:
    async with serving() as served:
        large = await served.chat(method="large", stepspec={"max_large_share": 0.3})
        wrong = await served.chat(stepspec={"max_large_share": 1.5})
        format = {"type": "json_object"}
        capped = await served.chat(stepspec={"max_large_seconds": 1.0}, response_format=format)
    assert [each.status for each in (large, wrong, capped)] == [400] * 3
    assert "large with these options has no threshold" in large.error["message"]
    assert wrong.error["param"] == "stepspec.max_large_share"
    assert "max_large_seconds: an answer in a format" in capped.error["message"]


async def test_a_run_whose_seconds_are_spent_ends_with_the_small_model_and_says_so() -> None:
    async with serving() as served:
        served.large.gate = asyncio.Semaphore(0)  # It never writes a token.
        reply = await served.chat(method="large", stepspec={"max_large_seconds": 0.3})
        metrics = (await served.get("/metrics")).body.decode()
    assert reply.status == 200
    assert reply.message["content"] == ANSWER
    assert reply.json["ledger"]["large"]["kept"] == 0
    spending = reply.json["stepspec"]["spending"]
    assert (spending["capped_after"], spending["capped_at"]) == (0.3, 0)
    assert 'stepspec_capped_runs_total{model="large"} 1.0' in metrics


@pytest.mark.parametrize(
    ("values", "words"),
    [({"policy": "large"}, "has no threshold"), ({"adapt": 0.2}, "leave out one of them")],
)
def test_settings_with_a_target_that_nothing_follows_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Solver("http://a", "http://b", max_large_share=0.2, **values)  # type: ignore[arg-type]
