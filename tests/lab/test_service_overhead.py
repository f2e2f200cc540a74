"""The bench of the service measures the documented times."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from lab.mock_engine import InstantEngine
from lab.service_overhead import Arrival, OverheadRound, RunTimes, cost, drifts, serving, typical
from stepspec.orchestrator.chain import Accept, Rollback, Step, Verdict
from stepspec.orchestrator.events import (
    Called,
    Committed,
    Drafted,
    Event,
    Judged,
    Repaired,
    Started,
)
from stepspec.orchestrator.service.watch.records import RunEvent, ServiceRequest

REQUEST = ServiceRequest("v", "POST", "/v1/chat/completions", {})
DRAFT = Step("a", "small")


async def test_instant_models_solve_in_the_requested_number_of_steps() -> None:
    solution = await InstantEngine(steps=5).solve("What is 6 x 7?")
    assert [(step.author, step.fate) for step in solution.steps] == [("small", "kept")] * 5
    assert solution.finish_reason == "stop"


async def test_every_stream_of_the_clients_ends() -> None:
    engine = InstantEngine(steps=3)
    async with serving(engine.offer()) as base:
        measured = await cost(engine, base, concurrent=2, requests=6, steps=3)
    assert (measured.concurrent, measured.requests) == (2, 6)
    assert min(measured.library, measured.service, measured.alone, measured.waited) > 0


def test_a_round_that_something_else_disturbed_moves_the_spread_and_not_the_figure() -> None:
    rounds = [OverheadRound(at, 8, 32, 0.25, 0.25 + added, 1.0, 2.0) for added in (0.25, 4.0, 0.125) for at in (1, 16)]
    one, sixteen = typical(rounds)
    assert (one.concurrent, one.rounds, one.added, one.least, one.most) == (1, 3, 0.25, 0.125, 4.0)
    assert (sixteen.concurrent, sixteen.library, sixteen.service, sixteen.waited) == (16, 0.25, 0.5, 2.0)


@pytest.mark.parametrize(
    ("verdict", "verified"),
    [(Accept(9.0), 13.0), (Rollback(reason="grade"), 17.0), (Rollback(keep=1, reason="rollback"), 13.0)],
)
def test_the_first_step_is_verified_when_it_is_accepted_in_part_or_repaired(verdict: Verdict, verified: float) -> None:
    watch = RunTimes()
    happened: list[tuple[float, Event]] = [
        (10.0, Started((), "specreason")),
        (12.0, Drafted(0, DRAFT)),
        (12.5, Drafted(1, DRAFT)),
        (12.9, Judged(1, DRAFT, Accept())),
        (13.0, Judged(0, DRAFT, verdict)),
        (17.0, Repaired(0, DRAFT, Rollback())),
        (18.0, Committed(0, DRAFT)),
        (18.5, Committed(1, DRAFT)),
        (19.0, Called("small", "write", "done", 0.5, 8.0)),
        (19.1, Called("large", "ask", "done", 2.0, 1.0)),
    ]
    for at, event in happened:
        with patch("lab.service_overhead.time.perf_counter", lambda at=at: at):
            watch(RunEvent(REQUEST, 0, 0.0, event))
    assert watch.upstream == verified - 10.5
    assert watch.commits == [18.0, 18.5]


def test_gaps_are_compared_one_by_one() -> None:
    one = Arrival(first=1.3, upstream=1.0, gaps=(0.5, 0.25), commits=(0.25, 0.25))
    assert (one.ratio, drifts([one, one])) == (1.3, [0.25, 0.0, 0.25, 0.0])
