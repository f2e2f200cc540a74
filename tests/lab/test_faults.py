"""What becomes of requests while servers fail, on a real service over real processes."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lab import kills
from lab.faults import ALONE, FAULTS, Fault, Outcome, Result, refusal, suite

SOME = ("small down", "large killed under the requests", "small: 500", "large: garbage")


def test_a_fate_that_is_not_allowed_and_no_recovery_are_complaints() -> None:
    fault = Fault("f", ALONE, FAULTS[0].work)
    assert Result(fault, [Outcome("degraded")], 1.0).complaints == []
    assert Result(fault, [Outcome("lost", "x")], None).complaints == [
        "f: lost: x",
        "f: no undegraded answer within 20 s",
    ]


def test_a_refusal_has_a_message_and_says_when_to_come_back() -> None:
    said = {"error": {"message": "no"}}
    assert refusal(503, said, {"Retry-After": "2"}) == Outcome("refused", "503")
    assert refusal(503, said, {}).fate == refusal(500, {}, {}).fate == "wrong"


@pytest.mark.servers
async def test_some_faults() -> None:
    results = await suite([fault for fault in FAULTS if fault.name in SOME], 4, lambda result: None)
    assert len(results) == len(SOME)
    assert [complaint for result in results for complaint in result.complaints] == []


def test_solutions_are_counted_by_the_model_whose_server_was_killed() -> None:
    found = [
        kills.Killed("small", "http://a", 0.2, equal=True, in_use=True),
        kills.Killed(
            "small", "http://a", 0.9, equal=False, in_use=True, why="length, degraded: no"
        ),
        kills.Killed("large", "http://b", 0.9, equal=True, in_use=False),
    ]
    file = StringIO()
    Console(file=file, width=120).print(kills.table(found))
    cells = [line.split() for line in file.getvalue().splitlines()[1:]]
    assert cells == [["small", "2", "2", "1"], ["large", "1", "0", "1"], ["all", "3", "2", "2"]]
