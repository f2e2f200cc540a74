"""A server that does not answer is reported while it is waited for, on a clock that jumps."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

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


def test_the_try_and_the_time_left_are_reported_from_the_first_second_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, WAITING)
    assert connect(Connection(SETTINGS), monkeypatch, 4.0) == 13.0
    reports = [record.getMessage() for record in caplog.records if record.name == WAITING]
    assert reports == [
        "waiting for the large model at http://127.0.0.1:9: try 1 of 3, up to 59 s left",  # after 1 s
        "waiting for the large model at http://127.0.0.1:9: try 2 of 3, up to 28 s left",  # 6 s: 2 tries, 14 s each
        "waiting for the large model at http://127.0.0.1:9: try 3 of 3, up to 14 s left",  # 11 s
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
