"""A server that does not answer is reported while it is waited for, on a clock that jumps."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from asyncio_throttle import Throttler  # type: ignore[attr-defined]
from tenacity import AsyncRetrying, RetryCallState

from stepspec.orchestrator.endpoints import Deadlines, Endpoint
from stepspec.orchestrator.endpoints import client as module
from stepspec.orchestrator.endpoints.client import WAITING, Connection
from stepspec.orchestrator.errors import EndpointUnavailable

from ...fakes import run

SETTINGS = Endpoint(role="large", url="http://127.0.0.1:9", retries=2, deadlines=Deadlines(connect=4, total=60))


def connect(connection: Connection, monkeypatch: pytest.MonkeyPatch, seconds: float) -> float:
    """Let *connection* look for its model while each try takes *seconds* to fail; return how long it took in all."""

    def pause(state: object) -> float:
        return 0.5

    async def send(*request: object) -> object:
        await asyncio.sleep(seconds)
        error = connection.call("connect").error(EndpointUnavailable, "no connection")
        raise module._Retryable(error)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(connection, "_send_once", send)
    monkeypatch.setattr(module, "_wait", pause)

    async def work() -> None:
        with pytest.raises(EndpointUnavailable):
            await connection.model_name()

    return run(work())[1]


def test_the_try_is_reported_from_the_first_second_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, WAITING)
    assert connect(Connection(SETTINGS), monkeypatch, 4.0) == 13.0
    reports = [record.getMessage() for record in caplog.records if record.name == WAITING]
    assert reports == [
        "waiting for the large model at http://127.0.0.1:9: try 1 of 3",  # after 1 s
        "waiting for the large model at http://127.0.0.1:9: try 2 of 3",  # 6 s
        "waiting for the large model at http://127.0.0.1:9: try 3 of 3",  # 11 s
    ]


def test_a_server_that_fails_at_once_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, WAITING)
    assert connect(Connection(SETTINGS.model_copy(update={"retries": 1})), monkeypatch, 0.1) == pytest.approx(0.7)
    assert [record for record in caplog.records if record.name == WAITING] == []


def test_each_retry_is_logged_with_its_cause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepspec.requests")
    connect(Connection(SETTINGS), monkeypatch, 0.1)
    messages = [record.getMessage() for record in caplog.records if record.name == "stepspec.requests"]
    assert [re.sub(r".*(no connection).*; (try.*)", r"\1, \2", each) for each in messages] == [
        "no connection, try 2 in 0.5 s",
        "no connection, try 3 in 0.5 s",
    ]


@pytest.mark.parametrize(("rate", "count", "seconds"), [(0.5, 1, 2.0), (1.0, 1, 1.0), (2.5, 2, 0.8), (10.0, 10, 1.0)])
def test_a_rate_allows_whole_requests(rate: float, count: int, seconds: float) -> None:
    throttle = module._throttle(rate)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(throttle, Throttler)
    assert (throttle.rate_limit, throttle.period) == (count, pytest.approx(seconds))


@pytest.mark.parametrize("tried", [1, 2, 4, 30])
def test_the_pause_before_a_try_is_random_and_grows_and_a_servers_wish_is_kept(tried: int) -> None:
    retryable = module._Retryable  # pyright: ignore[reportPrivateUsage]
    wait = module._wait  # pyright: ignore[reportPrivateUsage]
    error = Connection(SETTINGS).call("connect").error(EndpointUnavailable, "no connection")

    def pause(after: float | None) -> float:
        state = RetryCallState(AsyncRetrying(), None, (), {})
        state.attempt_number = tried
        error.retry_after = after or 0.0
        state.set_exception((retryable, retryable(error), None))
        return wait(state)

    longest = min(module.LONGEST_PAUSE, 0.2 * 2 ** (tried - 1))
    pauses = [pause(None) for _ in range(200)]
    assert all(0 <= each <= longest for each in pauses)
    assert max(pauses) > longest / 2 > min(pauses)
    assert pause(60.0) == 60
