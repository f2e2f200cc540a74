"""The circuit breaker of one server by itself, on a clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator.endpoints.breaker import Breaker
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable, StepspecError

from ...fakes import run

LONGEST = 30.0


def gone(cause: str) -> EndpointUnavailable:
    return EndpointUnavailable(cause, role="large", url="http://a")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, ""),
        (gone("reset"), "reset"),
        (gone(""), "failed"),
        (ConfigurationError("no such file"), "no such file"),
        (ConfigurationError(""), "failed"),
    ],
)
def test_its_cause_is_that_of_the_last_failure(error: StepspecError | None, cause: str) -> None:
    breaker = Breaker(LONGEST)
    if error:
        breaker.open(error)
    assert breaker.cause == cause


def test_only_the_failure_that_ends_a_good_time_has_it_probed() -> None:
    async def main() -> None:
        breaker = Breaker(LONGEST)
        assert (breaker.state, breaker.failing.is_set(), breaker.settled.is_set()) == ("closed", False, True)
        breaker.fail(gone("first"))
        assert (breaker.state, breaker.failing.is_set(), breaker.settled.is_set()) == ("half-open", True, False)
        breaker.fail(gone("second"))
        assert breaker.cause == "first"
        breaker.open(gone("third"))
        assert (breaker.state, breaker.failing.is_set(), breaker.settled.is_set()) == ("open", True, True)
        breaker.fail(gone("fourth"))
        assert (breaker.state, breaker.cause, breaker.settled.is_set()) == ("open", "third", True)
        breaker.close()
        assert (breaker.state, breaker.failing.is_set(), breaker.settled.is_set()) == ("closed", False, True)

    run(main())


@pytest.mark.parametrize(("good", "pause"), [(0.0, 4.0), (LONGEST - 1, 4.0), (LONGEST, 1.0), (LONGEST + 1, 1.0)])
def test_one_that_fails_again_soon_is_paused_on_from_where_it_was(good: float, pause: float) -> None:
    async def main() -> float:
        breaker = Breaker(LONGEST)
        await asyncio.sleep(100)
        breaker.fail(gone("reset"))
        breaker.open(gone("reset"))
        breaker.open(gone("reset"))
        assert breaker.pause == 2
        breaker.close()
        await asyncio.sleep(good)
        breaker.fail(gone("reset"))
        breaker.open(gone("reset"))
        return breaker.pause

    assert run(main())[0] == pause


def test_its_pauses_have_an_end() -> None:
    breaker, pauses = Breaker(LONGEST), list[float]()
    for _ in range(7):
        breaker.open(gone("reset"))
        pauses.append(breaker.pause)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
