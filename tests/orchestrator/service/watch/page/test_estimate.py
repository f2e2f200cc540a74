"""The estimated speed against the large model alone: by hand, and unknown where too little is known."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.orchestrator import Step, Token
from stepspec.orchestrator.events import Called, Committed, Event, Fate, Finished, Purpose, Started, Verb
from stepspec.orchestrator.trace import Moment, dump

from .script import script


def called(
    written: int,
    purpose: Purpose = "repair",
    *,
    role: Any = "large",
    verb: Verb = "write",
    fate: Fate = "done",
    path: str = "",
    first: float | None = 0.2,
    pace: float = 0.1,
) -> Called:
    seconds = (first or 0) + pace * (written - 1)
    return Called(role, verb, fate, 0.0, seconds, first, written=written, path=path, purpose=purpose)


def estimate(*calls: Called, policy: str = "specreason", seconds: float | None = 2.0, kept: int = 41) -> Any:
    step = Step("So.\n\n", "small", tokens=(Token("So"),) * kept)
    events: list[Event] = [Started((), policy), *calls, *([Committed(0, step)] if kept else [])]
    moments = [Moment(1.0, event) for event in events]
    if seconds is not None:
        moments.append(Moment(seconds, Finished("stop", "", seconds)))
    return script("return estimate.estimateOf(seen(given))", b"".join(map(dump, moments)).decode())


def test_the_large_models_pace_is_that_of_what_it_wrote() -> None:
    found = estimate(called(11), called(21, "answer", pace=0.25))
    assert (found["tokens"], found["pace"], found["first"]) == (30, pytest.approx(0.2), pytest.approx(0.2))
    assert found["alone"] == pytest.approx(0.2 + 40 * 0.2)
    assert found["factor"] == pytest.approx(8.2 / 2)


def test_a_run_that_goes_on_is_compared_so_far() -> None:
    assert estimate(called(41), seconds=None)["seconds"] == 1.0
    assert estimate(called(41), seconds=None)["factor"] == pytest.approx(4.2)


@pytest.mark.parametrize(
    "other",
    [
        called(99, "draft"),  # a stream that stays open also waits
        called(99, ""),
        called(99, fate="cancelled"),
        called(99, role="small"),
        called(99, path="large.small"),
        called(99, verb="score"),
        called(99, first=None),
        called(1),
    ],
)
def test_other_requests_say_nothing_about_it(other: Called) -> None:
    assert estimate(called(16), other)["tokens"] == 15
    assert estimate(called(16), other)["factor"] is None


def test_the_least_number_of_tokens_is_enough() -> None:
    assert estimate(called(17))["factor"] is not None


@pytest.mark.parametrize("settings", [{"policy": "large"}, {"kept": 0}])
def test_without_a_comparison_there_is_no_estimate(settings: dict[str, Any]) -> None:
    assert estimate(called(99), **settings) is None
